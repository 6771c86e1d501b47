// Matrix products and convolutions over random shapes, layouts, dtypes and alignments, compared with their definitions
// in double, on both devices.
#include "operators/causal_conv1d.h"
#include "operators/matmul.h"
#include "operators/tests/random_support.h"

namespace lfm2::operators::test {

namespace {

ON_BOTH_DEVICES_CHECK(MatmulTest);
ON_BOTH_DEVICES_CHECK(CausalConv1dTest);

}  // namespace

TEST_P(MatmulTest, RandomShapes) {
  for (int round = 0; round < 80; ++round) {
    const DType dtype = any_dtype();
    const bool large = round % 8 == 0;
    const int64_t m = between(0, large ? 200 : 40), n = between(0, large ? 200 : 40), k = between(0, large ? 150 : 50);
    std::vector<int64_t> batch(static_cast<size_t>(large ? 0 : between(0, 3)));
    for (int64_t& extent : batch) extent = between(1, 4);
    const auto operand = [&](int64_t rows, int64_t columns, bool whole) {
      std::vector<int64_t> own = batch;
      if (!whole) {
        for (int64_t& extent : own)
          if (between(0, 2) == 0) extent = 1;
        own.erase(own.begin(), own.begin() + (between(0, 2) == 0 ? between(0, static_cast<int64_t>(own.size())) : 0));
      }
      own.push_back(rows), own.push_back(columns);
      return make(device(), dtype, own, any_layout(), &generator, between(0, 1));
    };
    Made a = operand(m, k, false), b = operand(k, n, false), y = operand(m, n, true);
    a.memory->fill_random(generator), b.memory->fill_random(generator);
    ASSERT_EQ(matmul(a.view, b.view, y.view, nullptr), Status::kOk);
    const std::vector<double> x = in_order(a), z = in_order(b);
    TensorView batches[3] = {y.view, a.view, b.view};
    for (TensorView& view : batches) view.rank -= 2;
    const std::vector<size_t> in_a = broadcast_ordinals(batches[1], batches[0]),
                              in_b = broadcast_ordinals(batches[2], batches[0]);
    std::vector<double> expected, tolerance;
    for (size_t entry = 0; entry < in_a.size(); ++entry)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t l = 0; l < k; ++l) {
            const double term = x[in_a[entry] * static_cast<size_t>(m * k) + static_cast<size_t>(i * k + l)] *
                                z[in_b[entry] * static_cast<size_t>(k * n) + static_cast<size_t>(l * n + j)];
            sum += term;
            magnitude += std::fabs(term);
          }
          expected.push_back(sum);
          tolerance.push_back(store_error(dtype, sum) + static_cast<double>(k + 1) * 0x1p-24 * magnitude);
        }
    expect_close(in_order(y), expected, tolerance, text_of(a.view) + " " + text_of(b.view) + " " + text_of(y.view));
  }
}

TEST_P(CausalConv1dTest, BothFormulationsAndTheirParts) {
  for (int round = 0; round < 60; ++round) {
    const DType dtype = any_dtype();
    const int64_t samples = between(0, 3), channels = between(round % 9 == 0 ? 0 : 1, 70), time = between(0, 90);
    const int64_t filter = round % 7 == 0 ? between(30, 100) : between(1, 6);
    const bool dense = round % 2 == 0, with_bias = between(0, 1) == 0;
    const auto layout = [&] { return dense ? Layout::kDense : any_layout(); };
    Made x = make(device(), dtype, {samples, channels, time}, layout(), &generator, between(0, 1));
    Made w = make(device(), dtype, {channels, filter}, layout(), &generator);
    Made shift = make(device(), dtype, {channels}, layout(), &generator);
    Made y = make(device(), dtype, {samples, channels, time}, layout(), &generator, between(0, 1));
    for (Made* made : {&x, &w, &shift}) made->memory->fill_random(generator);
    const Activation activation = between(0, 1) == 0 ? Activation::kNone : Activation::kSilu;
    ASSERT_EQ(causal_conv1d(x.view, w.view, with_bias ? &shift.view : nullptr, y.view, activation, nullptr),
              Status::kOk);
    const std::vector<double> in = in_order(x), taps = in_order(w), add = in_order(shift);
    std::vector<double> expected, tolerance;
    for (int64_t row = 0; row < samples * channels; ++row) {
      const int64_t c = row % channels;
      for (int64_t t = 0; t < time; ++t) {
        double sum = with_bias ? add[static_cast<size_t>(c)] : 0, magnitude = std::fabs(sum);
        for (int64_t j = std::max<int64_t>(0, filter - 1 - t); j < filter; ++j) {
          const double term =
              taps[static_cast<size_t>(c * filter + j)] * in[static_cast<size_t>(row * time + t - filter + 1 + j)];
          sum += term;
          magnitude += std::fabs(term);
        }
        if (activation == Activation::kSilu) sum /= 1 + std::exp(-sum);
        expected.push_back(sum);
        tolerance.push_back(store_error(dtype, sum) + static_cast<double>(filter + 8) * 0x1p-23 * magnitude);
      }
    }
    const std::string what = text_of(x.view) + " filter " + std::to_string(filter);
    expect_close(in_order(y), expected, tolerance, what);
    if (!dense) continue;

    Made unfolded = make(device(), dtype, {samples, time, filter * channels});
    ASSERT_EQ(causal_conv1d_unfold(x.view, filter, unfolded.view, nullptr), Status::kOk);
    std::vector<double> wide;
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t t = 0; t < time; ++t)
        for (int64_t j = 0; j < filter; ++j)
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t from = t - (filter - 1) + j;
            wide.push_back(from < 0 ? 0 : in[static_cast<size_t>((n * channels + c) * time + from)]);
          }
    EXPECT_EQ(in_order(unfolded), wide) << what;
    Made expanded = make(device(), dtype, {channels, filter * channels});
    ASSERT_EQ(causal_conv1d_expand(w.view, expanded.view, nullptr), Status::kOk);
    std::vector<double> sparse(static_cast<size_t>(channels * filter * channels));
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t j = 0; j < filter; ++j)
        sparse[static_cast<size_t>((c * filter + j) * channels + c)] = taps[static_cast<size_t>(c * filter + j)];
    EXPECT_EQ(in_order(expanded), sparse) << what;

    if (dtype != DType::kF32) continue;  // the product is rounded once more before the bias
    Made again = make(device(), dtype, {samples, channels, time});
    size_t bytes = 0;
    ASSERT_EQ(causal_conv1d_gemm_workspace(x.view, w.view, bytes), Status::kOk);
    Workspace workspace(device(), bytes);
    ASSERT_EQ(causal_conv1d_gemm(x.view, w.view, with_bias ? &shift.view : nullptr, again.view, activation,
                                 workspace.data(), bytes, nullptr),
              Status::kOk);
    expect_close(in_order(again), expected, tolerance, what + " as a product");
  }
}

}  // namespace lfm2::operators::test
