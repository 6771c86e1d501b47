// matmul and grouped_matmul of the CPU backend: against double precision and BLAS, and the independence of each
// result's bits.
#include <cblas.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "support/golden.h"
#include "support/host_tensor.h"

namespace lfm2 {
namespace {

using test::HostTensor;

constexpr std::initializer_list<DType> kTypes = {DType::kF32, DType::kBf16, DType::kF16};

struct Case {
  int64_t m, n, k;
  DType act = DType::kF32, weight = DType::kF32, out = DType::kF32;
  bool bias = false;
  Write write = Write::kStore;

  std::string text() const {
    return fmt::format("m {} n {} k {} {} {} {} bias {} add {}", m, n, k, name(act), name(weight), name(out), bias,
                       write == Write::kAdd);
  }
};

struct Inputs {
  explicit Inputs(const Case& c)
      : a(c.act, {c.m, c.k}), w(c.weight, {c.n, c.k}), bias(c.weight, {c.n}), old(c.out, {c.m, c.n}) {
    a.fill_random(1);
    w.fill_random(2);
    bias.fill_random(3, 10.0f);
    old.fill_random(4, 10.0f);
  }
  HostTensor a, w, bias, old;
};

HostTensor run(const Simd& simd, int threads, const Case& c, const Inputs& in) {
  ThreadPool pool(threads);
  CpuOps ops(pool, simd);
  HostTensor out(c.out, {c.m, c.n});
  if (c.write == Write::kAdd) std::memcpy(out->data, in.old->data, out->bytes());
  ops.matmul(in.a, in.w, c.bias ? in.bias.view() : Tensor{}, out, c.write);
  return out;
}

// The bound of the summation that simd.h describes: each product goes through one multiply-add (two roundings where the
// target has none), the additions of its lane, the fold of the lanes and the additions of the blocks; then bias, old
// value and store.
double summation_steps(int64_t k) {
  return static_cast<double>(std::min<int64_t>(k, 1024) / 16 + 2 + 4 + (k + 1023) / 1024 + 2);
}

void check(const Case& c) {
  SCOPED_TRACE(c.text());
  const Inputs in(c);
  const std::vector<double> a = in.a.values(), w = in.w.values();
  std::vector<double> expected, tolerance;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      const auto add = [&](double term) { sum += term, magnitude += std::fabs(term); };
      for (int64_t x = 0; x < c.k; ++x) add(a[static_cast<size_t>(i * c.k + x)] * w[static_cast<size_t>(j * c.k + x)]);
      if (c.bias) add(in.bias.get(static_cast<size_t>(j)));
      if (c.write == Write::kAdd) add(in.old.get(static_cast<size_t>(i * c.n + j)));
      expected.push_back(sum);
      tolerance.push_back(summation_steps(c.k) * 0x1p-24 * magnitude + test::store_error(c.out, sum));
    }
  }
  for (const Simd* simd : available_simd()) {
    SCOPED_TRACE(simd->name);
    test::expect_close(run(*simd, 2, c, in), expected, tolerance);
  }
}

TEST(MatmulTest, OddSizesAgainstDoublePrecision) {
  for (const int64_t k : {1, 7, 16, 70, 333, 1024, 1025, 2048})
    for (const int64_t m : {1, 2, 3, 5, 17, 65})
      for (const int64_t n : {1, 3, 8, 17, 63, 65}) check({m, n, k});
  check({64, 64, 2048});
  check({260, 70, 130});  // several row blocks
  check({5, 9, 9000});
}

TEST(MatmulTest, EveryTypeBiasAndAdd) {
  for (const DType act : kTypes)
    for (const DType weight : kTypes)
      for (const DType out : {act, DType::kF32})
        for (const bool bias : {false, true})
          for (const Write write : {Write::kStore, Write::kAdd})
            for (const int64_t k : {23, 1064}) check({7, 19, k, act, weight, out, bias, write});
}

TEST(MatmulTest, EmptyInputs) {
  check({0, 5, 7});
  check({3, 0, 7});
  check({3, 5, 0, DType::kF32, DType::kF32, DType::kF32, true});
}

TEST(MatmulTest, AgreesWithTransformersAndIsAsAccurateAsBlas) {
  const auto file = test::golden_dir() / "operators.h5";
  const auto a = test::read_array(file, "matmul/b_transposed/a"), w = test::read_array(file, "matmul/b_transposed/bt");
  const auto y = test::read_array(file, "matmul/b_transposed/y");
  Case c{a.dim(0), w.dim(0), a.dim(1)};
  Inputs in(c);
  in.a.fill(a.values);
  in.w.fill(w.values);
  test::expect_close(run(*available_simd().front(), 1, c, in), y.values,
                     std::vector<double>(y.values.size(), 70 * 0x1p-24 * 9));

  c = {130, 200, 3000};
  const Inputs large(c);
  const HostTensor out = run(*available_simd().front(), 2, c, large);
  std::vector<float> single(out.size());
  std::vector<double> exact(out.size());
  const int m = 130, n = 200, k = 3000;
  openblas_set_num_threads(1);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, large.a->as<float>(), k, large.w->as<float>(), k, 0,
              single.data(), n);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, large.a.values().data(), k, large.w.values().data(),
              k, 0, exact.data(), n);
  double ours = 0, blas = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    ours += std::pow(out.get(i) - exact[i], 2);
    blas += std::pow(static_cast<double>(single[i]) - exact[i], 2);
  }
  EXPECT_LE(std::sqrt(ours), 1.5 * std::sqrt(blas));
}

// Tables whose bits must agree: all with fused multiply-add.
std::vector<const Simd*> fused_simd() {
  std::vector<const Simd*> tables = available_simd();
#if defined(__x86_64__)
  if (tables.size() > 1) tables.pop_back();  // "portable"
#endif
  return tables;
}

// The sum as simd.h defines it, one element at a time.
float sum_in_order(const float* a, const float* w, size_t k) {
  float sum = 0;
  for (size_t block = 0; block < k; block += kBlockK) {
    float lanes[kLanes] = {};
    for (size_t i = block; i < std::min(k, block + kBlockK); ++i) {
      const size_t lane = (i - block) % kLanes;
      lanes[lane] = std::fma(a[i], w[i], lanes[lane]);
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2)
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    sum += lanes[0];
  }
  return sum;
}

TEST(MatmulTest, SumsInTheOrderThatSimdDefines) {
  for (const int64_t k : {5, 16, 100, 1024, 1063, 2500}) {
    const Case c{7, 19, k};
    const Inputs in(c);
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
  for (const DType weight : kTypes) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{150, 2100}, {11, 64}}) {
      const Case whole{140, n, k, DType::kF32, weight};
      SCOPED_TRACE(whole.text());
      const Inputs in(whole);
      const HostTensor expected = run(*available_simd().front(), 1, whole, in);
      for (const Simd* simd : fused_simd())
        for (const int threads : {1, 2, 3})
          EXPECT_TRUE(test::same_bits(run(*simd, threads, whole, in), expected))
              << simd->name << ", " << threads << " threads";

      ThreadPool pool(2);
      for (const Simd* simd : fused_simd()) {
        CpuOps ops(pool, *simd);
        for (const int64_t rows : {1, 2, 4, 139}) {  // some rows alone
          HostTensor part(DType::kF32, {rows, n});
          for (int64_t first = 0; first + rows <= whole.m; first += 37) {
            ops.matmul(in.a->rows(first, rows), in.w, {}, part, Write::kStore);
            EXPECT_TRUE(test::same_bits(part, expected->rows(first, rows)))
                << simd->name << ", rows " << first << " + " << rows;
          }
        }
        for (int64_t first = 0; first < n; first += 29) {  // some columns alone
          const int64_t columns = std::min<int64_t>(29, n - first);
          HostTensor part(DType::kF32, {whole.m, columns});
          ops.matmul(in.a, in.w->rows(first, columns), {}, part, Write::kStore);
          for (int64_t r = 0; r < whole.m; ++r)
            for (int64_t c = 0; c < columns; ++c)
              ASSERT_EQ(part.get(static_cast<size_t>(r * columns + c)),
                        expected.get(static_cast<size_t>(r * n + first + c)));
        }
      }
    }
  }
}

TEST(GroupedMatmulTest, HasTheBitsOfMatmulExpertByExpert) {
  const int64_t experts = 5, n = 70, k = 1100;
  const std::vector<std::vector<double>> splits = {
      {0, 3, 3, 10, 150, 151}, {0, 0, 0, 151, 151, 151}, {0, 151, 151, 151, 151, 151}, {0, 30, 60, 90, 120, 151}};
  ThreadPool pool(3);
  for (const Simd* simd : available_simd()) {
    CpuOps ops(pool, *simd);
    for (const DType act : kTypes) {
      HostTensor a(act, {151, k}), w(DType::kBf16, {experts, n, k}), offsets(DType::kI32, {experts + 1});
      a.fill_random(5);
      w.fill_random(6);
      for (const auto& split : splits) {
        offsets.fill(split);
        HostTensor out(act, {151, n}), expected(act, {151, n});
        ops.grouped_matmul(a, w, offsets, out);
        for (int64_t e = 0; e < experts; ++e) {
          const auto first = static_cast<int64_t>(split[static_cast<size_t>(e)]);
          const int64_t rows = static_cast<int64_t>(split[static_cast<size_t>(e + 1)]) - first;
          ops.matmul(a->rows(first, rows), w->at(e), {}, expected->rows(first, rows), Write::kStore);
        }
        EXPECT_TRUE(test::same_bits(out, expected)) << simd->name << " " << name(act);
      }
    }
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

TEST(MatmulTest, RefusesShapesThatDisagree) {
  ThreadPool pool(1);
  CpuOps ops(pool, *available_simd().front());
  HostTensor a(DType::kF32, {3, 40}), w(DType::kF32, {9, 41}), out(DType::kF32, {3, 9});
  EXPECT_THROW(ops.matmul(a, w, {}, out, Write::kStore), Error);
}

}  // namespace
}  // namespace lfm2
