// Depthwise causal convolution over time, in two formulations.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// y[n, c, t] = activation(bias[c] + sum over j of w[c, j] x[n, c, t - (filter - 1) + j]), where x is 0 before time 0.
// x, y: [samples, channels, time], any strides (channels-last is a view); w: [channels, filter], filter >= 1; bias:
// [channels] or null. One dtype and device; fp32 sums, j ascending, rounded once. y must not overlap x. activation:
// kNone or kSilu (the others work too).
Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream);

// The parts of the second formulation: a matrix product of what these two make.
// unfolded[n, t, j channels + c] = x[n, c, t - (filter - 1) + j], 0 before time 0: transposed, padded and unfolded in
// one pass. x: [samples, channels, time]; unfolded: [samples, time, filter channels]; dense.
Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream);
// expanded[c, j channels + d] = w[c, j] where c = d, else 0. w: [channels, filter]; expanded: [channels, filter
// channels].
Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream);

// The same result by way of unfold, expand, matmul and bias; x, w, bias, y dense. On both devices `workspace` needs
// causal_conv1d_gemm_workspace() bytes, on 16 bytes.
Status causal_conv1d_gemm(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                          Activation activation, void* workspace, size_t workspace_bytes, void* stream);
Status causal_conv1d_gemm_workspace(const TensorView& x, const TensorView& w, size_t& bytes);

}  // namespace lfm2::operators
