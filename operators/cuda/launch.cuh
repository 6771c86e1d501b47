// Shared by all kernel files of the operators: element types, launches that return their own error, and the walk
// through strided tensors on the device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/element_types.cuh"
#include "operators/gpu.h"
#include "operators/walk.h"

namespace lfm2::operators::gpu {

inline Status status_of(cudaError_t error) {
  return error == cudaSuccess ? Status::kOk
                              : static_cast<Status>(static_cast<int>(Status::kCudaError) + static_cast<int>(error));
}

// Makes a tensor's device current, and restores the caller's device at the end.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ != cudaSuccess || before_ == device) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
    if (!changed_) static_cast<void>(cudaGetLastError());
  }
  ~OnDevice() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  Status status() const { return status_of(error_); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

// Launches a kernel and returns that launch's own error. If the launch succeeds, an earlier error of other code is
// neither reported nor cleared.
template <class... Parameters>
Status launch_with_shared(void (*kernel)(Parameters...), int64_t blocks, dim3 threads, size_t shared_bytes,
                          void* stream, std::type_identity_t<Parameters>... arguments) {
  constexpr size_t kAlwaysThere = 48 * 1024;
  if (blocks == 0) return Status::kOk;
  if (blocks > 0x7fffffff) return Status::kTooLarge;  // such as a batch of 2^31 products of 1 x 1, with a block each
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  if (shared_bytes > kAlwaysThere)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status_of(error);
}
template <class... Parameters>
Status launch(void (*kernel)(Parameters...), int64_t blocks, dim3 threads, void* stream,
              std::type_identity_t<Parameters>... arguments) {
  return launch_with_shared(kernel, blocks, threads, 0, stream, arguments...);
}

inline int64_t ceil_divide(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline bool on_bytes(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Calls f(T{}) with an unsigned integer type of the elements' size, for code that only moves elements. f returns a
// Status.
template <class F>
Status with_bits(DType dtype, F&& f) {
  return size_bytes(dtype) == 2 ? f(uint16_t{}) : f(uint32_t{});
}

// The number of elements in a unit, which is 16 bytes.
template <class T>
constexpr int kUnit = 16 / static_cast<int>(sizeof(T));

template <class T>
union Unit {
  uint4 bits;
  uint32_t words[4];
  T elements[kUnit<T>];
  __device__ Unit() {}
};

// The arithmetic of functions for results of type T: results of 16 bits need less precision.
template <class T>
using MathFor = std::conditional_t<sizeof(T) == 4, Accurate, Quick>;

template <class T>
__device__ inline void unpack(const Unit<T>& unit, float (&x)[kUnit<T>]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      x[2 * word] = __uint_as_float(unit.words[word] << 16);
      x[2 * word + 1] = __uint_as_float(unit.words[word] & 0xffff0000u);
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(unit.words[word]));
      x[2 * word] = pair.x, x[2 * word + 1] = pair.y;
    } else {
      x[word] = __uint_as_float(unit.words[word]);
    }
  }
}
template <class T>
__device__ inline void pack(const float (&x)[kUnit<T>], Unit<T>& unit) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      reinterpret_cast<__nv_bfloat162&>(unit.words[word]) = __floats2bfloat162_rn(x[2 * word], x[2 * word + 1]);
    else if constexpr (std::is_same_v<T, __half>)
      reinterpret_cast<__half2&>(unit.words[word]) = __floats2half2_rn(x[2 * word], x[2 * word + 1]);
    else
      unit.words[word] = __float_as_uint(x[word]);
  }
}

// The number of elements from the last multiple of 16 bytes to an address.
template <class T>
__device__ int misaligned(const T* pointer) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(pointer) % 16 / sizeof(T));
}

// The units of memory inside a tensor: `bytes` from the first unit's address to the last unit's. If there are none,
// `first` is above all addresses.
struct WholeUnits {
  uintptr_t first = UINTPTR_MAX, bytes = 0;

  WholeUnits() = default;
  template <class T>
  LFM2_HOST_DEVICE WholeUnits(const T* begin, const T* end) {
    first = (reinterpret_cast<uintptr_t>(begin) + 15) / 16 * 16;
    const uintptr_t last = reinterpret_cast<uintptr_t>(end) / 16 * 16;
    if (last > first)
      bytes = last - first - 16;
    else
      first = UINTPTR_MAX;
  }
  // holds() tests the unit at an aligned address, holds_two() the unit that contains an address and the next unit.
  template <class T>
  __device__ bool holds(const T* unit) const {
    return reinterpret_cast<uintptr_t>(unit) - first <= bytes;
  }
  template <class T>
  __device__ bool holds_two(const T* element) const {
    return reinterpret_cast<uintptr_t>(element) / 16 * 16 - first < bytes;
  }
};

// Copies 16 aligned bytes to shared memory without going through a register. They can be read after wait_for_copies()
// and a barrier.
__device__ inline void copy_unit(uint4* shared, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(from)
      : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A unit of adjacent elements at any address. It is read in two steps, fetch() and get(). fetch() waits for no load, so
// that a thread issues all its loads before it uses one.
template <class T>
class Shifted {
 public:
  // Elements `first` to `last` - 1 of the unit at `from` exist. `inside`: the unit of memory in which it begins, and
  // the next one, lie inside the tensor.
  __device__ void fetch(const T* from, int first, int last, bool inside) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kUnit<T>; ++i)
        if (i >= first && i < last) low_.elements[i] = from[i];
    } else {
      from_ = from;
      inside_ = inside;
      if (inside_) {
        const auto* base = reinterpret_cast<const uint4*>(from - misaligned<T>(from));
        low_.bits = base[0];
        high_.bits = base[1];
      }
    }
  }
  __device__ Unit<T> get(int first, int last) const {
    if constexpr (sizeof(T) == 4) {
      return low_;
    } else {
      Unit<T> unit;
      if (inside_) {  // selects five of the eight words, then shifts them by half a word if needed
        const int elements = misaligned<T>(from_);
        const bool by_four = (elements & 4) != 0, by_two = (elements & 2) != 0;
        const uint4 low = low_.bits, high = high_.bits;
        uint32_t a[6] = {by_four ? low.z : low.x,  by_four ? low.w : low.y,   by_four ? high.x : low.z,
                         by_four ? high.y : low.w, by_four ? high.z : high.x, by_four ? high.w : high.y};
#pragma unroll
        for (int i = 0; i < 5; ++i) a[i] = by_two ? a[i + 1] : a[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) unit.words[i] = __funnelshift_r(a[i], a[i + 1], elements % 2 * 16);
      } else {
#pragma unroll
        for (int i = 0; i < kUnit<T>; ++i)
          if (i >= first && i < last) unit.elements[i] = from_[i];
      }
      return unit;
    }
  }

 private:
  const T* from_;
  bool inside_;
  Unit<T> low_, high_;
};

// A walk as a kernel's parameter. The innermost loop counts steps of `group` elements, so that a thread can process a
// unit.
template <int kOperands>
struct Loops {
  int rank;
  Divider steps[kMaxRank];  // the number of steps of each loop; the innermost counts groups
  int64_t inner;            // elements of the innermost loop
  int64_t strides[kOperands][kMaxRank];

  Loops(const Walk<kOperands>& walk, int group) : rank(walk.rank), inner(walk.rank > 0 ? walk.dims[0] : 1) {
    for (int loop = 0; loop < kMaxRank; ++loop) {
      steps[loop] = Divider(loop < rank ? (loop == 0 ? ceil_divide(walk.dims[0], group) : walk.dims[loop]) : 1);
      for (int operand = 0; operand < kOperands; ++operand)
        strides[operand][loop] = loop < rank ? walk.strides[operand][loop] : 0;
    }
  }
  int64_t count() const {
    int64_t steps_in_all = 1;
    for (int loop = 0; loop < rank; ++loop) steps_in_all *= steps[loop].divisor;
    return steps_in_all;
  }

  // Finds the positions of step `ordinal`, and returns the index of its first element in the innermost loop. Index is
  // int64_t or, for fewer than 2^31 steps, the faster uint32_t.
  template <class Index>
  __device__ int64_t find(Index ordinal, int group, int64_t (&positions)[kOperands]) const {
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand) positions[operand] = 0;
    if (rank == 0) return 0;
    Index place = ordinal;
    if (rank > 1) {
      Index rest = steps[0].quotient(ordinal);
      place = ordinal - rest * static_cast<Index>(steps[0].divisor);
#pragma unroll 1
      for (int loop = 1; loop < rank; ++loop) {
        Index index = rest;
        if (loop + 1 < rank) {
          rest = steps[loop].quotient(index);
          index -= rest * static_cast<Index>(steps[loop].divisor);
        }
#pragma unroll
        for (int operand = 0; operand < kOperands; ++operand) positions[operand] += index * strides[operand][loop];
      }
    }
    const int64_t first = static_cast<int64_t>(place) * group;
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand) positions[operand] += first * strides[operand][0];
    return first;
  }
};

constexpr int64_t kSmall = int64_t{1} << 31;

// Whether the operand has stride 1 in the innermost loop and every unit of the walk is aligned to 16 bytes.
template <int kOperands>
bool in_units(const Walk<kOperands>& walk, int operand, const void* data, int unit, size_t size) {
  if (walk.rank == 0 || walk.strides[operand][0] != 1) return false;
  for (int loop = 1; loop < walk.rank; ++loop)
    if (walk.strides[operand][loop] % unit != 0) return false;
  return on_bytes(static_cast<const std::byte*>(data) + walk.start[operand] * static_cast<int64_t>(size), 16);
}

}  // namespace lfm2::operators::gpu
