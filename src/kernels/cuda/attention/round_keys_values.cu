// append_keys_values to a cache in fp8, and the rounding of keys and values in place, for heads of any size.
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/fp8_cache.cuh"

namespace lfm2 {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// - operands: args.qkv [tokens, columns] of type T. With pages, its keys and values go to
//   pages.keys and .values [pages, page_size, kv_heads, head_dim] as E4M3, and their scales to pages.key_scales and
//   .value_scales [pages, page_size, kv_heads]; without pages, they are rounded in place.
// - block: kWarps heads, those of a token's keys, then those of its values, side by side.
// - thread: a warp has one head; lane l has the elements l, l + 32, ….
// - alignment: any.
template <class T>
__global__ void __launch_bounds__(kThreads) round_keys_values_kernel(AppendKeysValuesArgs args) {
  pdl_trigger();
  const KeyPages& pages = args.pages;
  const int lane = threadIdx.x % 32, heads = 2 * args.kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32, token = item / heads;
  const int head = static_cast<int>(item - token * heads);
  const bool is_key = head < args.kv_heads, appends = pages.keys != nullptr;
  int64_t row = 0;  // in the cache's heads
  if (appends && token < args.tokens)
    row = static_cast<int64_t>(cache_row(pages, pages.sequence_of[token], args.positions[token])) * args.kv_heads +
          head % args.kv_heads;
  pdl_wait();
  if (token >= args.tokens) return;
  T* const x = static_cast<T*>(args.qkv) + token * args.columns + (args.heads + head) * args.head_dim;
  float largest = 0;
  for (int i = lane; i < args.head_dim; i += 32) largest = larger_magnitude(largest, to_f32(x[i]));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const int exponent = scale_exponent(largest, kMaxScaleExponent<T>);
  const float inverse = inverse_scale_of(exponent);
  if (appends && lane == 0) (is_key ? pages.key_scales : pages.value_scales)[row] = static_cast<uint8_t>(exponent);
  uint8_t* const target = static_cast<uint8_t*>(is_key ? pages.keys : pages.values) + row * args.head_dim;
  for (int i = lane; i < args.head_dim; i += 32) {
    const uint8_t element = to_fp8(to_f32(x[i]), inverse);
    if (appends)
      target[i] = element;
    else
      x[i] = rounded<T>(from_fp8(element, scale_of(exponent)).x);
  }
}

}  // namespace

void launch_round_keys_values(cudaStream_t stream, const AppendKeysValuesArgs& args, DType act) {
  if (args.tokens == 0) return;
  with_device_type(act, [&](auto zero) {
    launch_dependent("round_keys_values_kernel", round_keys_values_kernel<decltype(zero)>,
                     {ceil_divide(args.tokens * 2 * args.kv_heads, kWarps), kThreads}, stream, args);
  });
}

}  // namespace lfm2
