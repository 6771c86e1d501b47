// Tests the C API on the CPU: what it refuses, with which status, and its helpers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lfm2_kernels.h"

namespace {

float memory[64];

lfm2_tensor dense(const std::vector<int64_t>& dims, void* data = memory, int dtype = LFM2_FP32, int device = LFM2_CPU) {
  lfm2_tensor tensor{data, dtype, device, static_cast<int32_t>(dims.size()), {}, {}};
  int64_t step = 1;
  for (size_t axis = dims.size(); axis-- > 0;) {
    tensor.dims[axis] = dims[axis];
    tensor.strides[axis] = step;
    if (axis > 0) step *= dims[axis];
  }
  return tensor;
}
lfm2_tensor with(lfm2_tensor tensor, int axis, int64_t stride) {
  tensor.strides[axis] = stride;
  return tensor;
}

TEST(CApiTest, ConcatRefuses) {
  const lfm2_tensor a = dense({2, 3}), b = dense({2, 4}, memory + 8), y = dense({2, 7}, memory + 32);
  const lfm2_tensor both[2] = {a, b};
  const auto status = [&](const lfm2_tensor& first, const lfm2_tensor& second, const lfm2_tensor& out, int axis = 1) {
    const lfm2_tensor inputs[2] = {first, second};
    const int forward = lfm2_concat(inputs, 2, &out, axis, nullptr);
    for (const int mode : {LFM2_ADD, LFM2_OVERWRITE})
      EXPECT_EQ(lfm2_concat_backward(&out, inputs, 2, axis, mode, nullptr), forward);
    return forward;
  };
  EXPECT_EQ(status(a, b, y), LFM2_OK);
  EXPECT_EQ(lfm2_concat(nullptr, 2, &y, 1, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_concat(both, 2, nullptr, 1, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_concat(both, 0, &y, 1, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_concat(both, -1, &y, 1, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_concat_backward(&y, both, 2, 1, 2, nullptr), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, nullptr), b, y), LFM2_INVALID);
  EXPECT_EQ(status(a, b, dense({2, 7}, nullptr)), LFM2_INVALID);
  EXPECT_EQ(status(a, b, y, -1), LFM2_INVALID);
  EXPECT_EQ(status(a, b, y, 2), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, memory, LFM2_FP16), b, y), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, memory, 3), b, y), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, memory, -1), b, y), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, memory, LFM2_FP32, 0), b, y), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, 3}, memory, LFM2_FP32, -2), b, y), LFM2_INVALID);
  EXPECT_EQ(status(with(a, 0, 4), b, y), LFM2_INVALID);
  EXPECT_EQ(status(a, b, with(y, 0, 8)), LFM2_INVALID);
  EXPECT_EQ(status(dense({6}), dense({8}), y), LFM2_INVALID);
  EXPECT_EQ(status(dense({2, -3}), b, y), LFM2_INVALID);
  EXPECT_EQ(status(dense({1, 1, 1, 1, 2}), dense({1, 1, 1, 1, 2}), dense({1, 1, 1, 1, 4}), 4), LFM2_INVALID);
  EXPECT_EQ(status(dense({}), dense({}), dense({}), 0), LFM2_INVALID);
  EXPECT_EQ(status(a, dense({3, 4}), y), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(status(a, b, dense({2, 8})), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(status(a, b, dense({2, 6})), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(status(dense({0, 3}), dense({0, 4}), dense({0, 7}, nullptr)), LFM2_OK);
}

TEST(CApiTest, OthersRefuse) {
  const lfm2_tensor x = dense({6, 4}), row = dense({4}), six = dense({6}), cube = dense({1, 6, 4});
  EXPECT_EQ(lfm2_bias(&x, &row, &x, 0, LFM2_NONE, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_bias(&x, &six, &x, 6, LFM2_GELU, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_bias(&x, &row, &x, 4, LFM2_NONE, nullptr), LFM2_SHAPE_MISMATCH);  // 6 rows, but 4 for each sample
  EXPECT_EQ(lfm2_bias(&x, &six, &x, 0, LFM2_NONE, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_bias(&x, &row, &x, 0, 4, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_bias(&x, &row, &x, -1, LFM2_NONE, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_bias(nullptr, &row, &x, 0, LFM2_NONE, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_bias(&cube, &row, &cube, 0, LFM2_NONE, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_bias_backward(&x, nullptr, &row, 0, nullptr, 0, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_bias_backward(&x, &row, &row, 0, nullptr, 0, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_bias_backward_workspace(&x, 0, nullptr), LFM2_INVALID);

  EXPECT_EQ(lfm2_map(LFM2_MAP_GELU + 1, &x, &x, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_map(-1, &x, &x, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_map(LFM2_EXP, &six, &x, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_map(LFM2_EXP, &x, &row, nullptr), LFM2_SHAPE_MISMATCH);
  const lfm2_tensor repeated = with(x, 0, 0), overlapping = with(x, 0, 2);
  EXPECT_EQ(lfm2_map(LFM2_EXP, &x, &repeated, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_map(LFM2_EXP, &x, &overlapping, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_map(LFM2_EXP, &repeated, &x, nullptr), LFM2_OK);
  lfm2_tensor deep = x;
  deep.rank = 9;
  EXPECT_EQ(lfm2_map(LFM2_EXP, &deep, &x, nullptr), LFM2_INVALID);
  lfm2_tensor odd = x;
  odd.data = reinterpret_cast<char*>(memory) + 1;
  EXPECT_EQ(lfm2_map(LFM2_EXP, &odd, &x, nullptr), LFM2_INVALID);
  const lfm2_tensor huge = dense({int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_EQ(lfm2_map(LFM2_EXP, &huge, &huge, nullptr), LFM2_INVALID);
  const lfm2_tensor empty_but_huge = dense({0, int64_t{1} << 30, int64_t{1} << 31}, nullptr);
  size_t bytes = 0;
  EXPECT_EQ(lfm2_reduce_workspace(&empty_but_huge, 6u, &bytes), LFM2_INVALID);
  void* none = nullptr;
  EXPECT_EQ(lfm2_allocate(LFM2_CPU, size_t{1} << 62, &none), LFM2_NO_MEMORY);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(lfm2_zip(LFM2_NE + 1, &x, &x, &x, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_zip(LFM2_PLUS, &x, nullptr, &x, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_zip(LFM2_PLUS, &x, &six, &x, nullptr), LFM2_SHAPE_MISMATCH);

  EXPECT_EQ(lfm2_reduce(LFM2_SUM, &x, &row, 1u, nullptr, 0, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_reduce(LFM2_SUM, &x, &row, 2u, nullptr, 0, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_reduce(LFM2_SUM, &x, &row, 4u, nullptr, 0, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_reduce(LFM2_MEAN + 1, &x, &row, 1u, nullptr, 0, nullptr), LFM2_INVALID);
  const lfm2_tensor nothing = dense({0, 4}, nullptr);
  EXPECT_EQ(lfm2_reduce(LFM2_MAX, &nothing, &row, 1u, nullptr, 0, nullptr), LFM2_INVALID);
  memory[0] = 3;
  EXPECT_EQ(lfm2_reduce(LFM2_MEAN, &nothing, &row, 1u, nullptr, 0, nullptr), LFM2_OK);
  EXPECT_TRUE(std::isnan(memory[0]));

  const lfm2_tensor a = dense({6, 4}), b = dense({4, 3}, memory + 24), c = dense({6, 3}, memory + 40);
  EXPECT_EQ(lfm2_matmul(&a, &b, &c, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_matmul(&a, &a, &c, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_matmul(&row, &b, &c, nullptr), LFM2_INVALID);

  const lfm2_tensor w = dense({6, 2}, memory + 24), no_taps = dense({6, 0});
  EXPECT_EQ(lfm2_causal_conv1d(&cube, &w, &six, &cube, LFM2_SILU, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_causal_conv1d(&cube, &w, &row, &cube, LFM2_SILU, nullptr), LFM2_SHAPE_MISMATCH);
  EXPECT_EQ(lfm2_causal_conv1d(&cube, &no_taps, nullptr, &cube, LFM2_SILU, nullptr), LFM2_INVALID);
  EXPECT_EQ(lfm2_causal_conv1d_gemm(&cube, &w, nullptr, &cube, LFM2_NONE, nullptr, 0, nullptr), LFM2_INVALID);
}

TEST(CApiTest, IndexPositionAndBroadcasting) {
  const lfm2_tensor view = with(with(dense({2, 3}), 0, 1), 1, -2);
  int64_t index[2] = {}, position = 0, dims[LFM2_MAX_RANK] = {};
  ASSERT_EQ(lfm2_index(&view, 5, index), LFM2_OK);
  EXPECT_EQ(index[0], 1);
  EXPECT_EQ(index[1], 2);
  ASSERT_EQ(lfm2_position(&view, index, &position), LFM2_OK);
  EXPECT_EQ(position, 1 - 4);
  EXPECT_EQ(lfm2_index(&view, 6, index), LFM2_INVALID);
  index[1] = 3;
  EXPECT_EQ(lfm2_position(&view, index, &position), LFM2_INVALID);
  int rank = 0;
  const lfm2_tensor a = dense({5, 1, 7}), b = dense({6, 1}), c = dense({2, 7});
  ASSERT_EQ(lfm2_broadcast_shape(&a, &b, &rank, dims), LFM2_OK);
  EXPECT_EQ(std::vector<int64_t>(dims, dims + rank), (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(lfm2_broadcast_shape(&b, &c, &rank, dims), LFM2_SHAPE_MISMATCH);
}

TEST(CApiTest, DenseTensorsAndTexts) {
  lfm2_tensor tensor;
  const int64_t dims[3] = {2, 3, 4};
  ASSERT_EQ(lfm2_tensor_dense(&tensor, memory, LFM2_FP32, LFM2_CPU, 3, dims), LFM2_OK);
  EXPECT_EQ(tensor.strides[0], 12);
  EXPECT_EQ(tensor.strides[2], 1);
  EXPECT_EQ(lfm2_tensor_dense(&tensor, memory, LFM2_FP32, LFM2_CPU, 9, dims), LFM2_INVALID);
  const int64_t huge[3] = {int64_t{1} << 40, int64_t{1} << 40, 4};
  EXPECT_EQ(lfm2_tensor_dense(&tensor, memory, LFM2_FP32, LFM2_CPU, 3, huge), LFM2_INVALID);
  for (const int status : std::initializer_list<int>{LFM2_OK, LFM2_INVALID, LFM2_SHAPE_MISMATCH, LFM2_NO_CUDA,
                                                     LFM2_TOO_LARGE, LFM2_CUDA_ERROR + 2, -5, 999}) {
    ASSERT_NE(lfm2_status_string(status), nullptr);
    EXPECT_GT(std::strlen(lfm2_status_string(status)), 3u);
  }
  EXPECT_STREQ(lfm2_kernels_version(), LFM2_KERNELS_VERSION);
  void* own = nullptr;
  ASSERT_EQ(lfm2_allocate(LFM2_CPU, 100, &own), LFM2_OK);
  EXPECT_EQ(lfm2_copy(LFM2_CPU, own, memory, 100, nullptr), LFM2_OK);
  EXPECT_EQ(lfm2_release(LFM2_CPU, own), LFM2_OK);
}

}  // namespace
