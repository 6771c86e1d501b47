// matmul of the CPU backend with inputs on which a careless kernel loses bits: numbers of very different magnitude,
// infinities and NaNs. In every variant of --simd the results must be as accurate as plain fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/cpu_gemm_support.h"

namespace lfm2 {
namespace {

using namespace test;

// The kinds of rows; a and w have the same ones.
enum class HardKind {
  kNormal,
  kOutliers,
  kBelow1e33,  // their bf16 planes leave the range of normal numbers
  kSubnormal,
  kMixedTiny,  // subnormal numbers among normal ones
  kHuge,
  kNearLargest,  // round to infinity in bf16
  kWide,         // 60 powers of ten
  kSwamped,      // one large number among small ones
  kUnswamped,    // the same, and zero where kSwamped is large
  kPairs,        // equal neighbours
  kOpposites,    // neighbours that cancel but for a trifle
  kPowersOfTwo,
  kLargeIntegers,
  kSameSign,
  kZeros,
};
constexpr int kKinds = static_cast<int>(HardKind::kZeros) + 1;

std::vector<double> row_of(HardKind kind, int64_t k, double most, std::mt19937& generator) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<double> row(static_cast<size_t>(k));
  for (size_t i = 0; i < row.size(); ++i) {
    const double x = normal(generator), u = uniform(generator), sign = x < 0 ? -1 : 1;
    const auto value = [&]() -> double {
      switch (kind) {
        case HardKind::kNormal:
          return x;
        case HardKind::kOutliers:
          return i % 97 == 5 ? 1e4 * x : x;
        case HardKind::kBelow1e33:
          return 1e-34 * x;
        case HardKind::kSubnormal:
          return 1e-40 * x;
        case HardKind::kMixedTiny:
          return i % 3 == 0 ? 1e-39 * x : i % 3 == 1 ? 1e-35 * x : 1e-3 * x;
        case HardKind::kHuge:
          return 1e30 * x;
        case HardKind::kNearLargest:
          return i % 50 == 7 ? sign * static_cast<double>(std::numeric_limits<float>::max()) : 1e35 * x;
        case HardKind::kWide:
          return sign * std::pow(10, 60 * u - 30);
        case HardKind::kSwamped:
          return i % 300 == 11 ? std::min(1e20, most / 8) * x : 1e-10 * x;
        case HardKind::kUnswamped:
          return i % 300 == 11 ? 0 : 1e-10 * x;
        case HardKind::kPairs:
          return i % 2 == 1 ? row[i - 1] : x;
        case HardKind::kOpposites:
          return i % 2 == 1 ? -row[i - 1] * (1 + 1e-6 * u) : x;
        case HardKind::kPowersOfTwo:
          return sign * std::exp2(std::floor(20 * u) - 10);
        case HardKind::kLargeIntegers:
          return std::floor(x * 1e6);
        case HardKind::kSameSign:
          return 1 + u;
        case HardKind::kZeros:
          return 0;
      }
      return 0;
    };
    row[i] = value();
  }
  return row;
}

// Fills the rows with all kinds in turn; fp16 stays inside its range.
void fill_hard(HostTensor& matrix, uint32_t seed) {
  std::mt19937 generator(seed);
  const int64_t k = matrix->dim(1);
  const double most = matrix->dtype == DType::kF16 ? 65504 : static_cast<double>(std::numeric_limits<float>::max());
  for (int64_t r = 0; r < matrix->dim(0); ++r) {
    const std::vector<double> row = row_of(static_cast<HardKind>(r % kKinds), k, most, generator);
    for (int64_t i = 0; i < k; ++i)
      matrix.set(static_cast<size_t>(r * k + i), std::clamp(row[static_cast<size_t>(i)], -most, most));
    // bf16 rounds the largest float to infinity.
    for (int64_t i = 0; i < k; ++i)
      if (const auto at = static_cast<size_t>(r * k + i); std::isinf(matrix.get(at)))
        matrix.set(at, std::copysign(0x1.fep127, matrix.get(at)));
  }
}

// A test of one variant of --simd; simd is null where this machine cannot run it.
class EverySimd : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const Simd* simd : available_simd())
      if (std::string(simd->name) == GetParam()) simd_ = simd;
    if (simd_ == nullptr) GTEST_SKIP() << "this processor cannot run --simd " << GetParam();
  }
  HostTensor product(const Tensor& a, const Tensor& w, int threads = 2) const {
    ThreadPool pool(threads);
    CpuOps ops(pool, *simd_);
    HostTensor out(DType::kF32, {a.dim(0), w.dim(0)});
    ops.matmul(a, w, {}, out, Write::kStore);
    return out;
  }
  // The sum in plain fp32: multiply-adds in order, with the roundings that the variant's own multiply-add has.
  float plain(const std::vector<double>& a, const std::vector<double>& w) const {
    float sum = 0;
    for (size_t block = 0; block < a.size(); block += kMatmulBlockK) {
      float part = 0;
      for (size_t i = block; i < std::min(a.size(), block + kMatmulBlockK); ++i) {
        const auto x = static_cast<float>(a[i]), y = static_cast<float>(w[i]);
        volatile float rounded = x * y;  // volatile keeps the product from being fused with the addition
        part = fused() ? std::fma(x, y, part) : rounded + part;
      }
      sum += part;
    }
    return sum;
  }
  bool fused() const {
#if defined(__x86_64__)
    return simd_ != &kSimdPortable;
#else
    return true;
#endif
  }
  // The same as products of pairs add up: the second of a pair first, and subnormal numbers are zeros.
  static float pairwise(const std::vector<double>& a, const std::vector<double>& w) {
    const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
    float sum = 0;
    for (size_t block = 0; block < a.size(); block += kMatmulBlockK) {
      float part = 0;
      const size_t end = std::min(a.size(), block + kMatmulBlockK);
      for (size_t i = block; i < end; i += 2)
        for (const size_t at : {i + 1, i})
          if (at < end)
            part = flushed(std::fma(flushed(static_cast<float>(a[at])), flushed(static_cast<float>(w[at])), part));
      sum += part;
    }
    return sum;
  }
  bool in_pairs(DType act, DType weight) const {
    return GetParam() == std::string("avx512bf16") && act == DType::kBf16 && weight == DType::kBf16;
  }
  const Simd* simd_ = nullptr;
};

std::vector<double> row(const HostTensor& matrix, int64_t r) {
  std::vector<double> values;
  for (int64_t i = 0; i < matrix->dim(1); ++i)
    values.push_back(matrix.get(static_cast<size_t>(r * matrix->dim(1) + i)));
  return values;
}

// Whether both are numbers, both NaN, or both infinities of the same sign.
testing::AssertionResult same_class(double found, double expected) {
  if (std::isnan(found) == std::isnan(expected) && std::isinf(found) == std::isinf(expected) &&
      (!std::isinf(found) || found == expected))
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << found << " instead of " << expected;
}

// For each kind of row with each kind of column, the root mean square error against exact sums is at most that of plain
// fp32, except for chance: a sum of few products is rounded as often as in plain fp32. One type with one k has few
// independent errors, so it may reach one and a half times as much, or half a unit in the last place of Σ |a w|.
TEST_P(EverySimd, HardInputsAreAsAccurateAsPlainFp32) {
  const int64_t rows = 6, columns = 9, m = rows * kKinds, n = columns * kKinds;
  std::vector<double> squares(kKinds * kKinds), counts(kKinds * kKinds);
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes)
      for (const int64_t k : {1, 40, 700}) {
        HostTensor a(act, {m, k}), w(weight, {n, k});
        fill_hard(a, 11);
        fill_hard(w, 12);
        const HostTensor out = product(a, w);
        std::vector<std::vector<double>> a_rows, w_rows;
        for (int64_t r = 0; r < m; ++r) a_rows.push_back(row(a, r));
        for (int64_t c = 0; c < n; ++c) w_rows.push_back(row(w, c));
        if (in_pairs(act, weight)) {  // the bits are known
          for (int64_t r = 0; r < m; ++r)
            for (int64_t c = 0; c < n; ++c) {
              const float found = static_cast<float>(out.get(static_cast<size_t>(r * n + c))),
                          expected = pairwise(a_rows[static_cast<size_t>(r)], w_rows[static_cast<size_t>(c)]);
              ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
                  << found << " instead of " << expected << " at " << r << ", " << c << ", k " << k;
            }
          continue;
        }
        for (int kind_a = 0; kind_a < kKinds; ++kind_a)
          for (int kind_w = 0; kind_w < kKinds; ++kind_w) {
            double ours = 0, theirs = 0, half_unit = 0;
            for (int64_t r = kind_a; r < m; r += kKinds)
              for (int64_t c = kind_w; c < n; c += kKinds) {
                const std::vector<double>&x = a_rows[static_cast<size_t>(r)], &y = w_rows[static_cast<size_t>(c)];
                long double exact = 0, magnitude = 0;
                for (size_t i = 0; i < x.size(); ++i) {
                  const long double term = static_cast<long double>(x[i]) * y[i];
                  exact += term, magnitude += std::fabs(term);
                }
                const double single = static_cast<double>(plain(x, y)), found = out.get(static_cast<size_t>(r * n + c));
                ASSERT_TRUE(same_class(found, single)) << "at " << r << ", " << c << ", k " << k;
                if (!std::isfinite(single)) continue;
                ours = std::hypot(ours, static_cast<double>(found - exact));
                theirs = std::hypot(theirs, static_cast<double>(single - exact));
                half_unit = std::hypot(half_unit, store_error(DType::kF32, static_cast<double>(magnitude)));
              }
            EXPECT_LE(ours, std::max(1.5 * theirs, half_unit))
                << name(act) << " rows of kind " << kind_a << ", " << name(weight) << " columns of kind " << kind_w
                << ", k " << k << ": " << ours / theirs;
            if (theirs == 0) continue;
            const auto pair = static_cast<size_t>(kind_a * kKinds + kind_w);
            squares[pair] += std::pow(ours / theirs, 2);
            ++counts[pair];
          }
      }
  double worst = 0;
  for (size_t pair = 0; pair < squares.size(); ++pair) {
    if (counts[pair] == 0) continue;
    const double ratio = std::sqrt(squares[pair] / counts[pair]);
    EXPECT_LE(ratio, 1.05) << "rows of kind " << pair / kKinds << ", columns of kind " << pair % kKinds;
    worst = std::max(worst, ratio);
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

// Infinities and NaNs give what plain fp32 gives, and leave other rows and columns as they are.
TEST_P(EverySimd, InfinitiesAndNansAsPlainFp32) {
  const int64_t m = 100, n = 70, k = 300;
  const double infinity = HUGE_VAL;
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes) {
      HostTensor a(act, {m, k}), w(weight, {n, k});
      a.fill_random(5);
      w.fill_random(6);
      const HostTensor clean = product(a, w);
      const auto at = [&](int64_t r, int64_t i) { return static_cast<size_t>(r * k + i); };
      a.set(at(3, 7), infinity);
      a.set(at(8, 299), -infinity);
      a.set(at(9, 1), infinity), a.set(at(9, 290), -infinity);
      a.set(at(20, 31), NAN);
      a.set(at(40, 260), infinity);
      for (const int64_t i : {7, 31, 260}) w.set(at(5, i), 0);       // infinity times zero
      for (const int64_t i : {7, 31, 260}) w.set(at(6, i), 1);       // all planes but the first are zero
      for (const int64_t i : {7, 31, 260}) w.set(at(7, i), -1e-41);  // zero for the tiles
      w.set(at(33, 100), infinity);
      w.set(at(69, 0), NAN);
      if (act == DType::kF32)  // a NaN that rounds to zero in bf16, by the rule for numbers
        a->as<uint32_t>()[at(77, 64)] = 0x7fffffffu;
      if (weight == DType::kF32) w->as<uint32_t>()[at(34, 64)] = 0xffffffffu;
      const HostTensor out = product(a, w);
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < n; ++c) {
          const auto element = static_cast<size_t>(r * n + c);
          const std::vector<double> x = row(a, r), y = row(w, c);
          ASSERT_TRUE(same_class(out.get(element), static_cast<double>(plain(x, y))))
              << name(act) << " " << name(weight) << " at " << r << ", " << c;
          const auto finite = [](double value) { return std::isfinite(value); };
          if (std::all_of(x.begin(), x.end(), finite) && std::all_of(y.begin(), y.end(), finite) && (c < 5 || c > 7)) {
            ASSERT_EQ(out.get(element), clean.get(element)) << "at " << r << ", " << c;
          }
        }
    }
}

// The bits of a row do not depend on its neighbours or their number.
TEST_P(EverySimd, BitsOfHardRowsDependOnTheRowOnly) {
  for (const DType weight : kFloatTypes)
    for (const int64_t k : {700, 32}) {
      const int64_t m = 10 * kKinds, n = 5 * kKinds;  // more rows than the kernel for few rows takes
      HostTensor a(DType::kF32, {m, k}), w(weight, {n, k});
      fill_hard(a, 21);
      fill_hard(w, 22);
      a.set(static_cast<size_t>(3 * k + 5), HUGE_VAL);
      w.set(static_cast<size_t>(2 * k + 9), -HUGE_VAL);
      const HostTensor whole = product(a, w, 1);
      const auto expect_part = [&](const HostTensor& part, int64_t first_row, int64_t first_column) {
        for (int64_t r = 0; r < part->dim(0); ++r)
          for (int64_t c = 0; c < part->dim(1); ++c) {
            const auto bits = [](const HostTensor& x, int64_t i) { return x->as<uint32_t>()[i]; };
            const int64_t i = r * part->dim(1) + c, j = (first_row + r) * n + first_column + c;
            if (std::isnan(part.get(static_cast<size_t>(i))) && std::isnan(whole.get(static_cast<size_t>(j)))) continue;
            ASSERT_EQ(bits(part, i), bits(whole, j)) << "row " << first_row + r << ", column " << first_column + c
                                                     << ", among " << part->dim(0) << " x " << part->dim(1);
          }
      };
      for (const int threads : {2, 5}) expect_part(product(a, w, threads), 0, 0);
      for (const int64_t rows : {1, 2, 16, 17, 33, 65, 97})
        for (int64_t first = 0; first + rows <= m; first += 13) expect_part(product(a->rows(first, rows), w), first, 0);
      for (const int64_t columns : {1, 31, 33})
        for (int64_t first = 0; first + columns <= n; first += 11)
          expect_part(product(a, w->rows(first, columns)), 0, first);
    }
}

TEST(MatmulTest, InfinityAndNanStayInTheirRow) {
  ThreadPool pool(1);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    HostTensor a(DType::kF32, {3, 40}), w(DType::kF32, {9, 40}), out(DType::kF32, {3, 9});
    a.fill(1.0);
    w.fill(1.0);
    a.set(5, HUGE_VAL);
    a.set(40 + 39, NAN);
    ops.matmul(a, w, {}, out, Write::kStore);
    for (size_t c = 0; c < 9; ++c) {
      EXPECT_EQ(out.get(c), HUGE_VAL);
      EXPECT_TRUE(std::isnan(out.get(9 + c)));
      EXPECT_EQ(out.get(18 + c), 40);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(MatmulTest, EverySimd, testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable"),
                         [](const auto& variant) { return std::string(variant.param); });

}  // namespace
}  // namespace lfm2
