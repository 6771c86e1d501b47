// Depthwise causal convolution over time, in two formulations.
#pragma once

#include "operators/functions.h"
#include "operators/tensor_view.h"

namespace lfm2::operators {

// Computes `y[n, c, t] = activation(bias[c] + sum over j of w[c, j] x[n, c, t - (filter - 1) + j])`, where x is 0
// before time 0. Both x and y are [samples, channels, time] with any strides (channels-last is a view), w is [channels,
// filter] with filter >= 1, and bias is [channels] or null. All have one dtype and device. Sums are fp32, in the order
// of j, and rounded once. The output y must not overlap x. The model uses the activations kNone and kSilu; the others
// work, too.
Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream);

// The second formulation is a matrix product of the results of the next two functions. This one transposes, pads and
// unfolds x in one pass: `unfolded[n, t, j channels + c] = x[n, c, t - (filter - 1) + j]`, and 0 before time 0. The
// shape of x is [samples, channels, time], that of unfolded [samples, time, filter channels]; both are dense.
Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream);
// Writes `expanded[c, j channels + d] = w[c, j]` if c = d, else 0. The shape of w is [channels, filter], that of
// expanded [channels, filter channels].
Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream);

// Computes the same convolution by unfold, expand, matmul and bias; x, w, bias and y must be dense. `workspace` has
// causal_conv1d_gemm_workspace() bytes, aligned to 16 bytes, on both devices.
Status causal_conv1d_gemm(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                          Activation activation, void* workspace, size_t workspace_bytes, void* stream);
Status causal_conv1d_gemm_workspace(const TensorView& x, const TensorView& w, size_t& bytes);

}  // namespace lfm2::operators
