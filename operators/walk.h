// The order in which operators walk through strided tensors: a few loops, innermost first. Loops of one step are
// dropped, and loops that continue each other are joined. The host plans a walk, and kernels get it as a parameter.
#pragma once

#include <cstdint>
#include <utility>

#include "base/host_device.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// n / d without a division, for 0 <= n < 2^63 and 1 <= d < 2^62. With s = ceil(log2 d) and m = ceil(2^(63 + s) / d), m
// d exceeds 2^(63 + s) by less than d <= 2^s, so floor(n m / 2^(63 + s)) is the quotient.
struct Divider {
  uint64_t magic = 0;
  int64_t divisor = 1;
  uint32_t small_magic = 0;  // the same for n < 2^31, with 31 in place of 63
  int shift = 0;             // s - 1

  Divider() = default;
  explicit Divider(int64_t d) : divisor(d) {
    if (d <= 1) return;
    int s = 0;
    while ((int64_t{1} << s) < d) ++s;
    shift = s - 1;
    // This is ceil(2^(63 + s) / d) by long division: first 2^s / d, which is below 2.
    uint64_t rest = static_cast<uint64_t>(1) << s, quotient = 0;
    const auto by = static_cast<uint64_t>(d);
    for (int bit = 0; bit < 64; ++bit) {
      quotient = quotient << 1 | (rest >= by ? 1u : 0u);
      if (rest >= by) rest -= by;
      if (bit < 63) rest <<= 1;
    }
    magic = quotient + (rest != 0 ? 1 : 0);
    if (d < (int64_t{1} << 31)) small_magic = static_cast<uint32_t>(((uint64_t{1} << (31 + s)) + by - 1) / by);
  }

  LFM2_HOST_DEVICE int64_t quotient(int64_t n) const {
    if (divisor == 1) return n;
#ifdef __CUDA_ARCH__
    return static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(n), magic) >> shift);
#else
    return n / divisor;
#endif
  }
  // The same for n and a divisor below 2^31.
  LFM2_HOST_DEVICE uint32_t quotient(uint32_t n) const {
    if (divisor == 1) return n;
#ifdef __CUDA_ARCH__
    return __umulhi(n, small_magic) >> shift;
#else
    return static_cast<uint32_t>(n / divisor);
#endif
  }
};

// Loops over `rank` extents, dims[0] the innermost, by `operands` tensors. Positions are in elements.
template <int kOperands>
struct Walk {
  int rank = 0;
  int64_t dims[kMaxRank] = {};
  int64_t strides[kOperands][kMaxRank] = {};
  int64_t start[kOperands] = {};  // position of the walk's first element; not 0 if a loop runs backwards

  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
};

// Adds the loop of one axis, outside all others.
template <int kOperands>
void add_loop(Walk<kOperands>& walk, int64_t extent, const int64_t (&strides)[kOperands]) {
  if (extent == 1) return;
  walk.dims[walk.rank] = extent;
  for (int i = 0; i < kOperands; ++i) walk.strides[i][walk.rank] = strides[i];
  ++walk.rank;
}

// Reverses loops in which operand 0 runs backwards, sorts loops by operand 0's stride (stride 0 is outermost), and
// joins loops that continue each other in every operand. The set of index tuples stays the same.
template <int kOperands>
void tidy(Walk<kOperands>& walk) {
  const auto magnitude = [](int64_t x) { return x < 0 ? -x : x; };
  for (int i = 0; i < walk.rank; ++i) {
    if (walk.strides[0][i] >= 0) continue;
    for (int operand = 0; operand < kOperands; ++operand) {
      walk.start[operand] += walk.strides[operand][i] * (walk.dims[i] - 1);
      walk.strides[operand][i] = -walk.strides[operand][i];
    }
  }
  const auto before = [&](int a, int b) {  // whether loop a belongs inside loop b
    for (int operand = 0; operand < kOperands; ++operand) {
      const int64_t x = magnitude(walk.strides[operand][a]), y = magnitude(walk.strides[operand][b]);
      if (x != y) return y == 0 || (x != 0 && x < y);
    }
    return false;
  };
  const auto exchange = [&](int a, int b) {
    const auto swap = [](int64_t& x, int64_t& y) {
      const int64_t kept = x;
      x = y;
      y = kept;
    };
    swap(walk.dims[a], walk.dims[b]);
    for (int operand = 0; operand < kOperands; ++operand) swap(walk.strides[operand][a], walk.strides[operand][b]);
  };
  for (int i = 1; i < walk.rank; ++i)
    for (int j = i; j > 0 && before(j, j - 1); --j) exchange(j, j - 1);
  int last = 0;
  for (int i = 1; i < walk.rank; ++i) {
    bool continues = true;
    for (int operand = 0; operand < kOperands; ++operand)
      continues = continues && walk.strides[operand][i] == walk.strides[operand][last] * walk.dims[last];
    if (continues) {
      walk.dims[last] *= walk.dims[i];
      continue;
    }
    ++last;
    walk.dims[last] = walk.dims[i];
    for (int operand = 0; operand < kOperands; ++operand) walk.strides[operand][last] = walk.strides[operand][i];
  }
  if (walk.rank > 0) walk.rank = last + 1;
}

// The two halves of a walk of at least two steps, cut in the outermost loop with several steps. If that is the
// innermost loop, the first half has whole units of `unit` elements.
template <int kOperands>
std::pair<Walk<kOperands>, Walk<kOperands>> halves(const Walk<kOperands>& walk, int unit) {
  int outer = walk.rank - 1;
  while (walk.dims[outer] == 1) --outer;
  const int64_t grain = outer == 0 ? unit : 1;
  const int64_t half = (walk.dims[outer] / 2 + grain - 1) / grain * grain;
  Walk<kOperands> first = walk, second = walk;
  first.dims[outer] = half;
  second.dims[outer] -= half;
  for (int i = 0; i < kOperands; ++i) second.start[i] += walk.strides[i][outer] * half;
  return {first, second};
}

// For every step of the outer loops, calls f with each operand's position of the innermost loop's first element.
template <int kOperands, class F>
void for_each_row(const Walk<kOperands>& walk, F&& f) {
  if (walk.numel() == 0) return;
  int64_t positions[kOperands], index[kMaxRank] = {};
  for (int operand = 0; operand < kOperands; ++operand) positions[operand] = walk.start[operand];
  while (true) {
    f(positions);
    int loop = 1;
    for (; loop < walk.rank; ++loop) {
      if (++index[loop] < walk.dims[loop]) {
        for (int operand = 0; operand < kOperands; ++operand) positions[operand] += walk.strides[operand][loop];
        break;
      }
      index[loop] = 0;
      for (int operand = 0; operand < kOperands; ++operand)
        positions[operand] -= walk.strides[operand][loop] * (walk.dims[loop] - 1);
    }
    if (loop >= walk.rank) return;
  }
}

}  // namespace lfm2::operators
