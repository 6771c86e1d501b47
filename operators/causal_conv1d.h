// Depthwise causal convolution over time, in two formulations.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// y[n, c, t] = activation(bias[c] + sum over j of w[c, j] x[n, c, t - (filter - 1) + j]), where x is 0 before time 0. x
// and y are [samples, channels, time] with any strides (channels-last is a view), w is [channels, filter] with filter
// >= 1, and bias is [channels] or null. All have one dtype and device. Sums are fp32, in the order of j, and rounded
// once. y must not overlap x. The activation is kNone or kSilu; the others work, too.
Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream);

// The second formulation is a matrix product of what the next two functions make. unfolded[n, t, j channels + c] = x[n,
// c, t - (filter - 1) + j], and 0 before time 0: transposed, padded and unfolded in one pass. x is [samples, channels,
// time], unfolded [samples, time, filter channels]; both are dense.
Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream);
// expanded[c, j channels + d] = w[c, j] where c = d, else 0. w is [channels, filter], expanded [channels, filter
// channels].
Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream);

// Gives the same result by way of unfold, expand, matmul and bias; x, w, bias and y must be dense. `workspace` has
// causal_conv1d_gemm_workspace() bytes, on 16 bytes, on both devices.
Status causal_conv1d_gemm(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                          Activation activation, void* workspace, size_t workspace_bytes, void* stream);
Status causal_conv1d_gemm_workspace(const TensorView& x, const TensorView& w, size_t& bytes);

}  // namespace lfm2::operators
