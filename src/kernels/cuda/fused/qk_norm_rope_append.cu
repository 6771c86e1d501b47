// qk_norm_rope_append: the norm and rotation of query and key heads, which also writes the keys, and the values, to the
// cache. The bits are those of the two kernels one after the other.
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/rows/qk_norm_rope.cuh"

namespace lfm2 {

namespace {

using namespace qk_norm_rope;

template <class T>
struct CacheKeeper;
template <class T>
struct Fp8CacheKeeper;

// - operands: qkv [tokens, columns] of type T, changed in place; q_weight, k_weight [head_dim]
//   of any type; positions [tokens] int32; the cache of pages, of type T, or fp8 with Fp8CacheKeeper.
// - block: kBlockTokens tokens, which share the sines and cosines.
// - thread: pairs of octets of all heads, kThreads apart, kEach of them in flight (qk_norm_rope_kernel).
// - alignment: qkv and the cache on 16 bytes, head_dim 16 times a power of two.
template <class T, int kBlockTokens, int kEach, template <class> class Keeper>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_append_kernel(QkNormRopeArgs args, RopeFrequencies frequencies, KeyPages pages) {
  __shared__ int rows[kBlockTokens];
  turn_heads<T, kBlockTokens, kEach>(args, frequencies, Keeper<T>{args, pages, rows});
}

// Writes keys and values to the rows of the cache that belong to the block's tokens, `rows` in shared memory.
template <class T>
struct CacheKeeper {
  static constexpr bool kKeeps = true, kRounds = false;
  const QkNormRopeArgs& args;
  const KeyPages& pages;
  int* rows;

  __device__ void find_rows(int64_t first_token, int tokens) const {
    const int t = static_cast<int>(threadIdx.x);
    if (t < tokens) rows[t] = cache_row(pages, pages.sequence_of[first_token + t], args.positions[first_token + t]);
  }
  // `head` counts those of keys, then those of values.
  __device__ int64_t row_of(int t, int head) const {
    return static_cast<int64_t>(rows[t]) * args.kv_heads + head % args.kv_heads;
  }
  __device__ void keep(int t, int head, int element, T*, const Packed<T>& low, const Packed<T>& high) const {
    T* const cache = static_cast<T*>(head < args.kv_heads ? pages.keys : pages.values);
    T* const target = cache + row_of(t, head) * args.head_dim + element;
    store_packed(target, low, kOctet, true);
    store_packed(target + args.head_dim / 2, high, kOctet, true);
  }
};

// Rounds keys and values to fp8 first, also in place.
template <class T>
struct Fp8CacheKeeper : CacheKeeper<T> {
  static constexpr bool kRounds = true;

  __device__ void keep(int t, int head, int element, T* place, const Packed<T>& low, const Packed<T>& high) const {
    const QkNormRopeArgs& args = this->args;
    const KeyPages& pages = this->pages;
    const RoundedHead<T> fp8 = Rounder<T>{args}.round(place, low, high);
    const bool is_key = head < args.kv_heads;
    const int64_t row = this->row_of(t, head);
    uint8_t* const target = static_cast<uint8_t*>(is_key ? pages.keys : pages.values) + row * args.head_dim + element;
    *reinterpret_cast<uint2*>(target) = fp8.low;
    *reinterpret_cast<uint2*>(target + args.head_dim / 2) = fp8.high;
    if (element == 0) (is_key ? pages.key_scales : pages.value_scales)[row] = static_cast<uint8_t>(fp8.exponent);
  }
};

}  // namespace

bool launch_qk_norm_rope_append(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                                const KeyPages& pages, DType act) {
  if (!fits_octets(args) || !on_16_bytes(pages.keys) || !on_16_bytes(pages.values)) return false;
  if (args.tokens == 0) return true;
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int64_t tokens) {
      launch_dependent("qk_norm_rope_append_kernel", kernel, {ceil_divide(args.tokens, tokens), kThreads}, stream, args,
                       frequencies, pages);
    };
    if (pages.key_scales != nullptr) {
      if (args.tokens <= kFewTokens) return launch(qk_norm_rope_append_kernel<T, 1, 1, Fp8CacheKeeper>, 1);
      return launch(qk_norm_rope_append_kernel<T, kTokens, kItems, Fp8CacheKeeper>, kTokens);
    }
    if (args.tokens <= kFewTokens) return launch(qk_norm_rope_append_kernel<T, 1, 1, CacheKeeper>, 1);
    launch(qk_norm_rope_append_kernel<T, kTokens, kItems, CacheKeeper>, kTokens);
  });
  return true;
}

}  // namespace lfm2
