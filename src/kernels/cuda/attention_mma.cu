// attention for bf16 and fp16 on tensor cores: tiles of queries against tiles of keys with an online softmax. The
// probabilities enter the second product as two terms of the type, and each key tile's products are summed apart before
// they join the output: both keep the error at that of the result's own rounding, also over 128 000 keys.
#include <cmath>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/mma.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256, kRows = 128;  // a warp takes 16 rows of the tile
constexpr int kSlice = 32;                  // output columns that are summed at a time
constexpr float kLift = 10;  // probabilities are kept times 2^10: small ones stay above fp16's subnormals

template <class T>
__device__ uint32_t pack(float low, float high) {
  const T pair[2] = {rounded<T>(low), rounded<T>(high)};
  return *reinterpret_cast<const uint32_t*>(pair);
}
template <class T>
__device__ float residue(float x) {
  return x - to_f32(rounded<T>(x));
}

// One row of head_dim elements into shared memory, chunk by chunk; zeros beyond head_dim and for rows not `valid`.
template <class T>
__device__ void load_chunk(char* target, const T* row, int chunk, int head_dim, bool valid, bool vector) {
  const int column = chunk * 8;
  if (vector) return copy_async(shared_address(target), row + column, valid && column < head_dim);
  uint4 bits = {0, 0, 0, 0};
  T* elements = reinterpret_cast<T*>(&bits);
  for (int e = 0; e < 8; ++e)
    if (valid && column + e < head_dim) elements[e] = row[column + e];
  *reinterpret_cast<uint4*>(target) = bits;
}

template <class T, int width>  // width: head_dim rounded up to 64, 128 or 256
struct Tile {
  static constexpr int kChunks = width / 8, kQueryBytes = kRows * width * 2, kKeyBytes = kKeyTile * width * 2;
  static constexpr int kSharedBytes = kQueryBytes + 4 * kKeyBytes;  // two stages of keys and values
  static constexpr int kScoreParts = kKeyTile / 8;

  const AttentionArgs& args;
  const QueryTile& tile;
  char* shared;
  bool vector;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  __device__ const T* qkv() const { return static_cast<const T*>(args.qkv); }
  __device__ char* keys(int step) const { return shared + kQueryBytes + step % 2 * 2 * kKeyBytes; }

  __device__ void load_queries() const {
    const QkvColumns columns(args);
    for (int item = threadIdx.x; item < kRows * kChunks; item += kThreads) {
      const int row = item / kChunks, chunk = item % kChunks;
      const int64_t token = tile.first_token + row / tile.group;
      const int64_t head = tile.kv_head * tile.group + row % tile.group;
      load_chunk(shared + chunk_offset(row, chunk, kChunks), qkv() + token * columns.stride + head * args.head_dim,
                 chunk, args.head_dim, tile.row_valid(row), vector);
    }
  }
  __device__ void load_keys(int step) const {
    const QkvColumns columns(args);
    for (int item = threadIdx.x; item < kKeyTile * kChunks; item += kThreads) {
      const int row = item / kChunks, chunk = item % kChunks, key = step * kKeyTile + row;
      const T* token = qkv() + (tile.sample_start() + key) * columns.stride + tile.kv_head * args.head_dim;
      char* target = keys(step) + chunk_offset(row, chunk, kChunks);
      load_chunk(target, token + columns.key, chunk, args.head_dim, key < tile.keys(), vector);
      load_chunk(target + kKeyBytes, token + columns.value, chunk, args.head_dim, key < tile.keys(), vector);
    }
  }

  // scores = the warp's 16 queries times the step's keys.
  __device__ void multiply_keys(int step, float (&scores)[kScoreParts][4]) const {
    const uint32_t query_base = shared_address(shared), key_base = shared_address(keys(step));
#pragma unroll
    for (int j = 0; j < kScoreParts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll
    for (int d = 0; d < width / 16; ++d) {
      uint32_t query[4];
      load_matrices(query, query_base + chunk_offset(warp * 16 + (lane & 15), 2 * d + (lane >> 4), kChunks));
#pragma unroll
      for (int j = 0; j < kKeyTile / 16; ++j) {
        uint32_t key[4];
        load_matrices(
            key, key_base + chunk_offset(j * 16 + (lane & 7) + (lane >> 4) * 8, 2 * d + ((lane >> 3) & 1), kChunks));
        multiply_add<T>(scores[2 * j], query, key[0], key[1]);
        multiply_add<T>(scores[2 * j + 1], query, key[2], key[3]);
      }
    }
  }

  // sums = probabilities (high + low) times the step's values, columns [slice, slice + kSlice).
  __device__ void multiply_values(int step, int slice, const uint32_t (&high)[kKeyTile / 16][4],
                                  const uint32_t (&low)[kKeyTile / 16][4], float (&sums)[kSlice / 8][4]) const {
    const uint32_t base = shared_address(keys(step) + kKeyBytes);
#pragma unroll
    for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
#pragma unroll
    for (int key = 0; key < kKeyTile / 16; ++key)
#pragma unroll
      for (int j = 0; j < kSlice / 16; ++j) {
        uint32_t value[4];
        load_matrices_transposed(value,
                                 base + chunk_offset(key * 16 + (lane & 15), slice / 8 + 2 * j + (lane >> 4), kChunks));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add<T>(sums[2 * j + half], low[key], value[2 * half], value[2 * half + 1]);
          multiply_add<T>(sums[2 * j + half], high[key], value[2 * half], value[2 * half + 1]);
        }
      }
  }
};

template <class T, int width>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, char* shared, bool vector) {
  using Step = Tile<T, width>;
  const Step work{args, tile, shared, vector};
  const int lane = work.lane, row0 = work.warp * 16 + lane / 4;  // this lane's rows: row0 and row0 + 8
  const float log2_scale = args.scale * 1.4426950408889634f;     // exp(scale x) = 2^(log2_scale x)
  const int positions[2] = {tile.row_position(row0), tile.row_position(row0 + 8)};
  const int last_position = tile.row_position(work.warp * 16 + 15);
  float out[width / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // total: of this lane's columns only

  const int steps = (tile.keys() + kKeyTile - 1) / kKeyTile;
  work.load_queries();
  work.load_keys(0);
  commit_copies();
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    __syncthreads();  // this step's keys have come, and every warp is done with the stage filled next
    if (step + 1 < steps) work.load_keys(step + 1);
    commit_copies();
    const int first_key = step * kKeyTile;
    if (first_key > last_position) continue;  // all of this warp's rows come before these keys

    float scores[Step::kScoreParts][4];
    work.multiply_keys(step, scores);
    if (first_key + kKeyTile - 1 > tile.first_position) {  // the causal mask cuts this tile, or it ends the sample
#pragma unroll
      for (int j = 0; j < Step::kScoreParts; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first_key + j * 8 + lane % 4 * 2 + i % 2 > positions[i / 2]) scores[j][i] = -INFINITY;
    }
    float shrink[2], offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < Step::kScoreParts; ++j) most = fmaxf(most, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float next = fmaxf(largest[r], most);
      shrink[r] = exp2f((largest[r] - next) * log2_scale);
      largest[r] = next;
      offset[r] = next * log2_scale - kLift;
      total[r] *= shrink[r];
    }
    uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
    float sums[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < Step::kScoreParts; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = exp2f(fmaf(scores[j][i], log2_scale, -offset[i / 2]));
        sums[i / 2] += scores[j][i];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = scores[j][2 * r], y = scores[j][2 * r + 1];
        high[j / 2][j % 2 * 2 + r] = pack<T>(x, y);
        low[j / 2][j % 2 * 2 + r] = pack<T>(residue<T>(x), residue<T>(y));
      }
    }
    total[0] += sums[0];
    total[1] += sums[1];
#pragma unroll
    for (int slice = 0; slice < width; slice += kSlice) {
      float part[kSlice / 8][4];
      work.multiply_values(step, slice, high, low, part);
#pragma unroll
      for (int j = 0; j < kSlice / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = out[slice / 8 + j][i];
          x = fmaf(x, shrink[i / 2], part[j][i]);
        }
    }
  }
  wait_copies<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    const int row = row0 + 8 * r;
    if (!tile.row_valid(row)) continue;
    const int64_t token = tile.first_token + row / tile.group;
    const int64_t head = tile.kv_head * tile.group + row % tile.group;
    T* target = static_cast<T*>(args.out) + (token * args.heads + head) * args.head_dim;
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column < args.head_dim)
        *reinterpret_cast<uint32_t*>(target + column) = pack<T>(out[j][2 * r] / total[r], out[j][2 * r + 1] / total[r]);
    }
  }
}

template <class T, int width>
__global__ void __launch_bounds__(kThreads, width == 64 ? 2 : 1)
    attention_mma_kernel(AttentionArgs args, int tile_positions, bool vector) {
  extern __shared__ __align__(128) char shared[];
  for_each_query_tile(args, tile_positions,
                      [&](const QueryTile& tile) { attend<T, width>(args, tile, shared, vector); });
}

template <class T, int width>
void launch_width(cudaStream_t stream, const AttentionArgs& args) {
  const auto kernel = attention_mma_kernel<T, width>;
  constexpr int kSharedBytes = Tile<T, width>::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int tile_positions = kRows / (args.heads / args.kv_heads);
  const bool vector = args.head_dim % 8 == 0 && on_16_bytes(args.qkv);
  kernel<<<attention_grid(args, tile_positions), kThreads, kSharedBytes, stream>>>(args, tile_positions, vector);
  check_launch("attention_mma_kernel");
}

}  // namespace

void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act) {
  if (args.tokens == 0) return;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    if (args.head_dim <= 64) return launch_width<T, 64>(stream, args);
    if (args.head_dim <= 128) return launch_width<T, 128>(stream, args);
    launch_width<T, 256>(stream, args);
  };
  if (act == DType::kBf16)
    launch(__nv_bfloat16{});
  else
    launch(__half{});
}

}  // namespace lfm2
