// Turns a thread's sums of planes' products into output: computes doubtful sums again, then bias, SwiGLU, addition. For
// gemm_bf16x3_wgmma.cu.
#pragma once

#include <type_traits>

#include "kernels/cuda/gemm/gemm_bf16x3.cuh"
#include "kernels/cuda/gemm/gemm_bf16x3_wgmma_tiles.cuh"

namespace lfm2::bf16x3 {

template <class B, int size>
__device__ void add_bias(const B* bias, int columns, float (&sums)[size]) {
#pragma unroll
  for (int j = 0; j < size / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = j * 8 < columns ? to_f32(bias[j * 8 + i]) : 0;
      sums[j * 4 + i] += x;
      sums[j * 4 + i + 2] += x;
    }
}

// Writes a thread's sums. They are 16 pieces of 8 columns; of each the thread has two neighbouring columns in two rows,
// 8 apart. row0 and column0 are the first row and the first column.
template <bool float_weights>
__device__ void finish(const GemmArgs& args, const ClusterTileCoord& place, int row0, int column0,
                       float (&sums)[kSums]) {
  using W = std::conditional_t<float_weights, float, __nv_bfloat16>;
  const int n = static_cast<int>(args.n), columns = n - column0;
  redo_doubtful<W>(args, place.group, SumPlaces<kColumns / 8>{row0, place.end_row, column0}, sums);
  if (args.bias.data != nullptr)
    with_elements(args.bias, [&](const auto* bias) { add_bias(bias + column0, columns, sums); });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = row0 + half * 8;
    if (row >= place.end_row) continue;
    if (args.epilogue == Epilogue::kSwiglu) {
      float* out = static_cast<float*>(args.out) + row * (n / 2) + column0 / 16 * 8 + column0 % 8;
#pragma unroll
      for (int j = 0; j < kSums / 8; ++j) {
        const float* gate = sums + j * 8 + half * 2;
        const float* up = gate + 4;
        if (j * 16 < columns)
          *reinterpret_cast<float2*>(out + j * 8) = {swiglu(gate[0], up[0]), swiglu(gate[1], up[1])};
      }
      continue;
    }
    float* out = static_cast<float*>(args.out) + row * n + column0;
    constexpr int kTogether = 8;  // number of loads in flight
#pragma unroll
    for (int first = 0; first < kSums / 4; first += kTogether) {
      if (args.epilogue == Epilogue::kAdd) {
        float2 old[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
          old[j] = (first + j) * 8 < columns ? *reinterpret_cast<const float2*>(out + (first + j) * 8) : float2{};
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          sums[(first + j) * 4 + half * 2] += old[j].x;
          sums[(first + j) * 4 + half * 2 + 1] += old[j].y;
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if ((first + j) * 8 < columns)
          *reinterpret_cast<float2*>(out + (first + j) * 8) = {sums[(first + j) * 4 + half * 2],
                                                               sums[(first + j) * 4 + half * 2 + 1]};
    }
  }
}

}  // namespace lfm2::bf16x3
