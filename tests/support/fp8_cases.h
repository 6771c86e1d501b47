// Cases of quantize, and of the four products of fp8 operands, which the tests of both backends run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

// How the factors lie: `rows` rows of w share one for each `group` elements of k, or for the whole row (0).
struct Fp8Scheme {
  int64_t rows, group;
};
inline constexpr Fp8Scheme kChannel{1, 0}, kBlock{8, 128};

// An fp8 tensor [..., rows, k] with random elements, and factors between 2^-8 and 2^-6.
struct Fp8Matrix {
  Fp8Matrix(std::initializer_list<int64_t> shape, Fp8Scheme scheme, uint32_t seed)
      : elements(DType::kF8, shape),
        scales(DType::kF32, {scale_count(elements.view(), scheme)}),
        layout{nullptr, scheme.rows, scheme.group,
               std::max<int64_t>(1, elements->dim(elements->rank - 2)) / scheme.rows} {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, 64.0f);
    for (size_t i = 0; i < elements.size(); ++i) elements.view().as<F8>()[i] = from_float<F8>(normal(generator));
    std::uniform_real_distribution<double> exponent(-8, -6);
    for (size_t i = 0; i < scales.size(); ++i) scales.set(i, std::exp2(exponent(generator)));
  }
  static int64_t scale_count(const Tensor& x, Fp8Scheme scheme) {
    const int64_t k = std::max<int64_t>(x.k(), 1);
    return x.numel() / k / scheme.rows * Scales{.group = scheme.group}.groups(k);
  }
  // The same tensor where its parts lie.
  Tensor with(const Tensor& there, const Tensor& scales_there) const {
    Tensor tensor = there;
    tensor.scales = layout;
    tensor.scales.data = scales_there.as<float>();
    return tensor;
  }
  Tensor view() const { return with(elements, scales); }
  HostTensor elements, scales;
  Scales layout;
};

inline void check_quantize(const AllUnderTest& all, DType act, int64_t rows, int64_t k, int64_t group) {
  SCOPED_TRACE(fmt::format("{} rows {} k {} group {}", name(act), rows, k, group));
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  HostTensor x(act, {rows, k});
  x.fill_random(7, 3.0f);
  for (int64_t c = 0; rows > 0 && c < k; ++c) x.set(at(c), 0);  // the first row
  if (rows > 3) x.set(at(k), static_cast<double>(nan)), x.set(at(2 * k), static_cast<double>(infinity));
  if (rows > 3) x.set(at(3 * k), act == DType::kF16 ? 30000 : 1e30);
  for (int64_t c = 0; rows > 4 && act != DType::kF16 && c < k; ++c) x.set(at(4 * k + c), x.get(at(4 * k + c)) * 1e-33);
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    const Fp8Matrix out({rows, k}, {1, group}, 8);
    under->run([&](Ops& ops, const Tensor& in, const Tensor& elements,
                   const Tensor& scales) { ops.quantize(in, out.with(elements, scales)); },
               x, out.elements, out.scales);
    const Tensor result = out.view();
    const std::vector<double> values = reference::elements(result), expected = reference::quantized(x, group);
    size_t others = 0;
    for (int64_t i = 0; i < rows * k; ++i) {
      const double in = x.get(at(i)), scale = static_cast<double>(result.scales.data[result.scale_of(i)]);
      if (std::isnan(expected[at(i)])) {
        EXPECT_TRUE(std::isnan(values[at(i)])) << i;
        continue;
      }
      // Half a step of E4M3 at the most, and the roundings of the factor and the quotient.
      const double half = std::max(std::fabs(in) * 0x1p-4, scale * 0x1p-10);
      ASSERT_LE(std::fabs(values[at(i)] - in), half * (1 + 0x1p-20)) << i;
      if (std::fabs(values[at(i)] - expected[at(i)]) > std::fabs(expected[at(i)]) * 0x1p-22) ++others;
    }
    // What lies on the middle of a step in fp32 may lie beside it in fp64.
    EXPECT_LE(others, x.size() / 200 + 1);
  }
}

inline void check_quantize(const AllUnderTest& all) {
  for (const DType act : kFloatTypes)
    for (const int64_t group : {0, 128})
      for (const int64_t k : {1, 8, 96, 128, 192, 301, 2048, 7168}) check_quantize(all, act, 5, k, group);
  check_quantize(all, DType::kBf16, 0, 128, 128);
}

// The error that a product of fp8 rows may have on tensor cores: each instruction adds 32 products to a sum, all
// aligned to the largest of them and cut to 13 bits after its first. Sums of 128 of k start from zero.
inline double fp8_tensor_core_error(const double* a, const double* w, int64_t k) {
  double error = 0;
  for (int64_t first = 0; first < k; first += 128) {
    double sum = 0;
    for (int64_t step = first; step < std::min(first + 128, k); step += 32) {
      double largest = std::fabs(sum);
      for (int64_t c = step; c < std::min(step + 32, k); ++c)
        largest = std::max(largest, std::fabs(a[c] * w[c])), sum += a[c] * w[c];
      error += 33 * 0x1p-13 * largest;
    }
  }
  return error;
}

struct Fp8Case {
  std::vector<double> split;  // first row of each expert, then the rows
  int64_t n, k;
  Fp8Scheme scheme = kBlock;
  DType out = DType::kBf16;
  bool swiglu = false, add = false, bias = false;
  std::string text() const {
    return fmt::format("{} rows, {} matrices, n {} k {} {} to {}{}{}{}", split.back(), split.size() - 1, n, k,
                       scheme.group == 0 ? "channel" : "block", name(out), swiglu ? " swiglu" : "", add ? " add" : "",
                       bias ? " bias" : "");
  }
};

inline void check_fp8_product(const AllUnderTest& all, const Fp8Case& c) {
  SCOPED_TRACE(c.text());
  const auto rows = static_cast<int64_t>(c.split.back()), experts = static_cast<int64_t>(c.split.size()) - 1;
  const Fp8Matrix a({rows, c.k}, {1, c.scheme.group}, 1), w({experts, c.n, c.k}, c.scheme, 2);
  HostTensor offsets(DType::kI32, {experts + 1}), bias(DType::kBf16, {c.n});
  offsets.fill(c.split);
  bias.fill_random(3);
  const int64_t columns = c.swiglu ? c.n / 2 : c.n;
  HostTensor old(c.out, {rows, columns});
  old.fill_random(4);
  const Tensor view_a = a.view(), view_w = w.view();
  const auto sums = reference::grouped_matmul(view_a, view_w, offsets);
  const auto expected = c.swiglu      ? reference::grouped_swiglu(view_a, view_w, offsets)
                        : experts > 1 ? sums
                                      : reference::matmul(view_a, view_w.at(0), c.bias ? bias.view() : Tensor{},
                                                          c.add ? old.view() : Tensor{});
  const std::vector<double> x = reference::elements(view_a), y = reference::elements(view_w);
  std::vector<double> errors;  // of the sums, on tensor cores
  for (int64_t i = 0, expert = 0; i < rows; ++i) {
    while (i >= static_cast<int64_t>(c.split[at(expert + 1)])) ++expert;
    for (int64_t j = 0; j < c.n; ++j)
      errors.push_back(fp8_tensor_core_error(&x[at(i * c.k)], &y[at((expert * c.n + j) * c.k)], c.k));
  }
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    HostTensor out(c.out, {rows, columns});
    std::copy_n(old->data, c.add ? old->bytes() : 0, out->data);
    under->run(
        [&](Ops& ops, const Tensor& a8, const Tensor& a_scales, const Tensor& w8, const Tensor& w_scales,
            const Tensor& ends, const Tensor& b, const Tensor& to) {
          const Tensor left = a.with(a8, a_scales), right = w.with(w8, w_scales);
          if (experts == 1 && c.swiglu)
            ops.matmul_swiglu(left, right.at(0), to);
          else if (experts == 1)
            ops.matmul(left, right.at(0), c.bias ? b : Tensor{}, to, c.add ? Write::kAdd : Write::kStore);
          else if (c.swiglu)
            ops.grouped_swiglu(left, right, ends, to);
          else
            ops.grouped_matmul(left, right, ends, to);
        },
        a.elements, a.scales, w.elements, w.scales, offsets, bias, out);
    std::vector<double> tolerance;
    for (size_t i = 0; i < out.size(); ++i) {
      // The scaled values and their products have four roundings, then comes the summation.
      const double fp32 = (static_cast<double>(c.k) + 16) * 0x1p-24 * expected.magnitudes[i];
      double tensor_core = under->units(0, 1) * (c.swiglu ? 0 : errors[i]);
      if (c.swiglu) {
        const int64_t row = static_cast<int64_t>(i) / columns, column = static_cast<int64_t>(i) % columns;
        const size_t gate = at(row * c.n + column / kGateUpBlock * 2 * kGateUpBlock + column % kGateUpBlock),
                     up = gate + at(kGateUpBlock);
        const double g = sums.values[gate], u = sums.values[up], silu = g / (1 + std::exp(-g));
        tensor_core =
            under->units(0, 1) * (1.1 * errors[gate] * (std::fabs(u) + errors[up]) + std::fabs(silu) * errors[up]);
      }
      tolerance.push_back(fp32 + tensor_core + under->units(0, 0x1p-20) * std::fabs(expected.values[i]) +
                          store_error(c.out, expected.values[i]));
    }
    expect_close(out, expected.values, tolerance);
  }
}

inline void check_fp8_products(const AllUnderTest& all) {
  const std::vector<double> few = {0, 3, 3, 10, 150, 151}, single = {0, 1, 1, 2, 3, 4}, empty = {0, 0, 0};
  for (const Fp8Scheme scheme : {kBlock, kChannel}) {
    for (const int64_t k : {16, 96, 128, 192, 1104}) {
      for (const double m : {1, 7, 65, 200}) {
        check_fp8_product(all, {{0, m}, 72, k, scheme});
        check_fp8_product(all, {{0, m}, 136, k, scheme, DType::kBf16, false, true});
        check_fp8_product(all, {{0, m}, 256, k, scheme, DType::kF16, true});
      }
      for (const auto& split : {few, single}) {
        check_fp8_product(all, {split, 144, k, scheme});
        check_fp8_product(all, {split, 160, k, scheme, DType::kBf16, true});
      }
    }
    // Sizes that no tensor core takes, and types.
    check_fp8_product(all, {{0, 5}, 24, 100, scheme, DType::kF32, false, true, true});
    check_fp8_product(all, {{0, 70}, 64, 328, scheme, DType::kF32, true});
    check_fp8_product(all, {few, 48, 129, scheme, DType::kF16});
    check_fp8_product(all, {{0, 33}, 40, 256, scheme, DType::kF32, false, true, true});
    check_fp8_product(all, {{0, 33}, 40, 256, scheme, DType::kBf16, false, false, true});
    check_fp8_product(all, {empty, 64, 128, scheme});
  }
  check_fp8_product(all, {{0, 3}, 7, 40, {1, 128}});  // factors of single rows and groups
}

}  // namespace lfm2::test
