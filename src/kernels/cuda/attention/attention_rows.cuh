// The online softmax over the query rows of a warp, and how its splits are merged. The kernels over tiles of queries
// (attention_mma.cu, attention_wgmma.cu) share it, so that they give the same bits.
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"

namespace lfm2 {

// This lane's part of 16 query rows: rows row0 and row0 + 8 of a tile, as the tensor cores leave them. A weight is
// 2^(score - largest, scaled), times 2^kLift; the output is divided by the weights' sum at the very end. Shared memory
// keeps the merged result of earlier splits: memory.merged_out(i) is this thread's float for element i of its output,
// and memory.merged_row(row) the largest score and the total of a row.
template <class T, int width, class Memory, bool windowed>
struct Rows {
  using Step = KeyStep<T, width>;

  const AttentionArgs& args;
  const Memory& memory;
  RawScores rule;
  const int row0;
  int positions[2];  // of the two rows in their sample
  float out[width / 8][4] = {};
  float largest[2], total[2] = {0, 0};  // total covers this lane's keys only

  __device__ __forceinline__ Rows(const AttentionArgs& arguments, const Memory& shared, const QueryTile& tile,
                                  int first_row)
      : args(arguments), memory(shared), rule(args.scale), row0(first_row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      positions[r] = tile.row_position(row0 + 8 * r);
      largest[r] = no_score<windowed>(args);
    }
  }

  // Masks the keys before the rows' windows in a tile's scores.
  __device__ __forceinline__ void mask_window(int first_key, float (&scores)[kScoreParts][4]) const {
    const int first_keys[2] = {positions[0] - args.window + 1, positions[1] - args.window + 1};
    Step::mask_before(first_key, first_keys, scores);
  }

  // Turns the scores of the next tile of keys, which are masked already, into weights. Before the tile's products are
  // added to the output, the output must be multiplied by `shrink`.
  __device__ __forceinline__ void weigh(float (&scores)[kScoreParts][4], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(largest[r], Step::largest(scores, r));
      shrink[r] = rule.weight(largest[r], next);
      largest[r] = next;
    }
    float sums[2];
    Step::template weigh<2>(scores, largest, rule.log2_scale, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) total[r] = fmaf(total[r], shrink[r], sums[r]);
  }

  // Adds a tile's products of weights and values, for the columns from 8 * first on.
  template <int parts>
  __device__ __forceinline__ void join(int first, const float (&part)[parts][4], const float (&shrink)[2]) {
#pragma unroll
    for (int j = 0; j < parts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = out[first + j][i];
        x = fmaf(x, shrink[i / 2], part[j][i]);
      }
  }

  // Merges the split that begins at `first_key` into the earlier ones, unless it is the `first` one. Rows before
  // `first_key` keep what they have, and rows whose windows begin after it have nothing earlier.
  __device__ __forceinline__ void close_split(int first_key, bool first) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    }
    if (first) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (windowed && positions[r] - args.window >= first_key - 1) continue;
      const float2 before = memory.merged_row(row0 + 8 * r);
      const bool has_keys = positions[r] >= first_key;
      const float most = fmaxf(before.x, largest[r]);
      const float weights[2] = {rule.weight(before.x, most), rule.weight(largest[r], most)};
      largest[r] = has_keys ? most : before.x;
      total[r] = has_keys ? merged(before.y, weights[0], total[r], weights[1]) : before.y;
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          const float kept = memory.merged_out(j * 4 + i);
          out[j][i] = has_keys ? merged(kept, weights[0], out[j][i], weights[1]) : kept;
        }
    }
  }

  // Stores the merged result of all splits so far in shared memory, and begins a new split.
  __device__ __forceinline__ void set_aside() {
    __syncwarp();  // four lanes share a row
#pragma unroll
    for (int r = 0; r < 2; ++r) memory.merged_row(row0 + 8 * r) = {largest[r], total[r]};
#pragma unroll
    for (int j = 0; j < width / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        memory.merged_out(j * 4 + i) = out[j][i];
        out[j][i] = 0;
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = no_score<windowed>(args);
      total[r] = 0;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void store(const QueryTile& tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 8 * r;
      if (!tile.row_valid(row)) continue;
      const int64_t token = tile.first_token + row / tile.group;
      const int64_t head = tile.kv_head * tile.group + row % tile.group;
      T* target = static_cast<T*>(args.out) + (token * args.heads + head) * args.head_dim;
#pragma unroll
      for (int j = 0; j < width / 8; ++j) {
        const int column = j * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
        if (column < args.head_dim)
          *reinterpret_cast<uint32_t*>(target + column) =
              pack<T>(out[j][2 * r] / total[r], out[j][2 * r + 1] / total[r]);
      }
    }
  }
};

}  // namespace lfm2
