// causal_conv1d: its checks, the CPU's loops, and the formulation as a matrix product.
#include "operators/causal_conv1d.h"

#include <algorithm>

#include "operators/bias.h"
#include "operators/gpu.h"
#include "operators/map_zip.h"
#include "operators/matmul.h"

namespace lfm2::operators {

namespace {

Status check_conv(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                  Activation activation) {
  if (!is_known(activation)) return Status::kInvalid;
  STATUS_CHECK(check_view(x));
  STATUS_CHECK(check_view(w));
  STATUS_CHECK(check_output(y));
  if (x.rank != 3 || w.rank != 2 || y.rank != 3 || !same_kind(x, y) || !same_kind(w, y) || w.dim(1) < 1)
    return Status::kInvalid;
  if (bias != nullptr) {
    STATUS_CHECK(check_view(*bias));
    if (bias->rank != 1 || !same_kind(*bias, y)) return Status::kInvalid;
  }
  const bool fit = same_shape(x, y) && w.dim(0) == x.dim(1) && (bias == nullptr || bias->dim(0) == x.dim(1));
  return fit ? Status::kOk : Status::kShapeMismatch;
}

template <class T>
void convolve_on_cpu(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation) {
  const int64_t filter = w.dim(1);
  for (int64_t n = 0; n < x.dim(0); ++n) {
    for (int64_t c = 0; c < x.dim(1); ++c) {
      const T* in = static_cast<const T*>(x.data) + n * x.stride(0) + c * x.stride(1);
      const T* taps = static_cast<const T*>(w.data) + c * w.stride(0);
      T* out = static_cast<T*>(y.data) + n * y.stride(0) + c * y.stride(1);
      const float shift = bias == nullptr ? 0.0f : to_float(static_cast<const T*>(bias->data)[c * bias->stride(0)]);
      for (int64_t t = 0; t < x.dim(2); ++t) {
        float sum[1] = {0};
        for (int64_t j = std::max<int64_t>(0, filter - 1 - t); j < filter; ++j)
          sum[0] += to_float(taps[j * w.stride(1)]) * to_float(in[(t - (filter - 1) + j) * x.stride(2)]);
        sum[0] += shift;
        apply(activation, sum);
        out[t * y.stride(2)] = from_float<T>(sum[0]);
      }
    }
  }
}

// Copies elements as bits. T is int16_t or int32_t.
template <class T>
void unfold_on_cpu(const TensorView& x, int64_t filter, const TensorView& unfolded) {
  const int64_t channels = x.dim(1), time = x.dim(2);
  auto* out = static_cast<T*>(unfolded.data);
  for (int64_t n = 0; n < x.dim(0); ++n)
    for (int64_t t = 0; t < time; ++t)
      for (int64_t j = 0; j < filter; ++j)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t from = t - (filter - 1) + j;
          *out++ = from < 0 ? T{0} : static_cast<const T*>(x.data)[(n * channels + c) * time + from];
        }
}

template <class T>
void expand_on_cpu(const TensorView& w, const TensorView& expanded) {
  const int64_t channels = w.dim(0), filter = w.dim(1);
  auto* out = static_cast<T*>(expanded.data);
  std::fill(out, out + expanded.numel(), T{0});
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t j = 0; j < filter; ++j)
      out[(c * filter + j) * channels + c] = static_cast<const T*>(w.data)[c * filter + j];
}

// Calls f(T{}) with an integer of the element's size.
template <class F>
void with_bits(DType dtype, F&& f) {
  if (size_bytes(dtype) == 2)
    f(int16_t{});
  else
    f(int32_t{});
}

Status check_pair(const TensorView& in, int in_rank, const TensorView& out, int out_rank) {
  STATUS_CHECK(check_view(in));
  STATUS_CHECK(check_view(out));
  const bool fine = in.rank == in_rank && out.rank == out_rank && is_dense(in) && is_dense(out) && same_kind(in, out);
  return fine ? Status::kOk : Status::kInvalid;
}

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Status causal_conv1d(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                     Activation activation, void* stream) {
  STATUS_CHECK(check_conv(x, w, bias, y, activation));
  if (y.numel() == 0) return Status::kOk;
  if (y.on_gpu()) return gpu::causal_conv1d(x, w, bias, y, activation, stream);
  with_float_type(y.dtype, [&](auto zero) { convolve_on_cpu<decltype(zero)>(x, w, bias, y, activation); });
  return Status::kOk;
}

Status causal_conv1d_unfold(const TensorView& x, int64_t filter, const TensorView& unfolded, void* stream) {
  STATUS_CHECK(check_pair(x, 3, unfolded, 3));
  if (filter < 1) return Status::kInvalid;
  if (unfolded.dim(0) != x.dim(0) || unfolded.dim(1) != x.dim(2) ||
      (x.dim(1) > 0 ? unfolded.dim(2) % x.dim(1) != 0 || unfolded.dim(2) / x.dim(1) != filter : unfolded.dim(2) != 0))
    return Status::kShapeMismatch;
  if (unfolded.numel() == 0) return Status::kOk;
  if (x.on_gpu()) return gpu::causal_conv1d_unfold(x, filter, unfolded, stream);
  with_bits(x.dtype, [&](auto zero) { unfold_on_cpu<decltype(zero)>(x, filter, unfolded); });
  return Status::kOk;
}

Status causal_conv1d_expand(const TensorView& w, const TensorView& expanded, void* stream) {
  STATUS_CHECK(check_pair(w, 2, expanded, 2));
  if (w.dim(1) < 1) return Status::kInvalid;
  if (expanded.dim(0) != w.dim(0) ||
      (w.dim(0) > 0 ? expanded.dim(1) % w.dim(0) != 0 || expanded.dim(1) / w.dim(0) != w.dim(1) : expanded.dim(1) != 0))
    return Status::kShapeMismatch;
  if (expanded.numel() == 0) return Status::kOk;
  if (w.on_gpu()) return gpu::causal_conv1d_expand(w, expanded, stream);
  with_bits(w.dtype, [&](auto zero) { expand_on_cpu<decltype(zero)>(w, expanded); });
  return Status::kOk;
}

Status causal_conv1d_gemm_workspace(const TensorView& x, const TensorView& w, size_t& bytes) {
  STATUS_CHECK(check_view(x));
  STATUS_CHECK(check_view(w));
  if (x.rank != 3 || w.rank != 2 || w.dim(1) < 1) return Status::kInvalid;
  if (x.numel() > 0 && w.dim(1) > (int64_t{1} << 59) / x.numel()) return Status::kInvalid;
  if (w.numel() > 0 && x.dim(1) > (int64_t{1} << 59) / w.numel()) return Status::kInvalid;
  const auto size = static_cast<int64_t>(size_bytes(x.dtype));
  bytes = rounded_up(static_cast<size_t>(x.numel() * w.dim(1) * size)) +
          rounded_up(static_cast<size_t>(w.numel() * x.dim(1) * size));
  return Status::kOk;
}

Status causal_conv1d_gemm(const TensorView& x, const TensorView& w, const TensorView* bias, const TensorView& y,
                          Activation activation, void* workspace, size_t workspace_bytes, void* stream) {
  STATUS_CHECK(check_conv(x, w, bias, y, activation));
  if (!is_dense(x) || !is_dense(w) || !is_dense(y) || (bias != nullptr && !is_dense(*bias))) return Status::kInvalid;
  size_t needed = 0;
  STATUS_CHECK(causal_conv1d_gemm_workspace(x, w, needed));
  if (y.numel() == 0) return Status::kOk;
  if (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0 || workspace_bytes < needed)
    return Status::kInvalid;
  const int64_t samples = x.dim(0), channels = x.dim(1), time = x.dim(2), filter = w.dim(1), wide = filter * channels;
  auto* memory = static_cast<std::byte*>(workspace);
  const TensorView unfolded(memory, x.dtype, {samples, time, wide}, x.device);
  const auto unfolded_bytes = static_cast<size_t>(unfolded.numel()) * size_bytes(x.dtype);
  const TensorView expanded(memory + rounded_up(unfolded_bytes), x.dtype, {channels, wide}, x.device);
  STATUS_CHECK(causal_conv1d_unfold(x, filter, unfolded, stream));
  STATUS_CHECK(causal_conv1d_expand(w, expanded, stream));
  TensorView transposed = unfolded;  // [samples, filter channels, time]
  std::swap(transposed.dims[1], transposed.dims[2]);
  std::swap(transposed.strides[1], transposed.strides[2]);
  STATUS_CHECK(matmul(expanded, transposed, y, stream));
  const TensorView rows(y.data, y.dtype, {samples * channels, time}, y.device);
  if (bias != nullptr) return operators::bias(rows, *bias, rows, {channels}, activation, stream);
  switch (activation) {
    case Activation::kNone:
    case Activation::kCount:
      break;
    case Activation::kRelu:
      return map(UnaryFunction::kRelu, rows, rows, stream);
    case Activation::kSilu:
      return map(UnaryFunction::kSilu, rows, rows, stream);
    case Activation::kGelu:
      return map(UnaryFunction::kGelu, rows, rows, stream);
  }
  return Status::kOk;
}

}  // namespace lfm2::operators
