// matmul of the CPU backend, compared with its specification, and the independence of each result's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/cpu_gemm_support.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(MatmulTest, OddSizes) { check_matmul_of_odd_sizes(AllCpus().all, DType::kF32); }

TEST(MatmulTest, EveryTypeBiasAndAdd) { check_matmul_of_every_type(AllCpus().all, true); }

TEST(MatmulTest, EmptyInputs) { check_matmul_of_nothing(AllCpus().all); }

TEST(MatmulTest, AgreesWithTransformers) { check_matmul_of_transformers(AllCpus().all); }

// The spacing of the fp32 numbers at x.
double spacing(double x) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto power = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(x)) & kExponent);
  return std::max(0x1p-149, 0x1p-23 * static_cast<double>(power));
}

// What one element of a product is, and the variance of its error where each rounding of the summation that simd.h
// defines is unbiased and independent of the others. A rounding at a sum x is off by up to half of the spacing u at x.
// Where what is cut off is spread evenly, its variance is at most u^2 / 8: that of the coarsest case, in which half of
// the sums are ties; u^2 / 12 is the limit of the finest. The terms for what a table rounds beyond the additions:
//   - without fused multiply-add, each product;
//   - on AMX, the products of small planes that it leaves out, below 2^-23 of the product.
struct ExpectedElement {
  double value = 0, variance = 0;
};
ExpectedElement expected_element(const double* a, const double* w, int64_t k, const Simd& simd) {
  constexpr double kCoarsest = 1.0 / 8;
  const auto rounding = [](double x) { return kCoarsest * spacing(x) * spacing(x); };
  const bool portable = std::string(simd.name) == "portable", amx = simd.matmul == &kMatmulAmx;
  ExpectedElement element;
  for (int64_t block = 0; block < k; block += static_cast<int64_t>(kMatmulBlockK)) {
    double part = 0;
    for (int64_t i = block; i < std::min(k, block + static_cast<int64_t>(kMatmulBlockK)); ++i) {
      const double product = a[i] * w[i];
      part += product;
      element.variance += rounding(part);
      if (portable) element.variance += rounding(product);
      if (amx) element.variance += 0x1p-46 * product * product;
    }
    element.value += part;
    element.variance += rounding(element.value);
  }
  return element;
}

// The mean square error of a product, divided by the largest that its roundings allow: what is expected, and five
// standard deviations of the mean over all elements. The sum of many roundings is nearly normal, so the square of an
// element's error has the variance 2 variance^2.
double error_ratio(const MatmulInputs& in, const MatmulCase& c, const Simd& simd,
                   const std::function<double(int64_t row, int64_t column)>& result) {
  constexpr double kDeviations = 5;
  const std::vector<double> a = in.a.values(), w = in.w.values();
  double errors = 0, variances = 0, squares = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      const ExpectedElement expected = expected_element(a.data() + i * c.k, w.data() + j * c.k, c.k, simd);
      errors += std::pow(result(i, j) - expected.value, 2);
      variances += expected.variance;
      squares += expected.variance * expected.variance;
    }
  return errors / (variances + kDeviations * std::sqrt(2 * squares));
}

void expect_as_accurate_as_its_roundings(const char* what, const MatmulInputs& in, const MatmulCase& c) {
  for (const Simd* simd : available_simd()) {
    const HostTensor out = run(*simd, 2, c, in);
    const double ratio =
        error_ratio(in, c, *simd, [&](int64_t i, int64_t j) { return out.get(static_cast<size_t>(i * c.n + j)); });
    EXPECT_LE(ratio, 1) << simd->name << ", " << what << ", " << c.text();
    testing::Test::RecordProperty(fmt::format("{}_{}_{}_{}_k{}", what, simd->name, name(c.act), name(c.weight), c.k),
                                  std::to_string(ratio));
  }
}

TEST(MatmulTest, EveryTypeIsAsAccurateAsItsRoundings) {
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes) {
      const MatmulCase c{65, 100, 700, act, weight};
      expect_as_accurate_as_its_roundings("normal", MatmulInputs(c), c);
    }
}

TEST(MatmulTest, IsAsAccurateAsItsRoundings) {
  for (const int64_t k : {64, 1024, 3000}) {
    const MatmulCase c{65, 100, k};
    MatmulInputs in(c);
    expect_as_accurate_as_its_roundings("normal", in, c);
    const auto change = [&](auto&& scale) {
      for (HostTensor* x : {&in.a, &in.w})
        for (size_t i = 0; i < x->size(); ++i) x->set(i, x->get(i) * scale(i));
    };
    change([](size_t i) { return i % 97 == 5 ? 1000.0 : 1.0; });
    expect_as_accurate_as_its_roundings("outliers", in, c);
    change([](size_t) { return 1e-12; });
    expect_as_accurate_as_its_roundings("tiny", in, c);
    change([](size_t) { return 1e26; });
    expect_as_accurate_as_its_roundings("huge", in, c);
    for (HostTensor* x : {&in.a, &in.w})
      for (size_t i = 0; i < x->size(); ++i) x->set(i, 1 + std::fabs(x->get(i)) * 1e-14);
    expect_as_accurate_as_its_roundings("same_sign", in, c);
    for (size_t i = 0; i < in.w.size(); i += 2) in.w.set(i, -in.w.get(i));
    expect_as_accurate_as_its_roundings("cancellation", in, c);
  }
}

// A sum without blocks is another order, and misses the bound.
TEST(MatmulTest, TheBoundOfRoundingsFindsAWrongOrder) {
  const MatmulCase c{20, 30, 1024};
  const MatmulInputs in(c);
  const auto unblocked = [&](int64_t row, int64_t column) {
    float sum = 0;
    for (int64_t i = 0; i < c.k; ++i)
      sum = std::fma(in.a->as<float>()[row * c.k + i], in.w->as<float>()[column * c.k + i], sum);
    return static_cast<double>(sum);
  };
  EXPECT_GT(error_ratio(in, c, *available_simd().front(), unblocked), 1);
}

// The tables whose bits must agree: those with fused multiply-add in vector registers.
std::vector<const Simd*> fused_simd() {
  std::vector<const Simd*> tables = available_simd();
#if defined(__x86_64__)
  if (tables.size() > 1) tables.pop_back();  // the last one, "portable", has none
  if (tables.front()->matmul == &kMatmulAmx) tables.erase(tables.begin());
#endif
  return tables;
}

// The sum in the order that simd.h defines, one element at a time.
float sum_in_order(const float* a, const float* w, size_t k) {
  float sum = 0;
  for (size_t block = 0; block < k; block += kMatmulBlockK) {
    float part = 0;
    for (size_t i = block; i < std::min(k, block + kMatmulBlockK); ++i) part = std::fma(a[i], w[i], part);
    sum += part;
  }
  return sum;
}

TEST(MatmulTest, SumsInTheOrderThatSimdDefines) {
  for (const int64_t k : {5, 16, 100, 256, 300, 1063}) {
    const MatmulCase c{15, 35, k};
    const MatmulInputs in(c);
    for (const Simd* simd : fused_simd()) {
      const HostTensor out = run(*simd, 1, c, in);
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j)
          ASSERT_EQ(out->as<float>()[i * c.n + j],
                    sum_in_order(in.a->as<float>() + i * k, in.w->as<float>() + j * k, static_cast<size_t>(k)))
              << simd->name << " k " << k << " at " << i << ", " << j;
    }
  }
}

TEST(MatmulTest, BitsDependOnTheRowOnly) {
  for (const DType weight : kFloatTypes) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{150, 1100}, {11, 64}, {300, 290}}) {
      const MatmulCase whole{140, n, k, DType::kF32, weight};
      SCOPED_TRACE(whole.text());
      const MatmulInputs in(whole);
      for (const Simd* simd : available_simd()) {
        SCOPED_TRACE(simd->name);
        const HostTensor expected = run(*simd, 1, whole, in);
        for (const int threads : {2, 3, 7})
          EXPECT_TRUE(same_bits(run(*simd, threads, whole, in), expected)) << threads << " threads";

        ThreadPool pool(2);
        CpuOps ops(pool, *simd);
        for (const int64_t rows : {1, 2, 3, 7, 13, 17, 33, 139}) {  // some of the rows by themselves
          HostTensor part(DType::kF32, {rows, n});
          for (int64_t first = 0; first + rows <= whole.m; first += 37) {
            ops.matmul(in.a->rows(first, rows), in.w, {}, part, Write::kStore);
            EXPECT_TRUE(same_bits(part, expected->rows(first, rows))) << "rows " << first << " + " << rows;
          }
        }
        for (int64_t first = 0; first < n; first += 29) {  // some of the columns by themselves
          const int64_t columns = std::min<int64_t>(29, n - first);
          HostTensor part(DType::kF32, {whole.m, columns});
          ops.matmul(in.a, in.w->rows(first, columns), {}, part, Write::kStore);
          for (int64_t r = 0; r < whole.m; ++r)
            for (int64_t c = 0; c < columns; ++c)
              ASSERT_EQ(part.get(static_cast<size_t>(r * columns + c)),
                        expected.get(static_cast<size_t>(r * n + first + c)));
        }
      }
      for (const Simd* simd : fused_simd())
        EXPECT_TRUE(same_bits(run(*simd, 1, whole, in), run(*fused_simd().front(), 1, whole, in))) << simd->name;
    }
  }
}

// How operands are packed depends on both types in "avx512bf16". Only its products of bf16 by bf16 have bits of their
// own.
TEST(MatmulTest, TablesAgreeInEveryType) {
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes)
      for (const int64_t m : {1, 15, 65}) {
        const MatmulCase c{m, 70, 301, act, weight};
        const MatmulInputs in(c);
        const std::vector<const Simd*> tables = fused_simd();  // none beside the kernel for AMX by itself
        for (const Simd* simd : tables) {
          const HostTensor expected = run(*tables.back(), 1, c, in);
          const bool own = simd->name == std::string("avx512bf16") && act == DType::kBf16 && weight == DType::kBf16;
          EXPECT_NE(same_bits(run(*simd, 1, c, in), expected), own) << simd->name << ", " << c.text();
        }
      }
}

// A row has the same bits by itself as among more rows than one block holds.
TEST(MatmulTest, ManyRows) {
  const MatmulCase whole{1300, 40, 70};
  const MatmulInputs in(whole);
  for (const Simd* simd : available_simd()) {
    const HostTensor expected = run(*simd, 2, whole, in);
    ThreadPool pool(1);
    CpuOps ops(pool, *simd);
    for (int64_t first = 0; first < whole.m; first += 101) {
      HostTensor part(DType::kF32, {1, 40});
      ops.matmul(in.a->rows(first, 1), in.w, {}, part, Write::kStore);
      EXPECT_TRUE(same_bits(part, expected->rows(first, 1))) << simd->name << " row " << first;
    }
  }
}

TEST(MatmulTest, RefusesShapesThatDisagree) {
  ThreadPool pool(1);
  CpuOps ops(pool, *available_simd().front());
  HostTensor a(DType::kF32, {3, 40}), w(DType::kF32, {9, 41}), out(DType::kF32, {3, 9});
  EXPECT_THROW(ops.matmul(a, w, {}, out, Write::kStore), Error);
}

}  // namespace
}  // namespace lfm2
