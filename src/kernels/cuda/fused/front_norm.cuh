// rms_norm before a skinny product: every block norms all rows itself, and keeps them in shared memory, where its warps
// read them piece by piece. For norm_matmul.cu, norm_project_short_conv.cu and norm_route_swiglu.cu.
//
// The bits are those of rms_norm: the order of a row's sum is that of row_types.cuh.
#pragma once

#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/fused/skinny_fp8.cuh"
#include "kernels/cuda/rows/row_types.cuh"

namespace lfm2::skinny {

// Each warp of the block computes one tree of every row's sum, and a lane has one octet of every row. Warps that
// neither multiply nor load end after the norm.
constexpr int kNormThreads = kMaxTrees * 32;
constexpr int kNormBytes = kRowGroup * kMaxTrees * static_cast<int>(sizeof(float));  // static shared memory

inline int kept_row_bytes(int64_t rows, int64_t k) {
  return static_cast<int>(rows * ceil_divide(k, kDepth) * kRowBytes);
}
// The layout of a block that keeps all `rows` rows of a.
inline Layout layout_with_kept(int tiles, int64_t rows, int64_t k, Share share) {
  Layout layout = layout_of(tiles, 0, k, share.without(kept_row_bytes(rows, k)));
  layout.kept_rows = static_cast<int>(rows);
  return layout;
}

// The address of an octet of the `rows` rows that the block keeps, in the layout that PieceAddresses reads.
__device__ inline uint32_t kept_octet(uint32_t kept, int rows, int row, int octet) {
  constexpr int kPieceOctets = kDepth / kOctet;
  return kept + (octet / kPieceOctets * rows + row) * kRowBytes + (octet % kPieceOctets ^ row % 8) * 16;
}

// A thread's octets of the rows that the block keeps.
struct KeptOctets {
  uint32_t kept;
  int rows, octets;  // the octets of a whole row

  __device__ bool is_there() const { return static_cast<int>(threadIdx.x) < octets; }
  __device__ uint32_t address(int row) const { return kept_octet(kept, rows, row, static_cast<int>(threadIdx.x)); }
};

// Norms the rows in place, once each thread's own octets have arrived. All threads of the block call this. Afterwards
// every warp may read the rows.
template <class T>
__device__ __forceinline__ void norm_rows_in_line(const KeptOctets& own, uint4 scale, float eps) {
  constexpr int kTogether = 2;  // rows that a thread has in registers at once
  static_assert(Packed<T>::kWords == 1);
  __shared__ float trees[kRowGroup][kMaxTrees];
  const int lane = static_cast<int>(threadIdx.x % 32), tree = static_cast<int>(threadIdx.x / 32);
  const auto load = [&](int first, Packed<T>(&x)[kTogether]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      x[i].words[0] = load_shared_if(first + i < own.rows && own.is_there(), own.address(first + i));
  };
#pragma unroll 1
  for (int first = 0; first < own.rows; first += kTogether) {
    Packed<T> x[kTogether];
    float squares[kTogether];
    load(first, x);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) squares[i] = warp_sum(add_squares(0, unpack(x[i])));
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (lane == 0 && first + i < own.rows) trees[first + i][tree] = squares[i];
  }
  __syncwarp();
  block_barrier();
  float factors = 0;  // lane l has that of row l
  if (lane < own.rows) {
#pragma unroll
    for (int i = 0; i < kMaxTrees; ++i) factors += trees[lane][i];
    factors = rms_factor(factors, own.octets * kOctet, eps);
  }
#pragma unroll 1
  for (int first = 0; first < own.rows; first += kTogether) {
    Packed<T> x[kTogether];
    load(first, x);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float factor = __shfl_sync(kAllLanes, factors, first + i);
      x[i] = pack<T>(scaled(unpack(x[i]), factor, unpack(Packed<T>{{scale}})));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (first + i < own.rows && own.is_there()) store_shared(own.address(first + i), x[i].words[0]);
  }
  __syncwarp();
  block_barrier();
}
// The same for warps that come from different places. They share one copy of this code, because no copy is in the
// caches when the wait ends.
template <class T>
__device__ __noinline__ void norm_kept_rows(KeptOctets own, uint4 scale, float eps) {
  norm_rows_in_line<T>(own, scale, eps);
}

// One warp rounds a row that the block keeps.
template <class T>
__device__ __forceinline__ void round_kept_row(const Fp8Rows& rows, int row, uint32_t kept, int kept_rows, int k) {
  round_row<T>(rows, row, k,
               [&](int column) { return Packed<T>{{load_shared(kept_octet(kept, kept_rows, row, column / kOctet))}}; });
}

// Rounds all of them. All threads of the block call this, from different places.
template <class T>
__device__ __noinline__ void round_kept_rows(Fp8Rows rows, uint32_t kept, int kept_rows, int k) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kept_rows) round_kept_row<T>(rows, warp, kept, kept_rows, k);
  fence_proxy_async();
  __syncwarp();
  block_barrier();
}

template <class T>
class FrontNorm {
 public:
  // Loads the weights, which no kernel writes. They are not converted yet, because nothing may wait for them.
  __device__ FrontNorm(const GemmArgs& product, const FrontNormArgs& norm, const Layout& layout, const Block& block)
      : x_(static_cast<const uint4*>(product.a)),
        eps_(norm.eps),
        own_{block.kept, layout.kept_rows, static_cast<int>(product.k) / kOctet},
        kept_octets_(block.pieces * kDepth / kOctet),
        scale_(static_cast<const uint4*>(norm.weight.data)[own_.is_there() ? threadIdx.x : 0]) {}

  // After the wait: copies the thread's octets in the background, as one group of copies.
  __device__ void start() const {
    if (static_cast<int>(threadIdx.x) < kept_octets_) {
#pragma unroll 1
      for (int row = 0; row < own_.rows; ++row)  // beyond the end of a row there are zeros, as in w
        copy_async(own_.address(row), x_ + (own_.is_there() ? row * own_.octets + static_cast<int>(threadIdx.x) : 0),
                   own_.is_there());
    }
    commit_copies();
  }
  // Call this once they have arrived; all threads of the block.
  __device__ void finish() const {
    __syncwarp();
    norm_kept_rows<T>(own_, scale_, eps_);
  }
  // Both, if nothing is done meanwhile.
  __device__ void run() const {
    start();
    wait_copies<0>();
    finish();
  }
  // finish() for threads that all come from one place and keep much in registers.
  __device__ __forceinline__ void finish_in_line() const {
    __syncwarp();
    norm_rows_in_line<T>(own_, scale_, eps_);
  }

 private:
  const uint4* x_;
  float eps_;
  KeptOctets own_;
  int kept_octets_;  // up to the end of a row's last piece
  uint4 scale_;
};

}  // namespace lfm2::skinny
