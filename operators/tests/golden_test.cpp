// Tests every case of tests/golden/operators.h5 that belongs to these operators, forward and gradient, on both devices.
#include "support/golden.h"

#include "operators/bias.h"
#include "operators/causal_conv1d.h"
#include "operators/concat.h"
#include "operators/map_zip.h"
#include "operators/matmul.h"
#include "operators/reduce.h"
#include "operators/tests/memory.h"

namespace lfm2::operators::test {

namespace {

ON_BOTH_DEVICES_CHECK(OperatorGoldenTest);

Made load(int device, const std::string& dataset) {
  const lfm2::test::Array array = lfm2::test::golden_operator(dataset);
  Made made = make(device, DType::kF32, array.dims);
  made.memory->fill(array.values);
  return made;
}
Made empty_like(int device, const std::string& dataset) {
  return make(device, DType::kF32, lfm2::test::golden_operator(dataset).dims);
}

// `terms` is the number of products or additions that make a result.
void expect_golden(Made& made, const std::string& dataset, double terms = 4) {
  const lfm2::test::Array array = lfm2::test::golden_operator(dataset);
  std::vector<double> tolerance(array.values.size());
  for (size_t i = 0; i < tolerance.size(); ++i) tolerance[i] = terms * 0x1p-23 * (1 + std::fabs(array.values[i]));
  expect_close(in_order(made), array.values, tolerance, dataset);
}

}  // namespace

TEST_P(OperatorGoldenTest, Concat) {
  const std::pair<std::string, int> cases[] = {{"rank1_axis0", 2}, {"rank2_axis1", 3}, {"rank3_axis1", 2},
                                               {"rank4_axis0", 2}, {"rank4_axis1", 3}, {"rank4_axis3", 2}};
  for (const auto& [name, count] : cases) {
    const std::string folder = "concat/" + name + "/";
    const auto axis = static_cast<int>(lfm2::test::golden_operator(folder + "axis").values.at(0));
    std::vector<Made> inputs, gradients;
    std::vector<TensorView> views, gradient_views;
    for (int i = 0; i < count; ++i) {
      inputs.push_back(load(device(), folder + "x" + std::to_string(i)));
      gradients.push_back(empty_like(device(), folder + "gx" + std::to_string(i)));
      gradients.back().memory->fill(std::vector<double>(static_cast<size_t>(gradients.back().view.numel()), 0.0));
      views.push_back(inputs.back().view);
      gradient_views.push_back(gradients.back().view);
    }
    Made y = empty_like(device(), folder + "y"), gy = load(device(), folder + "gy");
    ASSERT_EQ(concat(views.data(), count, y.view, axis, nullptr), Status::kOk);
    EXPECT_EQ(in_order(y), lfm2::test::golden_operator(folder + "y").values) << name;
    for (const GradientMode mode : {GradientMode::kAdd, GradientMode::kOverwrite}) {
      ASSERT_EQ(concat_backward(gy.view, gradient_views.data(), count, axis, mode, nullptr), Status::kOk);
      for (int i = 0; i < count; ++i)
        EXPECT_EQ(in_order(gradients[static_cast<size_t>(i)]),
                  lfm2::test::golden_operator(folder + "gx" + std::to_string(i)).values)
            << name;
    }
    // Added once more, each gradient is twice its slice.
    ASSERT_EQ(concat_backward(gy.view, gradient_views.data(), count, axis, GradientMode::kAdd, nullptr), Status::kOk);
    std::vector<double> twice = lfm2::test::golden_operator(folder + "gx0").values;
    for (double& x : twice) x *= 2;
    EXPECT_EQ(in_order(gradients[0]), twice) << name;
  }
}

TEST_P(OperatorGoldenTest, Bias) {
  for (const auto& [folder, per_sample] :
       {std::pair<std::string, int64_t>{"bias/rowwise/", 0}, {"bias/colwise_rows_per_sample6/", 6}}) {
    Made x = load(device(), folder + "x"), shift = load(device(), folder + "bias"),
         y = empty_like(device(), folder + "y");
    ASSERT_EQ(bias(x.view, shift.view, y.view, {per_sample}, Activation::kNone, nullptr), Status::kOk);
    expect_golden(y, folder + "y");
    Made gy = load(device(), folder + "gy"), gx = empty_like(device(), folder + "gx"),
         gbias = empty_like(device(), folder + "gbias");
    size_t bytes = 0;
    ASSERT_EQ(bias_backward_workspace(gy.view, {per_sample}, bytes), Status::kOk);
    Memory workspace(device(), DType::kF32, static_cast<int64_t>(bytes / 4));
    ASSERT_EQ(bias_backward(gy.view, &gx.view, gbias.view, {per_sample}, workspace.data(), bytes, nullptr),
              Status::kOk);
    EXPECT_EQ(in_order(gx), lfm2::test::golden_operator(folder + "gx").values);
    expect_golden(gbias, folder + "gbias", 70);
  }
}

TEST_P(OperatorGoldenTest, Map) {
  const std::pair<std::string, UnaryFunction> cases[] = {
      {"exp", UnaryFunction::kExp}, {"silu", UnaryFunction::kSilu}, {"sigmoid_transposed", UnaryFunction::kSigmoid}};
  for (const auto& [name, function] : cases) {
    Made a = load(device(), "map/" + name + "/a"), y = empty_like(device(), "map/" + name + "/y");
    TensorView in = a.view;
    if (in.dims != y.view.dims) {
      std::swap(in.dims[0], in.dims[1]);
      std::swap(in.strides[0], in.strides[1]);
    }
    ASSERT_EQ(map(function, in, y.view, nullptr), Status::kOk);
    expect_golden(y, "map/" + name + "/y");
  }
}

TEST_P(OperatorGoldenTest, Zip) {
  const std::pair<std::string, BinaryFunction> cases[] = {{"add_broadcast", BinaryFunction::kAdd},
                                                          {"mul_broadcast", BinaryFunction::kMul},
                                                          {"mul_outer", BinaryFunction::kMul}};
  for (const auto& [name, function] : cases) {
    const std::string folder = "zip/" + name + "/";
    Made a = load(device(), folder + "a"), b = load(device(), folder + "b"), y = empty_like(device(), folder + "y");
    ASSERT_EQ(zip(function, a.view, b.view, y.view, nullptr), Status::kOk);
    expect_golden(y, folder + "y", 1);
  }
}

TEST_P(OperatorGoldenTest, Reduce) {
  const std::pair<std::string, ReduceFunction> cases[] = {
      {"max_axis1", ReduceFunction::kMax}, {"prod_axis1", ReduceFunction::kProd}, {"sum_axis1", ReduceFunction::kSum}};
  for (const auto& [name, function] : cases) {
    const std::string folder = "reduce/" + name + "/";
    Made a = load(device(), folder + "a"), y = empty_like(device(), folder + "y");
    size_t bytes = 0;
    ASSERT_EQ(reduce_workspace(a.view, 2u, bytes), Status::kOk);
    Memory workspace(device(), DType::kF32, static_cast<int64_t>(bytes / 4));
    ASSERT_EQ(reduce(function, a.view, y.view, 2u, workspace.data(), bytes, nullptr), Status::kOk);
    expect_golden(y, folder + "y", 100);
  }
}

TEST_P(OperatorGoldenTest, Matmul) {
  for (const std::string name : {"b_transposed", "batched", "broadcast_batch"}) {
    const std::string folder = "matmul/" + name + "/";
    Made a = load(device(), folder + "a"), y = empty_like(device(), folder + "y");
    Made b = load(device(), folder + (name == "b_transposed" ? "bt" : "b"));
    if (name == "b_transposed") {
      std::swap(b.view.dims[0], b.view.dims[1]);
      std::swap(b.view.strides[0], b.view.strides[1]);
    }
    ASSERT_EQ(matmul(a.view, b.view, y.view, nullptr), Status::kOk);
    expect_golden(y, folder + "y", 70);
  }
}

TEST_P(OperatorGoldenTest, CausalConv1d) {
  for (const std::string name : {"k3", "k3_bias", "k4", "k4_bias"}) {
    const std::string folder = "causal_conv1d/" + name + "/";
    Made x = load(device(), folder + "x"), w = load(device(), folder + "w"), y = empty_like(device(), folder + "y");
    const bool with_bias = name.size() > 2;
    Made shift = with_bias ? load(device(), folder + "bias") : Made{};
    const TensorView* bias = with_bias ? &shift.view : nullptr;
    ASSERT_EQ(causal_conv1d(x.view, w.view, bias, y.view, Activation::kNone, nullptr), Status::kOk);
    expect_golden(y, folder + "y", 8);
    Made again = empty_like(device(), folder + "y");
    size_t bytes = 0;
    ASSERT_EQ(causal_conv1d_gemm_workspace(x.view, w.view, bytes), Status::kOk);
    Memory workspace(device(), DType::kF32, static_cast<int64_t>(bytes / 4));
    ASSERT_EQ(causal_conv1d_gemm(x.view, w.view, bias, again.view, Activation::kNone, workspace.data(), bytes, nullptr),
              Status::kOk);
    expect_golden(again, folder + "y", 8);
    if (with_bias) continue;
    const lfm2::test::Array sample = lfm2::test::golden_operator(folder + "im2col_sample0");
    TensorView first = x.view;
    first.dims[0] = 1;
    Made unfolded = make(device(), DType::kF32, {1, sample.dim(0), sample.dim(1)});
    ASSERT_EQ(causal_conv1d_unfold(first, w.view.dim(1), unfolded.view, nullptr), Status::kOk);
    EXPECT_EQ(in_order(unfolded), sample.values);
  }
}

}  // namespace lfm2::operators::test
