// attention, and the part of cached_attention for several tokens of a sequence, for bf16 and fp16 on tensor cores:
// tiles of queries against tiles of keys with an online softmax. The probabilities enter the second product as two
// terms of the compute type, and each key tile's products are summed separately before they are added to the output.
// Both keep the error at that of the result's own rounding, also over 128 000 keys.
#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/common/shared_memory.cuh"

namespace lfm2 {

namespace {

template <class T, int width, bool vector>
struct Tile;
template <class T, class E, int width, bool paged, bool vector, bool windowed>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, char* shared);

// - operands: args.qkv [tokens, columns]; without pages keys and values are those of qkv, with
//   pages pages.keys and .values [pages, page_size, kv_heads, head_dim] of type E; out [tokens, heads head_dim]; all of
//   type T, bf16 or fp16, except E, which may be F8.
// - block: (x, y): the tiles of queries that start in a window of `tile_positions` tokens, counted from the end, and
//   key-value head y (for_each_query_tile); the rows of a tile are all query heads of that head at consecutive
//   positions.
// - thread: a warp has 16 rows of the tile; lane l has scores and output of rows l / 4 and l / 4 + 8 of them.
// - alignment: `vector`: head_dim in octets, qkv, keys and values on 16 bytes; otherwise any. out on 4 bytes, head_dim
//   even. width: head_dim rounded up to 64, 128 or 256.
template <class T, class E, int width, bool paged, bool vector, bool windowed>
__global__ void __launch_bounds__(Tile<T, width, vector>::kThreads, width == 64 ? 2 : 1)
    attention_mma_kernel(AttentionArgs args, int tile_positions) {
  extern __shared__ __align__(128) char shared[];
  for_each_query_tile<paged>(args, tile_positions, [&](const QueryTile& tile) {
    attend<T, E, width, paged, vector, windowed>(args, tile, shared);
  });
}

// The shared memory of a block, and how a tile of queries and its keys and values are loaded into it.
template <class T, int width, bool vector>
struct Tile {
  using Step = KeyStep<T, width>;
  static_assert(width == 64 || width == 128 || width == 256);
  static constexpr int kThreads = width == 256 ? 128 : 256, kRows = kThreads / 2;  // a warp has 16 rows of the tile
  static constexpr int kChunks = width / 8, kQueryBytes = kRows * width * 2, kKeyBytes = Step::kKeyBytes;
  // Shared memory: the queries; two tile buffers of keys and values, or one if there is no room; the merged output of
  // earlier splits, fp32; and for each row the largest score and the total of those splits.
  static constexpr int kMergedBytes = kRows * width * 4, kMergedRowBytes = kRows * 8;
  static constexpr int kBuffers =
      kQueryBytes + 4 * kKeyBytes + kMergedBytes + kMergedRowBytes <= kMaxSharedBytes - kStaticBytes ? 2 : 1;
  static constexpr int kMerged = kQueryBytes + kBuffers * 2 * kKeyBytes, kMergedRows = kMerged + kMergedBytes;
  static constexpr int kSharedBytes = kMergedRows + kMergedRowBytes;

  const AttentionArgs& args;
  const QueryTile& tile;
  char* shared;

  __device__ char* keys(int step) const { return shared + kQueryBytes + step % kBuffers * 2 * kKeyBytes; }
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
      const int64_t at = valid ? rows.row(key) : 0;
      char* target = keys(step) + chunk_offset(row, chunk, kChunks);
      load_chunk<T, vector>(target, rows.keys, at, chunk, args.head_dim, valid);
      load_chunk<T, vector>(target + kKeyBytes, rows.values, at, chunk, args.head_dim, valid);
    }
  }
};

// Adds one tile of keys, which is in shared memory together with its values, to a warp's 16 rows.
template <class T, int width, bool vector, bool windowed>
__device__ __forceinline__ void add_tile(const Tile<T, width, vector>& work, int step,
                                         Rows<T, width, Tile<T, width, vector>, windowed>& rows) {
  using Step = KeyStep<T, width>;
  const int first_key = step * kKeyTile, lane = threadIdx.x % 32;
  const uint32_t keys = shared_address(work.keys(step));
  float scores[kScoreParts][4];
  Step::multiply_keys(shared_address(work.shared), threadIdx.x / 32 * 16 + (lane & 15), keys, scores);
  if (first_key + kKeyTile - 1 > work.tile.first_position)  // the causal mask or the sample's end cuts this tile
    Step::mask(first_key, rows.positions, scores);
  if constexpr (windowed)
    if (first_key < work.tile.keys() - work.args.window) rows.mask_window(first_key, scores);
  float shrink[2];
  rows.weigh(scores, shrink);
  uint32_t high[kKeyTile / 16][4], low[kKeyTile / 16][4];
  Step::template terms<2>(scores, high, low);
#pragma unroll
  for (int slice = 0; slice < width; slice += kSlice) {
    float part[kSlice / 8][4];
    Step::multiply_values(keys + Step::kKeyBytes, slice, high, low, part);
    rows.join(slice / 8, part, shrink);
  }
}

// Computes the output of one tile of queries, one tile of keys after another. With two tile buffers, the next tile is
// loaded while one is used.
template <class T, class E, int width, bool paged, bool vector, bool windowed>
__device__ void attend(const AttentionArgs& args, const QueryTile& tile, char* shared) {
  const Tile<T, width, vector> work{args, tile, shared};
  const KeyRows<E, paged, windowed> keys(args, tile);
  const int warp = threadIdx.x / 32;
  Rows<T, width, Tile<T, width, vector>, windowed> rows(args, work, tile,
                                                        warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4);
  const int last_position = min(tile.row_position(warp * 16 + 15), tile.keys() - 1);

  const int steps = (tile.keys() + kKeyTile - 1) / kKeyTile, first_step = keys.first / kKeyTile;
  work.load_queries();
  work.load_keys(keys, first_step);
  commit_copies();
  for (int step = first_step; step < steps; ++step) {
    if (work.kBuffers == 1 && step > first_step) {
      __syncthreads();  // every warp is done with the only tile buffer
      work.load_keys(keys, step);
      commit_copies();
    }
    wait_copies<0>();
    __syncthreads();  // this step's keys have arrived, and every warp is done with the tile buffer filled next
    if (work.kBuffers == 2 && step + 1 < steps) work.load_keys(keys, step + 1);
    commit_copies();
    const int begin = step * kKeyTile;
    if (begin > last_position) continue;  // all of this warp's rows come before these keys
    if (step > first_step && step % kSplitTiles == 0) {
      rows.close_split(begin - kSplitKeys, step - kSplitTiles <= first_step);
      rows.set_aside();
    }
    add_tile(work, step, rows);
  }
  wait_copies<0>();
  const int last_split = last_position / kSplitKeys * kSplitKeys;
  rows.close_split(last_split, last_split <= keys.first);
  rows.store(tile);
}

template <class T, class E, int width, bool paged, bool vector, bool windowed>
void launch_kernel(cudaStream_t stream, const AttentionArgs& args) {
  using Work = Tile<T, width, vector>;
  constexpr auto kernel = attention_mma_kernel<T, E, width, paged, vector, windowed>;
  allow_shared_bytes<kernel, Work::kSharedBytes>();
  const int tile_positions = Work::kRows / (args.heads / args.kv_heads);
  kernel<<<attention_grid(args, tile_positions), Work::kThreads, Work::kSharedBytes, stream>>>(args, tile_positions);
  check_launch("attention_mma_kernel");
}

}  // namespace

void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act) {
  if (args.tokens == args.pages.singles) return;
  const bool aligned = args.head_dim % 8 == 0 && args.columns % 8 == 0 && on_16_bytes(args.qkv) &&
                       on_16_bytes(args.pages.keys) && on_16_bytes(args.pages.values);
  with_16_bit_type(act, [&](auto zero) {
    using T = decltype(zero);
    with_width(args.head_dim, [&](auto width) {
      with_constant(aligned, [&](auto vector) {
        with_constant(args.window != kNoWindow, [&](auto window) {
          constexpr bool windowed = window() || !vector();  // fewer instances
          if (args.pages.key_scales != nullptr)
            return launch_kernel<T, F8, width(), true, vector(), windowed>(stream, args);
          if (args.pages.keys != nullptr) return launch_kernel<T, T, width(), true, vector(), windowed>(stream, args);
          launch_kernel<T, T, width(), false, vector(), windowed>(stream, args);
        });
      });
    });
  });
}

}  // namespace lfm2
