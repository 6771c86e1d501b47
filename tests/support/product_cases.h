// Cases of matmul, grouped_matmul, matmul_swiglu and grouped_swiglu, which the tests of both backends run.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

struct MatmulCase {
  int64_t m, n, k;
  DType act = DType::kF32, weight = DType::kF32, out = DType::kF32;
  bool bias = false;
  Write write = Write::kStore;

  std::string text() const {
    return fmt::format("m {} n {} k {} {} {} {} bias {} add {}", m, n, k, name(act), name(weight), name(out), bias,
                       write == Write::kAdd);
  }
};

struct MatmulInputs {
  explicit MatmulInputs(const MatmulCase& c)
      : a(c.act, {c.m, c.k}), w(c.weight, {c.n, c.k}), bias(c.weight, {c.n}), old(c.out, {c.m, c.n}) {
    a.fill_random(1);
    w.fill_random(2);
    bias.fill_random(3, 10.0f);
    old.fill_random(4, 10.0f);
  }
  HostTensor a, w, bias, old;
};

inline HostTensor matmul(OpsUnderTest& under, const MatmulCase& c, const MatmulInputs& in) {
  HostTensor out(c.out, {c.m, c.n});
  if (c.write == Write::kAdd && out.size() > 0) std::memcpy(out->data, in.old->data, out->bytes());
  under.run([&](Ops& ops, const Tensor& a, const Tensor& w, const Tensor& bias,
                const Tensor& to) { ops.matmul(a, w, c.bias ? bias : Tensor{}, to, c.write); },
            in.a, in.w, in.bias, out);
  return out;
}

inline void check_matmul(const AllUnderTest& all, const MatmulCase& c) {
  SCOPED_TRACE(c.text());
  const MatmulInputs in(c);
  const auto expected = reference::matmul(in.a, in.w, c.bias ? in.bias.view() : Tensor{},
                                          c.write == Write::kAdd ? in.old.view() : Tensor{});
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    expect_close(matmul(*under, c, in), expected, under->product_units(c.act, c.k));
  }
}

inline void check_matmul_of_odd_sizes(const AllUnderTest& all, DType type) {
  for (const int64_t k : {1, 7, 16, 64, 70, 256, 257, 333, 1025, 2048})
    for (const int64_t m : {1, 2, 3, 5, 17, 65, 130})
      for (const int64_t n : {1, 3, 8, 17, 63, 65, 264}) check_matmul(all, {m, n, k, type, type, type});
  for (const MatmulCase& c : {MatmulCase{64, 64, 2048},
                              {260, 70, 130},
                              {1200, 35, 40},   // several blocks of rows
                              {20, 1100, 300},  // several groups of columns
                              {300, 600, 512},
                              {5, 9, 9000}})
    check_matmul(all, {c.m, c.n, c.k, type, type, type});
}

// A GPU multiplies 16-bit activations by weights of their own type alone.
inline void check_matmul_of_every_type(const AllUnderTest& all, bool mixed) {
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes) {
      if (!mixed && act != DType::kF32 && act != weight) continue;
      for (const DType out : {act, DType::kF32})
        for (const bool bias : {false, true})
          for (const Write write : {Write::kStore, Write::kAdd})
            for (const int64_t n : {19, 32, 264})
              for (const int64_t k : {23, 1064}) check_matmul(all, {7, n, k, act, weight, out, bias, write});
    }
}

inline void check_matmul_of_nothing(const AllUnderTest& all) {
  for (const DType type : kFloatTypes) {
    check_matmul(all, {0, 5, 7, type, type, type});
    check_matmul(all, {3, 0, 7, type, type, type});
    check_matmul(all, {3, 5, 0, type, type, type, true});
  }
}

inline void check_matmul_of_transformers(const AllUnderTest& all) {
  const auto a = golden_operator("matmul/b_transposed/a"), w = golden_operator("matmul/b_transposed/bt"),
             y = golden_operator("matmul/b_transposed/y");
  const MatmulCase c{a.dim(0), w.dim(0), a.dim(1)};
  MatmulInputs in(c);
  in.a.fill(a.values);
  in.w.fill(w.values);
  for (OpsUnderTest* under : all)
    expect_close(matmul(*under, c, in), y.values, std::vector<double>(y.values.size(), 70 * 0x1p-24 * 9));
}

// The types of activations and weights in products of experts.
inline constexpr std::pair<DType, DType> kActAndWeight[] = {
    {DType::kF32, DType::kF32}, {DType::kF32, DType::kBf16}, {DType::kBf16, DType::kBf16}, {DType::kF16, DType::kF16}};

inline const std::vector<std::vector<double>> kSplits = {
    {0, 3, 3, 10, 150, 151},   {0, 0, 0, 151, 151, 151}, {0, 151, 151, 151, 151, 151},
    {0, 30, 60, 90, 120, 151}, {0, 0, 0, 0, 0, 151},     {0, 1, 1, 2, 3, 4}};  // as in a step of one sequence

inline HostTensor offsets_of(const std::vector<double>& split) {
  HostTensor offsets(DType::kI32, {static_cast<int64_t>(split.size())});
  offsets.fill(split);
  return offsets;
}

inline void check_grouped_matmul(const AllUnderTest& all, const std::vector<double>& split, int64_t n, int64_t k,
                                 DType act, DType weight) {
  const auto rows = static_cast<int64_t>(split.back()), experts = static_cast<int64_t>(split.size()) - 1;
  SCOPED_TRACE(fmt::format("{} {} n {} k {}, {} rows", name(act), name(weight), n, k, rows));
  HostTensor a(act, {rows, k}), w(weight, {experts, n, k}), out(act, {rows, n});
  const HostTensor offsets = offsets_of(split);
  a.fill_random(5);
  w.fill_random(6);
  const auto expected = reference::grouped_matmul(a, w, offsets);
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    under->run([](Ops& ops, const auto&... tensors) { ops.grouped_matmul(tensors...); }, a, w, offsets, out);
    expect_close(out, expected, under->product_units(act, k));
  }
}

inline void check_grouped_matmul(const AllUnderTest& all) {
  for (const auto& [act, weight] : kActAndWeight) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{70, 1100}, {264, 64}, {1, 9}})
      for (const auto& split : kSplits) check_grouped_matmul(all, split, n, k, act, weight);
    std::vector<double> many{0};  // expert e has e rows
    for (int expert = 0; expert < 70; ++expert) many.push_back(many.back() + expert);
    check_grouped_matmul(all, many, 40, 72, act, weight);
    check_grouped_matmul(all, {0, 0, 0, 0}, 8, 16, act, weight);
  }
}

// With one expert, matmul_swiglu has the bits of grouped_swiglu, so one specification is for both.
inline void check_swiglu(const AllUnderTest& all, const std::vector<double>& split, int64_t ffn, int64_t k, DType act,
                         DType weight) {
  const auto rows = static_cast<int64_t>(split.back()), experts = static_cast<int64_t>(split.size()) - 1;
  SCOPED_TRACE(fmt::format("{} rows, {} experts, ffn {} k {} {} {}", rows, experts, ffn, k, name(act), name(weight)));
  HostTensor a(act, {rows, k}), w(weight, {experts, 2 * ffn, k}), out(act, {rows, ffn});
  const HostTensor offsets = offsets_of(split);
  a.fill_random(1);
  w.fill_random(2);
  if (rows > 1) a.set(0, 30), a.set(at(k), -30);  // large values
  const auto expected = experts == 1 ? reference::matmul_swiglu(a, w->at(0)) : reference::grouped_swiglu(a, w, offsets);
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    under->run(
        [&](Ops& ops, const Tensor& in, const Tensor& matrices, const Tensor& ends, const Tensor& to) {
          if (experts == 1)
            ops.matmul_swiglu(in, matrices.at(0), to);
          else
            ops.grouped_swiglu(in, matrices, ends, to);
        },
        a, w, offsets, out);
    // Each product's error; on a GPU also that of its exponential and division, below 2^-20.
    const double units = under->units(static_cast<double>(k) + 8, 2 * under->product_units(act, k));
    std::vector<double> tolerance;
    for (size_t i = 0; i < out.size(); ++i)
      tolerance.push_back(units * 0x1p-24 * expected.magnitudes[i] +
                          under->units(0, 0x1p-20) * std::fabs(expected.values[i]) +
                          store_error(act, expected.values[i]));
    expect_close(out, expected.values, tolerance);
  }
}

inline void check_matmul_swiglu(const AllUnderTest& all) {
  for (const auto& [act, weight] : kActAndWeight) {
    for (const double m : {1, 7, 65, 130})
      for (const int64_t ffn : {8, 40, 264})
        for (const int64_t k : {8, 70, 1064}) check_swiglu(all, {0, m}, ffn, k, act, weight);
    check_swiglu(all, {0, 0}, 16, 64, act, weight);
  }
}

inline void check_grouped_swiglu(const AllUnderTest& all) {
  for (const auto& [act, weight] : kActAndWeight)
    for (const auto& split : {kSplits[0], kSplits[1], {0, 1, 2, 3, 4}, {0, 4, 4, 9}, {0, 0, 0, 0}})
      for (const int64_t k : {9, 64, 1100}) check_swiglu(all, split, 136, k, act, weight);
}

}  // namespace lfm2::test
