// The C API: converts arguments and catches all exceptions.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lfm2_kernels.h"
#include "operators/bias.h"
#include "operators/causal_conv1d.h"
#include "operators/concat.h"
#include "operators/gpu.h"
#include "operators/map_zip.h"
#include "operators/matmul.h"
#include "operators/reduce.h"

namespace {

using namespace lfm2;
using namespace lfm2::operators;

static_assert(LFM2_MAX_RANK == kMaxRank && LFM2_CPU == kCpu);
static_assert(static_cast<int>(DType::kF32) == LFM2_FP32 && static_cast<int>(DType::kBf16) == LFM2_BF16 &&
              static_cast<int>(DType::kF16) == LFM2_FP16);
static_assert(static_cast<int>(UnaryFunction::kGelu) == LFM2_MAP_GELU &&
              static_cast<int>(UnaryFunction::kTanh) == LFM2_TANH && static_cast<int>(BinaryFunction::kNe) == LFM2_NE &&
              static_cast<int>(BinaryFunction::kLt) == LFM2_LT &&
              static_cast<int>(ReduceFunction::kMean) == LFM2_MEAN && static_cast<int>(Activation::kGelu) == LFM2_GELU);
static_assert(static_cast<int>(Status::kCudaError) == LFM2_CUDA_ERROR &&
              static_cast<int>(Status::kNoCuda) == LFM2_NO_CUDA &&
              static_cast<int>(Status::kNoMemory) == LFM2_NO_MEMORY &&
              static_cast<int>(Status::kTooLarge) == LFM2_TOO_LARGE);

// The view of a tensor. A null pointer or a value out of range becomes a view that every check refuses.
TensorView view_of(const lfm2_tensor* tensor) {
  TensorView view;
  view.rank = -1;
  if (tensor == nullptr || tensor->dtype < LFM2_FP32 || tensor->dtype > LFM2_FP16) return view;
  view.data = tensor->data;
  view.dtype = static_cast<DType>(tensor->dtype);
  view.device = tensor->device;
  view.rank = tensor->rank;
  for (size_t axis = 0; axis < kMaxRank; ++axis) {
    view.dims[axis] = tensor->dims[axis];
    view.strides[axis] = tensor->strides[axis];
  }
  return view;
}

// The views of `n` tensors. A few of them need no allocation.
class Views {
 public:
  Views(const lfm2_tensor* tensors, int64_t n) {
    if (tensors == nullptr || n < 1) return;
    views_ = few_;
    if (n > kFew) views_ = many_ = new TensorView[static_cast<size_t>(n)];
    for (int64_t i = 0; views_ != nullptr && i < n; ++i) views_[i] = view_of(tensors + i);
  }
  ~Views() { delete[] many_; }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  const TensorView* get() const { return views_; }

 private:
  static constexpr int64_t kFew = 16;
  TensorView few_[kFew];
  TensorView* views_ = nullptr;
  TensorView* many_ = nullptr;
};

// Runs an operator and turns exceptions into a status, because a C function must not throw.
template <class F>
int guarded(F&& f) noexcept {
  try {
    return static_cast<int>(f());
  } catch (const std::bad_alloc&) {
    return LFM2_NO_MEMORY;
  }
}

}  // namespace

const char* lfm2_status_string(int status) { return status_text(static_cast<Status>(status)); }
const char* lfm2_kernels_version(void) { return LFM2_KERNELS_VERSION; }

int lfm2_tensor_dense(lfm2_tensor* tensor, void* data, int dtype, int device, int rank, const int64_t* dims) {
  if (tensor == nullptr || rank < 0 || rank > LFM2_MAX_RANK || (rank > 0 && dims == nullptr)) return LFM2_INVALID;
  *tensor = lfm2_tensor{data, dtype, device, rank, {}, {}};
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    tensor->dims[axis] = dims[axis];
    tensor->strides[axis] = step;
    if (dims[axis] > 0 && __builtin_mul_overflow(step, dims[axis], &step)) return LFM2_INVALID;
  }
  return static_cast<int>(check_view(view_of(tensor)));
}

int lfm2_index(const lfm2_tensor* tensor, int64_t ordinal, int64_t* index) {
  const TensorView view = view_of(tensor);
  if (index == nullptr || !ok(check_view(view))) return LFM2_INVALID;
  Extents found{};
  const Status status = index_of_ordinal(view, ordinal, found);
  if (ok(status)) std::copy(found.begin(), found.begin() + view.rank, index);
  return static_cast<int>(status);
}

int lfm2_position(const lfm2_tensor* tensor, const int64_t* index, int64_t* position) {
  const TensorView view = view_of(tensor);
  if (position == nullptr || !ok(check_view(view)) || (view.rank > 0 && index == nullptr)) return LFM2_INVALID;
  Extents wanted{};
  std::copy(index, index + view.rank, wanted.begin());
  return static_cast<int>(position_of_index(view, wanted, *position));
}

int lfm2_broadcast_shape(const lfm2_tensor* a, const lfm2_tensor* b, int* rank, int64_t* dims) {
  const TensorView x = view_of(a), y = view_of(b);
  if (rank == nullptr || dims == nullptr || x.rank < 0 || x.rank > kMaxRank || y.rank < 0 || y.rank > kMaxRank)
    return LFM2_INVALID;
  TensorView out;
  const Status status = broadcast_shape(x, y, out);
  if (!ok(status)) return static_cast<int>(status);
  *rank = out.rank;
  std::copy(out.dims.begin(), out.dims.begin() + out.rank, dims);
  return LFM2_OK;
}

int lfm2_concat(const lfm2_tensor* inputs, int64_t n, const lfm2_tensor* output, int axis, void* stream) {
  return guarded([&] {
    const Views views(inputs, n);
    return concat(views.get(), n, view_of(output), axis, stream);
  });
}

int lfm2_concat_backward(const lfm2_tensor* output_gradient, const lfm2_tensor* input_gradients, int64_t n, int axis,
                         int mode, void* stream) {
  return guarded([&] {
    const Views views(input_gradients, n);
    return concat_backward(view_of(output_gradient), views.get(), n, axis, static_cast<GradientMode>(mode), stream);
  });
}

int lfm2_bias(const lfm2_tensor* input, const lfm2_tensor* bias, const lfm2_tensor* output, int64_t rows_per_sample,
              int activation, void* stream) {
  return guarded([&] {
    return operators::bias(view_of(input), view_of(bias), view_of(output), {rows_per_sample},
                           static_cast<Activation>(activation), stream);
  });
}

int lfm2_bias_backward(const lfm2_tensor* output_gradient, const lfm2_tensor* input_gradient,
                       const lfm2_tensor* bias_gradient, int64_t rows_per_sample, void* workspace,
                       size_t workspace_bytes, void* stream) {
  return guarded([&] {
    const TensorView copy = view_of(input_gradient);
    return bias_backward(view_of(output_gradient), input_gradient != nullptr ? &copy : nullptr, view_of(bias_gradient),
                         {rows_per_sample}, workspace, workspace_bytes, stream);
  });
}

int lfm2_bias_backward_workspace(const lfm2_tensor* output_gradient, int64_t rows_per_sample, size_t* bytes) {
  if (bytes == nullptr) return LFM2_INVALID;
  return guarded([&] { return bias_backward_workspace(view_of(output_gradient), {rows_per_sample}, *bytes); });
}

int lfm2_map(int function, const lfm2_tensor* input, const lfm2_tensor* output, void* stream) {
  return guarded([&] { return map(static_cast<UnaryFunction>(function), view_of(input), view_of(output), stream); });
}

int lfm2_zip(int function, const lfm2_tensor* a, const lfm2_tensor* b, const lfm2_tensor* output, void* stream) {
  return guarded(
      [&] { return zip(static_cast<BinaryFunction>(function), view_of(a), view_of(b), view_of(output), stream); });
}

int lfm2_reduce(int function, const lfm2_tensor* input, const lfm2_tensor* output, uint32_t axes, void* workspace,
                size_t workspace_bytes, void* stream) {
  return guarded([&] {
    return reduce(static_cast<ReduceFunction>(function), view_of(input), view_of(output), axes, workspace,
                  workspace_bytes, stream);
  });
}

int lfm2_reduce_workspace(const lfm2_tensor* input, uint32_t axes, size_t* bytes) {
  if (bytes == nullptr) return LFM2_INVALID;
  return guarded([&] { return reduce_workspace(view_of(input), axes, *bytes); });
}

int lfm2_matmul(const lfm2_tensor* a, const lfm2_tensor* b, const lfm2_tensor* output, void* stream) {
  return guarded([&] { return matmul(view_of(a), view_of(b), view_of(output), stream); });
}

int lfm2_causal_conv1d(const lfm2_tensor* x, const lfm2_tensor* w, const lfm2_tensor* bias, const lfm2_tensor* y,
                       int activation, void* stream) {
  return guarded([&] {
    const TensorView shift = view_of(bias);
    return causal_conv1d(view_of(x), view_of(w), bias != nullptr ? &shift : nullptr, view_of(y),
                         static_cast<Activation>(activation), stream);
  });
}

int lfm2_causal_conv1d_gemm(const lfm2_tensor* x, const lfm2_tensor* w, const lfm2_tensor* bias, const lfm2_tensor* y,
                            int activation, void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    const TensorView shift = view_of(bias);
    return causal_conv1d_gemm(view_of(x), view_of(w), bias != nullptr ? &shift : nullptr, view_of(y),
                              static_cast<Activation>(activation), workspace, workspace_bytes, stream);
  });
}

int lfm2_causal_conv1d_gemm_workspace(const lfm2_tensor* x, const lfm2_tensor* w, size_t* bytes) {
  if (bytes == nullptr) return LFM2_INVALID;
  return guarded([&] { return causal_conv1d_gemm_workspace(view_of(x), view_of(w), *bytes); });
}

int lfm2_causal_conv1d_unfold(const lfm2_tensor* x, int64_t filter, const lfm2_tensor* unfolded, void* stream) {
  return guarded([&] { return causal_conv1d_unfold(view_of(x), filter, view_of(unfolded), stream); });
}

int lfm2_causal_conv1d_expand(const lfm2_tensor* w, const lfm2_tensor* expanded, void* stream) {
  return guarded([&] { return causal_conv1d_expand(view_of(w), view_of(expanded), stream); });
}

int lfm2_device_count(void) { return gpu::device_count(); }

int lfm2_allocate(int device, size_t bytes, void** memory) {
  if (memory == nullptr || device < LFM2_CPU) return LFM2_INVALID;
  *memory = nullptr;
  if (device != LFM2_CPU) return static_cast<int>(gpu::allocate(device, bytes, memory));
  if (bytes > SIZE_MAX - 256) return LFM2_NO_MEMORY;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory != nullptr || bytes == 0 ? LFM2_OK : LFM2_NO_MEMORY;
}

int lfm2_release(int device, void* memory) {
  if (device < LFM2_CPU) return LFM2_INVALID;
  if (device != LFM2_CPU) return static_cast<int>(gpu::release(device, memory));
  std::free(memory);
  return LFM2_OK;
}

int lfm2_copy(int device, void* target, const void* source, size_t bytes, void* stream) {
  if (device < LFM2_CPU || (bytes > 0 && (target == nullptr || source == nullptr))) return LFM2_INVALID;
  if (bytes == 0) return LFM2_OK;
  if (device != LFM2_CPU) return static_cast<int>(gpu::copy(device, target, source, bytes, stream));
  std::memmove(target, source, bytes);
  return LFM2_OK;
}

int lfm2_synchronize(int device, void* stream) {
  if (device < LFM2_CPU) return LFM2_INVALID;
  return device == LFM2_CPU ? LFM2_OK : static_cast<int>(gpu::synchronize(device, stream));
}

int lfm2_pointer_device(const void* pointer, int* device) {
  if (device == nullptr) return LFM2_INVALID;
  return static_cast<int>(gpu::device_of_pointer(pointer, *device));
}
