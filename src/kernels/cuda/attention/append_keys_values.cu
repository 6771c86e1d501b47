// append_keys_values: copies the keys and values of a batch's tokens to their positions in the cache.
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/common/dependent_launch.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256;

// - operands: qkv [tokens, columns], of which keys and values are copied to pages.keys and .values [pages, page_size,
//   kv_heads, head_dim], in pieces of type P: 16 bytes, or one element; `row_pieces` of a token in qkv, `query_pieces`
//   of its queries, `pieces` of its keys.
// - block: kThreads pieces, those of a token side by side: first its keys, then its values.
// - thread: one piece.
// - alignment: that of P.
template <class P>
__global__ void __launch_bounds__(kThreads)
    append_keys_values_kernel(AppendKeysValuesArgs args, int pieces, int query_pieces, int row_pieces) {
  pdl_trigger();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = item / (2 * pieces);
  const int piece = static_cast<int>(item - token * 2 * pieces);
  int64_t row = 0;
  if (token < args.tokens) row = cache_row(args.pages, args.pages.sequence_of[token], args.positions[token]);
  pdl_wait();
  if (token >= args.tokens) return;
  const P value = static_cast<const P*>(args.qkv)[token * row_pieces + query_pieces + piece];
  P* const target = static_cast<P*>(piece < pieces ? args.pages.keys : args.pages.values);
  target[row * pieces + (piece < pieces ? piece : piece - pieces)] = value;
}

template <class P>
void launch(cudaStream_t stream, const AppendKeysValuesArgs& args, int element_bytes) {
  const int each = static_cast<int>(sizeof(P)) / element_bytes;
  const int pieces = args.kv_heads * args.head_dim / each;
  launch_dependent("append_keys_values_kernel", append_keys_values_kernel<P>,
                   {ceil_divide(args.tokens * 2 * pieces, kThreads), kThreads}, stream, args, pieces,
                   args.heads * args.head_dim / each, static_cast<int>(args.columns / each));
}

}  // namespace

void launch_append_keys_values(cudaStream_t stream, const AppendKeysValuesArgs& args, DType act) {
  if (args.tokens == 0) return;
  const int bytes = static_cast<int>(size_bytes(act)), each = 16 / bytes;
  const bool vector = args.kv_heads * args.head_dim % each == 0 && args.heads * args.head_dim % each == 0 &&
                      args.columns % each == 0 && on_16_bytes(args.qkv) && on_16_bytes(args.pages.keys) &&
                      on_16_bytes(args.pages.values);
  if (vector) return launch<uint4>(stream, args, bytes);
  if (bytes == 2) return launch<uint16_t>(stream, args, bytes);
  launch<uint32_t>(stream, args, bytes);
}

}  // namespace lfm2
