// What the row kernels share: octets in their stored type, and the one order in which a row's squares are summed, so
// that every kernel with a norm in it computes the same bits for a row.
#pragma once

#include "kernels/cuda/common/device_types.cuh"

namespace lfm2 {

// Eight elements in their stored type. With 16-bit types they take half the registers of an Octet.
template <class T>
struct Packed {
  static constexpr int kWords = static_cast<int>(sizeof(T)) * kOctet / 16;
  uint4 words[kWords];
};

template <class T>
__device__ inline Packed<T> load_packed(const T* p, int64_t count, bool vector) {
  Packed<T> packed;
  if (vector) {
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords; ++i) packed.words[i] = reinterpret_cast<const uint4*>(p)[i];
  } else {
    T* elements = reinterpret_cast<T*>(&packed);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) elements[i] = i < count ? p[i] : rounded<T>(0.0f);
  }
  return packed;
}

template <class T>
__device__ inline void store_packed(T* p, const Packed<T>& packed, int64_t count, bool vector) {
  if (vector) {
#pragma unroll
    for (int i = 0; i < Packed<T>::kWords; ++i) reinterpret_cast<uint4*>(p)[i] = packed.words[i];
  } else {
    const T* elements = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < count) p[i] = elements[i];
  }
}

template <class T>
__device__ inline Octet unpack(const Packed<T>& packed) {
  const T* elements = reinterpret_cast<const T*>(&packed);
  Octet octet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet.v[i] = to_f32(elements[i]);
  return octet;
}

template <class T>
__device__ inline Packed<T> pack(const Octet& octet) {
  Packed<T> packed;
  T* elements = reinterpret_cast<T*>(&packed);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) elements[i] = rounded<T>(octet.v[i]);
  return packed;
}

// Calls f(Word{}) with the word in which rows are copied bit by bit: 16 bytes if they divide a row and both matrices
// begin on them, otherwise 2.
template <class F>
void with_row_word(const void* from, const void* to, int64_t row_bytes, F&& f) {
  if (row_bytes % 16 == 0 && on_16_bytes(from) && on_16_bytes(to)) return f(uint4{});
  f(uint16_t{});
}

// Hides from the compiler where x comes from. It would otherwise keep the fp32 form of x, in twice the registers.
template <class T>
__device__ inline void forget(Packed<T>& x) {
#pragma unroll
  for (int i = 0; i < Packed<T>::kWords; ++i)
    asm volatile("" : "+r"(x.words[i].x), "+r"(x.words[i].y), "+r"(x.words[i].z), "+r"(x.words[i].w));
}

// A row's sum of squares is always added in this order. There are row_threads(octets) partial sums, and octet o goes
// into partial sum o modulo that number, in the order of the elements. A tree adds each 32 adjacent partial sums, and
// the trees' results are added in order.
//   partial sums:   0 … 31   |  32 … 63  |  64 … 95  | ...
//   squares    =    tree 0   +  tree 1   +  tree 2   + ...
constexpr int kMaxPartials = 256;  // the most that row_threads returns
constexpr int kMaxTrees = kMaxPartials / 32;

__device__ inline float add_squares(float sum, const Octet& octet) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum = fmaf(octet.v[i], octet.v[i], sum);
  return sum;
}

__device__ inline float rms_factor(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

__device__ inline Octet scaled(Octet x, float factor, const Octet& weight) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) x.v[i] = x.v[i] * factor * weight.v[i];
  return x;
}

// Adds the partial sums of a block of row_threads(octets) threads. Every thread gets the row's sum.
__device__ inline float block_squares(float partial) {
  __shared__ float trees[kMaxTrees];
  partial = warp_sum(partial);
  if (threadIdx.x % 32 == 0) trees[threadIdx.x / 32] = partial;
  __syncthreads();
  float sum = 0;
  for (unsigned tree = 0; tree < blockDim.x / 32; ++tree) sum += trees[tree];
  return sum;
}

}  // namespace lfm2
