// Every family but the products over random shapes, layouts, dtypes and alignments, compared with their definitions in
// double, on both devices.
#include <functional>

#include "operators/bias.h"
#include "operators/concat.h"
#include "operators/map_zip.h"
#include "operators/reduce.h"
#include "operators/reduce_plan.h"
#include "operators/tests/random_support.h"

namespace lfm2::operators::test {

namespace {

ON_BOTH_DEVICES_CHECK(ConcatTest);
ON_BOTH_DEVICES_CHECK(BiasTest);
ON_BOTH_DEVICES_CHECK(MapTest);
ON_BOTH_DEVICES_CHECK(ZipTest);
ON_BOTH_DEVICES_CHECK(ReduceTest);

std::vector<double> rounding_of(DType dtype, const std::vector<double>& values, double units_of_fp32 = 0) {
  std::vector<double> tolerance(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    tolerance[i] = store_error(dtype, values[i]) + units_of_fp32 * 0x1p-24 * std::fabs(values[i]);
  return tolerance;
}

}  // namespace

TEST_P(ConcatTest, RandomShapes) {
  for (int round = 0; round < 80; ++round) {
    const DType dtype = any_dtype();
    const bool many_rows = round % 4 == 3;  // rows that end within units
    const int rank = many_rows ? 2 : static_cast<int>(between(1, 4));
    const int axis = many_rows ? 1 : static_cast<int>(between(0, rank - 1));
    std::vector<int64_t> dims(static_cast<size_t>(rank));
    for (int64_t& extent : dims) extent = between(0, 5) == 0 ? between(0, 1) : between(1, 9);
    const bool long_rows = many_rows && round % 8 == 7;
    if (many_rows) dims[0] = between(1, long_rows ? 40 : 3000);
    const int64_t count = round == 0 ? 1500 : round == 1 ? 200 : between(1, 6);
    const int64_t multiple = between(0, 1) == 0 ? 1 : 16;  // the extents are often whole units
    std::vector<Made> inputs, gradients;
    std::vector<TensorView> views, gradient_views;
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      dims[static_cast<size_t>(axis)] = count > 6   ? between(0, 2)
                                        : long_rows ? between(700, 2100)
                                        : many_rows ? between(4, 60)
                                                    : between(0, 7) * multiple;
      sum += dims[static_cast<size_t>(axis)];
      const int64_t shift = !many_rows && between(0, 3) == 0 ? between(1, 9) : 0;
      inputs.push_back(make(device(), dtype, dims, Layout::kDense, nullptr, shift));
      inputs.back().memory->fill_random(generator);
      gradients.push_back(make(device(), dtype, dims, Layout::kDense, nullptr, shift));
      gradients.back().memory->fill_random(generator);
      views.push_back(inputs.back().view);
      gradient_views.push_back(gradients.back().view);
    }
    dims[static_cast<size_t>(axis)] = sum;
    Made output = make(device(), dtype, dims, Layout::kDense, nullptr, between(0, 3) == 0 ? 1 : 0);
    ASSERT_EQ(concat(views.data(), count, output.view, axis, nullptr), Status::kOk);
    const std::vector<double> joined = in_order(output);

    int64_t outer = 1, inner = 1;
    for (int a = 0; a < rank; ++a) (a < axis ? outer : inner) *= a == axis ? 1 : dims[static_cast<size_t>(a)];
    std::vector<double> expected(joined.size());
    std::vector<std::vector<double>> before;
    int64_t first = 0;
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<double> x = in_order(inputs[static_cast<size_t>(i)]);
      before.push_back(in_order(gradients[static_cast<size_t>(i)]));
      const int64_t run = views[static_cast<size_t>(i)].dim(axis) * inner;
      for (int64_t o = 0; o < outer; ++o)
        for (int64_t j = 0; j < run; ++j)
          expected[static_cast<size_t>(o * sum * inner + first + j)] = x[static_cast<size_t>(o * run + j)];
      first += run;
    }
    EXPECT_EQ(joined, expected) << text_of(output.view) << " axis " << axis;

    // Its gradient takes apart again what was joined.
    for (const bool add : {true, false}) {
      ASSERT_EQ(concat_backward(output.view, gradient_views.data(), count, axis,
                                add ? GradientMode::kAdd : GradientMode::kOverwrite, nullptr),
                Status::kOk);
      for (size_t i = 0; i < gradients.size(); ++i) {
        std::vector<double> wanted = in_order(inputs[i]);
        if (add)
          for (size_t j = 0; j < wanted.size(); ++j) wanted[j] += before[i][j];
        expect_close(in_order(gradients[i]), wanted, rounding_of(dtype, wanted), "gradient of concat");
      }
    }
  }
}

TEST_P(BiasTest, RandomShapes) {
  const std::function<double(double)> functions[] = {[](double x) { return x; }, [](double x) { return x < 0 ? 0 : x; },
                                                     [](double x) { return x / (1 + std::exp(-x)); },
                                                     [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }};
  for (int round = 0; round < 60; ++round) {
    const DType dtype = any_dtype();
    const int64_t per_sample = between(0, 1) == 0 ? 0 : between(1, 12);
    const int64_t rows = per_sample == 0 ? between(0, 70) : per_sample * between(0, 9);
    const int64_t columns = between(0, 1) == 0 ? between(0, 90) : 16 * between(1, 20);
    const int64_t shift = between(0, 3) == 0 ? 1 : 0;
    Made x = make(device(), dtype, {rows, columns}, Layout::kDense, nullptr, shift);
    Made shared = make(device(), dtype, {per_sample == 0 ? columns : per_sample});
    Made y = make(device(), dtype, {rows, columns}, Layout::kDense, nullptr, shift);
    x.memory->fill_random(generator);
    shared.memory->fill_random(generator);
    const int activation = static_cast<int>(between(0, 3));
    const std::vector<double> in = in_order(x), add = in_order(shared);
    const bool in_place = between(0, 1) == 0;
    Made& out = in_place ? x : y;
    ASSERT_EQ(bias(x.view, shared.view, out.view, {per_sample}, static_cast<Activation>(activation), nullptr),
              Status::kOk);
    std::vector<double> expected(in.size()), tolerance(in.size()), sums(add.size()), magnitude(add.size());
    const std::vector<double> result = in_order(out);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<size_t>(r * columns + c);
        const auto own = static_cast<size_t>(per_sample == 0 ? c : r % per_sample);
        expected[i] = functions[activation](in[i] + add[own]);
        tolerance[i] = (dtype == DType::kF32 ? 0 : 0x1p-16 * std::fabs(expected[i])) + store_error(dtype, expected[i]) +
                       8 * 0x1p-24 * (std::fabs(in[i]) + std::fabs(add[own]));
        sums[own] += result[i];
        magnitude[own] += std::fabs(result[i]);
      }
    expect_close(result, expected, tolerance, "bias " + text_of(x.view));

    // The gradient, with the output of bias as the output's gradient.
    Made copy = make(device(), dtype, {rows, columns}), total = make(device(), dtype, {shared.view.dim(0)});
    size_t bytes = 0;
    ASSERT_EQ(bias_backward_workspace(out.view, {per_sample}, bytes), Status::kOk);
    Workspace workspace(device(), bytes);
    ASSERT_EQ(bias_backward(out.view, &copy.view, total.view, {per_sample}, workspace.data(), bytes, nullptr),
              Status::kOk);
    EXPECT_EQ(in_order(copy), result);
    for (size_t i = 0; i < sums.size(); ++i) magnitude[i] = 32 * 0x1p-24 * magnitude[i] + store_error(dtype, sums[i]);
    expect_close(in_order(total), sums, magnitude, "gradient of bias " + text_of(x.view));
  }
}

TEST_P(MapTest, EveryFunctionAndRandomShapes) {
  const std::function<double(double)> functions[] = {[](double x) { return x; },
                                                     [](double x) { return -x; },
                                                     [](double x) { return std::fabs(x); },
                                                     [](double x) { return x > 0   ? 1.0
                                                                           : x < 0 ? -1.0
                                                                                   : 0.0; },
                                                     [](double x) { return x * x; },
                                                     [](double x) { return std::sqrt(x); },
                                                     [](double x) { return 1 / std::sqrt(x); },
                                                     [](double x) { return 1 / x; },
                                                     [](double x) { return std::exp(x); },
                                                     [](double x) { return std::log(x); },
                                                     [](double x) { return std::sin(x); },
                                                     [](double x) { return std::cos(x); },
                                                     [](double x) { return std::tanh(x); },
                                                     [](double x) { return 1 / (1 + std::exp(-x)); },
                                                     [](double x) { return x < 0 ? 0 : x; },
                                                     [](double x) { return x / (1 + std::exp(-x)); },
                                                     [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }};
  static_assert(std::size(functions) == static_cast<size_t>(UnaryFunction::kCount));
  for (int round = 0; round < 200; ++round) {
    const size_t function = static_cast<size_t>(round) % std::size(functions);
    std::vector<int64_t> dims(static_cast<size_t>(between(0, round < 100 ? 3 : 8)));
    for (int64_t& extent : dims)
      extent = between(0, 20) == 0 ? between(0, 1) : dims.size() <= 3 ? between(1, 70) : between(1, 4);
    if (round % 10 == 9) dims = {between(1, 3), between(16, 150), between(16, 150)};  // gives several tiles
    const DType dtype = any_dtype();
    Made x = make(device(), dtype, dims, any_layout(), &generator, between(0, 1));
    Made y = make(device(), dtype, dims, any_layout(), &generator, between(0, 1));
    x.memory->fill_random(generator, function == 5 || function == 6 || function == 9 ? 0.1 : -3, 3);
    const std::vector<double> in = in_order(x);
    ASSERT_EQ(map(static_cast<UnaryFunction>(function), x.view, y.view, nullptr), Status::kOk);
    std::vector<double> expected(in.size()), tolerance(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      expected[i] = functions[function](in[i]);
      tolerance[i] = (dtype == DType::kF32 ? 0 : 0x1p-16 * std::fabs(expected[i])) + store_error(dtype, expected[i]) +
                     8 * 0x1p-24 * (std::fabs(expected[i]) + 0.1);
    }
    expect_close(in_order(y), expected, tolerance,
                 "function " + std::to_string(function) + " " + text_of(x.view) + " to " + text_of(y.view));
  }
}

TEST_P(ZipTest, EveryFunctionAndBroadcasting) {
  const std::function<double(double, double)> functions[] = {[](double a, double b) { return a + b; },
                                                             [](double a, double b) { return a - b; },
                                                             [](double a, double b) { return a * b; },
                                                             [](double a, double b) { return a / b; },
                                                             [](double a, double b) { return std::max(a, b); },
                                                             [](double a, double b) { return std::min(a, b); },
                                                             [](double a, double b) { return std::pow(a, b); },
                                                             [](double a, double b) { return a < b ? 1.0 : 0.0; },
                                                             [](double a, double b) { return a <= b ? 1.0 : 0.0; },
                                                             [](double a, double b) { return a > b ? 1.0 : 0.0; },
                                                             [](double a, double b) { return a >= b ? 1.0 : 0.0; },
                                                             [](double a, double b) { return a == b ? 1.0 : 0.0; },
                                                             [](double a, double b) { return a != b ? 1.0 : 0.0; }};
  static_assert(std::size(functions) == static_cast<size_t>(BinaryFunction::kCount));
  for (int round = 0; round < 200; ++round) {
    const size_t function = static_cast<size_t>(round) % std::size(functions);
    std::vector<int64_t> dims(static_cast<size_t>(between(0, round < 100 ? 3 : 8)));
    for (int64_t& extent : dims)
      extent = between(0, 20) == 0 ? between(0, 1) : dims.size() <= 3 ? between(1, 70) : between(1, 4);
    const DType dtype = any_dtype();
    const auto operand = [&] {  // has the shape with some axes of 1 and some leading axes missing
      std::vector<int64_t> own = dims;
      for (int64_t& extent : own)
        if (between(0, 3) == 0) extent = 1;
      own.erase(own.begin(), own.begin() + (between(0, 2) == 0 ? between(0, static_cast<int64_t>(own.size())) : 0));
      Made made = make(device(), dtype, own, any_layout(), &generator, between(0, 1));
      made.memory->fill_random(generator, function == 3 || function == 6 ? 0.2 : -2, 2);
      return made;
    };
    Made a = operand(), b = operand(), y = make(device(), dtype, dims, any_layout(), &generator, between(0, 1));
    const std::vector<double> x = in_order(a), z = in_order(b);
    const std::vector<size_t> in_a = broadcast_ordinals(a.view, y.view), in_b = broadcast_ordinals(b.view, y.view);
    ASSERT_EQ(zip(static_cast<BinaryFunction>(function), a.view, b.view, y.view, nullptr), Status::kOk);
    std::vector<double> expected(in_a.size());
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = functions[function](x[in_a[i]], z[in_b[i]]);
    std::vector<double> tolerance = rounding_of(dtype, expected, 8);
    for (double& allowed : tolerance) allowed += 0x1p-24;
    expect_close(in_order(y), expected, tolerance,
                 "function " + std::to_string(function) + " " + text_of(a.view) + " " + text_of(b.view));
  }
}

TEST_P(ReduceTest, RandomShapesAndAxes) {
  for (int round = 0; round < 250; ++round) {
    const auto function = static_cast<ReduceFunction>(round % 5);
    const DType dtype = any_dtype();
    std::vector<int64_t> dims(static_cast<size_t>(between(0, round < 150 ? 3 : 8)));
    for (int64_t& extent : dims)
      extent = between(0, 20) == 0 ? between(0, 1)
               : dims.size() > 3   ? between(1, 4)
               : dims.size() == 1  ? between(1, 40000)
                                   : between(1, 80);
    if (round % 10 == 9)
      dims = round % 20 == 9 ? std::vector<int64_t>{between(2000, 9000), between(1, 40)}
                             : std::vector<int64_t>{between(1, 40), between(2000, 9000)};
    const auto axes = static_cast<uint32_t>(between(0, (int64_t{1} << dims.size()) - 1));
    const bool keeps = between(0, 1) == 0;
    std::vector<int64_t> out_dims;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      const bool reduced = (axes >> axis & 1u) != 0;
      if (!reduced || keeps) out_dims.push_back(reduced ? 1 : dims[axis]);
    }
    Made x = make(device(), dtype, dims, any_layout(), &generator, between(0, 1));
    Made y = make(device(), dtype, out_dims, any_layout(), &generator, between(0, 1));
    const bool prod = function == ReduceFunction::kProd;
    x.memory->fill_random(generator, prod ? 0.9 : -2, prod ? 1.1 : 2);
    size_t bytes = 0;
    ASSERT_EQ(reduce_workspace(x.view, axes, bytes), Status::kOk);
    Workspace workspace(device(), bytes);
    const Status status = reduce(function, x.view, y.view, axes, workspace.data(), bytes, nullptr);
    TensorView wide = x.view;  // the output's shape with 1 along the reduced axes
    int64_t length = 1;
    for (int axis = 0; axis < wide.rank; ++axis)
      if ((axes >> axis & 1u) != 0) {
        length *= wide.dim(axis);
        wide.dims[static_cast<size_t>(axis)] = 1;
      }
    const bool nothing = length == 0 && (function == ReduceFunction::kMax || function == ReduceFunction::kMin);
    ASSERT_EQ(status, nothing && wide.numel() > 0 ? Status::kInvalid : Status::kOk);
    if (status != Status::kOk) continue;
    const std::vector<double> in = in_order(x);
    const std::vector<size_t> target = broadcast_ordinals(wide, x.view);
    const bool max = function == ReduceFunction::kMax, min = function == ReduceFunction::kMin;
    std::vector<double> expected(static_cast<size_t>(wide.numel()), prod ? 1 : max ? -HUGE_VAL : min ? HUGE_VAL : 0);
    std::vector<double> magnitude(expected.size());
    for (size_t i = 0; i < in.size(); ++i) {
      double& to = expected[target[i]];
      to = prod ? to * in[i] : max ? std::max(to, in[i]) : min ? std::min(to, in[i]) : to + in[i];
      magnitude[target[i]] += std::fabs(in[i]);
    }
    std::vector<double> tolerance(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (function == ReduceFunction::kMean) {
        expected[i] /= static_cast<double>(length);
        magnitude[i] /= static_cast<double>(length);
      }
      const double units = prod ? static_cast<double>(length) : 32;
      tolerance[i] = store_error(dtype, expected[i]) + units * 0x1p-24 *
                                                           (prod         ? std::fabs(expected[i])
                                                            : max || min ? 0
                                                                         : magnitude[i]);
    }
    expect_close(in_order(y), expected, tolerance,
                 "function " + std::to_string(round % 5) + " axes " + std::to_string(axes) + " " + text_of(x.view));
  }
}

// A caller that asks for the workspace's size does not know the output's strides.
TEST(ReducePlanTest, TheWorkspaceDependsOnTheInputAlone) {
  for (const auto& [x, y] : {std::pair<int64_t, int64_t>{5, 5}, {3, 70}, {1, 9}, {64, 2}})
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      float memory[4];  // never read
      const TensorView input(memory, dtype, {100000, x, y});
      TensorView output(memory, dtype, {x, y});
      ReducePlan asked, called;
      ASSERT_EQ(plan_reduce(input, nullptr, 1u, asked), Status::kOk);
      EXPECT_GT(asked.workspace_bytes(), 0u);
      output.strides = {2 * y + 1, 2};
      ASSERT_EQ(plan_reduce(input, &output, 1u, called), Status::kOk);
      EXPECT_EQ(called.workspace_bytes(), asked.workspace_bytes()) << x << " x " << y;
    }
}

}  // namespace lfm2::operators::test
