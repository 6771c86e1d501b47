// attention, and the part of cached_attention that takes several tokens of a sequence, for bf16 and fp16 on tensor
// cores: tiles of queries against tiles of keys with an online softmax. The probabilities enter the second product as
// two terms of the compute type, and each key tile's products are summed by themselves before they join the output.
// Both keep the error at that of the result's own rounding, also over 128 000 keys.
#include "kernels/cuda/attention/attention_mma.cuh"

namespace lfm2 {

namespace {

// The shared memory of a block, and how a tile of queries and its keys and values are loaded into it.
template <class T, int width, bool vector>
struct Tile {
  using Step = KeyStep<T, width>;
  static constexpr int kThreads = width == 256 ? 128 : 256, kRows = kThreads / 2;  // a warp takes 16 rows of the tile
  static constexpr int kChunks = width / 8, kQueryBytes = kRows * width * 2, kKeyBytes = Step::kKeyBytes;
  // Shared memory: the queries; two tile buffers of keys and values; the merged output of earlier splits, fp32; and of
  // each row the largest score and the total of those splits.
  static constexpr int kMerged = kQueryBytes + 4 * kKeyBytes, kMergedRows = kMerged + kRows * width * 4;
  static constexpr int kSharedBytes = kMergedRows + kRows * 8;

  const AttentionArgs& args;
  const QueryTile& tile;
  char* shared;

  __device__ char* keys(int step) const { return shared + kQueryBytes + step % 2 * 2 * kKeyBytes; }
  // Element i of this lane's part of 16 rows of output.
  __device__ float& merged_out(int i) const {
    return reinterpret_cast<float*>(shared + kMerged)[i * kThreads + static_cast<int>(threadIdx.x)];
  }
  __device__ float2& merged_row(int row) const { return reinterpret_cast<float2*>(shared + kMergedRows)[row]; }

  __device__ void load_queries() const {
    const QkvColumns columns(args);
#pragma unroll(vector ? 4 : 1)
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = item / kChunks, chunk = item % kChunks;
      const int64_t token = tile.first_token + row / tile.group;
      const int64_t head = tile.kv_head * tile.group + row % tile.group;
      load_chunk<vector>(shared + chunk_offset(row, chunk, kChunks),
                         static_cast<const T*>(args.qkv) + token * columns.stride + head * args.head_dim, chunk,
                         args.head_dim, tile.row_valid(row));
    }
  }
  template <class Rows>
  __device__ void load_keys(const Rows& rows, int step) const {
#pragma unroll(vector ? 4 : 1)
    for (int i = 0; i < kKeyTile * kChunks / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = item / kChunks, chunk = item % kChunks;
      const int key = step * kKeyTile + row;
      const bool valid = key < tile.keys();
      const int64_t offset = valid ? rows.offset(key) : 0;
      char* target = keys(step) + chunk_offset(row, chunk, kChunks);
      load_chunk<vector>(target, rows.keys + offset, chunk, args.head_dim, valid);
      load_chunk<vector>(target + kKeyBytes, rows.values + offset, chunk, args.head_dim, valid);
    }
  }
};

// The online softmax of this lane's part of 16 query rows: rows row0 and row0 + 8 of the tile, as mma.sync leaves them.
// A weight is 2^(score - largest, scaled), times 2^kLift; the output is divided by the weights' sum at the very end.
template <class T, int width, bool vector>
struct Rows {
  using Step = KeyStep<T, width>;

  const Tile<T, width, vector>& work;
  RawScores rule;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp * 16 + lane / 4;
  int positions[2];  // where the two rows stand in their sample
  float out[width / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // total covers this lane's keys only

  __device__ __forceinline__ explicit Rows(const Tile<T, width, vector>& tile_work)
      : work(tile_work), rule(work.args.scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) positions[r] = work.tile.row_position(row0 + 8 * r);
  }

  // Joins the split that begins at `first_key` to those before it. Rows before `first_key` keep what they have.
  __device__ __forceinline__ void close_split(int first_key) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    }
    if (first_key == 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 before = work.merged_row(row0 + 8 * r);
      const bool has_keys = positions[r] >= first_key;
      const float most = fmaxf(before.x, largest[r]);
      const float weights[2] = {rule.weight(before.x, most), rule.weight(largest[r], most)};
      largest[r] = has_keys ? most : before.x;
      total[r] = has_keys ? merged(before.y, weights[0], total[r], weights[1]) : before.y;
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          const float kept = work.merged_out(j * 4 + i);
          out[j][i] = has_keys ? merged(kept, weights[0], out[j][i], weights[1]) : kept;
        }
    }
  }

  // Puts the merged result of all splits so far into shared memory, and begins a new split.
  __device__ __forceinline__ void set_aside() {
    __syncwarp();  // four lanes share a row
#pragma unroll
    for (int r = 0; r < 2; ++r) work.merged_row(row0 + 8 * r) = {largest[r], total[r]};
#pragma unroll
    for (int j = 0; j < width / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        work.merged_out(j * 4 + i) = out[j][i];
        out[j][i] = 0;
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = -INFINITY;
      total[r] = 0;
    }
    __syncwarp();
  }

  // Adds one tile of keys, which lies in shared memory together with its values.
  __device__ __forceinline__ void add_tile(int step) {
    const int first_key = step * kKeyTile;
    const uint32_t keys = shared_address(work.keys(step));
    float scores[kScoreParts][4];
    Step::multiply_keys(shared_address(work.shared), warp * 16 + (lane & 15), keys, scores);
    if (first_key + kKeyTile - 1 > work.tile.first_position)  // the causal mask or the sample's end cuts this tile
      Step::mask(first_key, positions, scores);
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(largest[r], Step::largest(scores, r));
      shrink[r] = rule.weight(largest[r], next);
      largest[r] = next;
    }
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    float sums[2];
    Step::template weigh<2>(scores, largest, rule.log2_scale, high, low, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) total[r] = fmaf(total[r], shrink[r], sums[r]);
#pragma unroll
    for (int slice = 0; slice < width; slice += kSlice) {
      float part[kSlice / 8][4];
      Step::multiply_values(keys + Step::kKeyBytes, slice, high, low, part);
#pragma unroll
      for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = out[slice / 8 + j][i];
          x = fmaf(x, shrink[i / 2], part[j][i]);
        }
    }
  }

  __device__ __forceinline__ void store() const {
    const AttentionArgs& args = work.args;
    const QueryTile& tile = work.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 8 * r;
      if (!tile.row_valid(row)) continue;
      const int64_t token = tile.first_token + row / tile.group;
      const int64_t head = tile.kv_head * tile.group + row % tile.group;
      T* target = static_cast<T*>(args.out) + (token * args.heads + head) * args.head_dim;
#pragma unroll
      for (int j = 0; j < width / 8; ++j) {
        const int column = j * 8 + lane % 4 * 2;
        if (column < args.head_dim)
          *reinterpret_cast<uint32_t*>(target + column) =
              pack<T>(out[j][2 * r] / total[r], out[j][2 * r + 1] / total[r]);
      }
    }
  }
};

// Computes the output of one tile of queries, one tile of keys after the other; the next one is loaded while one is
// used.
template <class T, int width, bool paged, bool vector>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, char* shared) {
  const Tile<T, width, vector> work{args, tile, shared};
  const KeyRows<T, paged> keys(args, tile);
  Rows<T, width, vector> rows(work);
  const int warp = threadIdx.x / 32;
  const int last_position = min(tile.row_position(warp * 16 + 15), tile.keys() - 1);

  const int steps = (tile.keys() + kKeyTile - 1) / kKeyTile;
  work.load_queries();
  work.load_keys(keys, 0);
  commit_copies();
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    __syncthreads();  // this step's keys have come, and every warp is done with the tile buffer filled next
    if (step + 1 < steps) work.load_keys(keys, step + 1);
    commit_copies();
    const int first_key = step * kKeyTile;
    if (first_key > last_position) continue;  // all of this warp's rows come before these keys
    if (step > 0 && step % kSplitTiles == 0) {
      rows.close_split(first_key - kSplitKeys);
      rows.set_aside();
    }
    rows.add_tile(step);
  }
  wait_copies<0>();
  rows.close_split(last_position / kSplitKeys * kSplitKeys);
  rows.store();
}

// - operands: args.qkv [tokens, (heads + 2 kv_heads) head_dim]; without pages keys and values are those of qkv, with
//   pages pages.keys and .values [pages, page, kv_heads, head_dim]; out [tokens, heads head_dim]; all of type T,
//   bf16 or fp16.
// - block: (x, y): the tiles of queries that start in a window of `tile_positions` tokens, counted from the end, and
//   key-value head y (for_each_query_tile); the rows of a tile are all query heads of that head at consecutive
//   positions.
// - thread: a warp takes 16 rows of the tile; lane l has scores and output of rows l / 4 and l / 4 + 8 of them.
// - alignment: `vector`: head_dim in octets, qkv, keys and values on 16 bytes; otherwise any. out on 4 bytes,
//   head_dim even. width: head_dim rounded up to 64, 128 or 256.
template <class T, int width, bool paged, bool vector>
__global__ void __launch_bounds__(Tile<T, width, vector>::kThreads, width == 64 ? 2 : 1)
    attention_mma_kernel(AttentionArgs args, int tile_positions) {
  extern __shared__ __align__(128) char shared[];
  for_each_query_tile<paged>(args, tile_positions,
                             [&](const QueryTile& tile) { attend<T, width, paged, vector>(args, tile, shared); });
}

template <class T, int width, bool paged, bool vector>
void launch_kernel(cudaStream_t stream, const AttentionArgs& args) {
  using Work = Tile<T, width, vector>;
  const auto kernel = attention_mma_kernel<T, width, paged, vector>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Work::kSharedBytes));
  const int tile_positions = Work::kRows / (args.heads / args.kv_heads);
  kernel<<<attention_grid(args, tile_positions), Work::kThreads, Work::kSharedBytes, stream>>>(args, tile_positions);
  check_launch("attention_mma_kernel");
}

template <class T, int width, bool paged>
void launch_width(cudaStream_t stream, const AttentionArgs& args) {
  if (args.head_dim % 8 == 0 && on_16_bytes(args.qkv) && on_16_bytes(args.pages.keys) && on_16_bytes(args.pages.values))
    launch_kernel<T, width, paged, true>(stream, args);
  else
    launch_kernel<T, width, paged, false>(stream, args);
}

template <class T, bool paged>
void launch(cudaStream_t stream, const AttentionArgs& args) {
  if (args.head_dim <= 64) return launch_width<T, 64, paged>(stream, args);
  if (args.head_dim <= 128) return launch_width<T, 128, paged>(stream, args);
  launch_width<T, 256, paged>(stream, args);
}

}  // namespace

void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act) {
  if (args.tokens == args.pages.singles) return;
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    if (args.pages.keys != nullptr)
      launch<T, true>(stream, args);
    else
      launch<T, false>(stream, args);
  });
}

}  // namespace lfm2
