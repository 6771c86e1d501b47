// Checks of every kernel that multiplies bf16 planes of fp32: results are near fp64's, no further away than those of
// plain fp32, for every kind of input, and no row depends on its neighbours.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gemm/product.h"

namespace lfm2::test {

inline Product fp32_product(int64_t m, int64_t n, int64_t k, DType weight, Epilogue epilogue = Epilogue::kStore,
                            DType bias = DType::kI32, std::vector<double> split = {}) {
  return {m, n, k, DType::kF32, weight, DType::kF32, epilogue, bias, std::move(split)};
}

constexpr float kBf16x3Spread = 0.03f;  // spread of random weights
constexpr double kToDenormal = 0x1p-130;

struct Kind {
  const char* name;
  void (*change)(const Product& p, Operands& in);
};

// Multiplies elements of x with `factor` where chosen(row, column).
template <class F>
void scale(HostTensor& x, int64_t columns, double factor, F&& chosen) {
  for (size_t i = 0; i < x.size(); ++i)
    if (chosen(static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns)) x.set(i, x.get(i) * factor);
}
inline bool everywhere(int64_t, int64_t) { return true; }
inline bool in_every_third_row(int64_t row, int64_t) { return row % 3 == 1; }

constexpr Kind kUsualKinds[] = {
    {"normal", [](const Product&, Operands&) {}},
    {"outliers",
     [](const Product& p, Operands& in) { scale(in.a, p.k, 60, [](int64_t, int64_t k) { return k % 700 == 3; }); }},
    {"cancellation",
     [](const Product&, Operands& in) {  // k is even
       for (size_t i = 1; i < in.a.size(); i += 2) in.a.set(i, -in.a.get(i - 1) * (1 + 1e-4 * in.a.get(i)));
       for (size_t i = 1; i < in.w.size(); i += 2) in.w.set(i, in.w.get(i - 1));
     }},
    {"tiny", [](const Product& p, Operands& in) { scale(in.a, p.k, 1e-30, everywhere); }},
    {"huge", [](const Product& p, Operands& in) { scale(in.a, p.k, 1e30, everywhere); }},
    {"zeros",
     [](const Product& p, Operands& in) {
       scale(in.a, p.k, 0, in_every_third_row);
       scale(in.w, p.k, 0, [](int64_t row, int64_t) { return row % 16 < 9; });
     }},
};

constexpr Kind kDenormalKinds[] = {
    {"denormal activations", [](const Product& p, Operands& in) { scale(in.a, p.k, kToDenormal, everywhere); }},
    {"the smallest activations",
     [](const Product&, Operands& in) {
       for (size_t i = 0; i < in.a.size(); ++i) in.a.set(i, std::rint(3 * in.a.get(i)) * 0x1p-149);
     }},
    {"denormal rows", [](const Product& p, Operands& in) { scale(in.a, p.k, kToDenormal, in_every_third_row); }},
    {"denormals beside normal values",
     [](const Product& p, Operands& in) {
       scale(in.a, p.k, kToDenormal, [](int64_t row, int64_t k) { return (row + k) % 3 == 0; });
     }},
    {"one denormal block",
     [](const Product& p, Operands& in) {
       scale(in.a, p.k, kToDenormal, [](int64_t, int64_t k) { return k / 64 == 1; });
     }},
    {"denormal but for one block",
     [](const Product& p, Operands& in) {
       scale(in.a, p.k, kToDenormal, [](int64_t, int64_t k) { return k / 64 != 1; });
     }},
    {"denormal weights", [](const Product& p, Operands& in) { scale(in.w, p.k, 0x1p-123, everywhere); }},
    {"denormal rows of weights",
     [](const Product& p, Operands& in) { scale(in.w, p.k, 0x1p-123, in_every_third_row); }},
    {"denormal weights, small activations",
     [](const Product& p, Operands& in) {
       scale(in.w, p.k, 0x1p-123, everywhere);
       scale(in.a, p.k, 0x1p-12, everywhere);
     }},
    {"denormal weights, denormal rows",
     [](const Product& p, Operands& in) {
       scale(in.w, p.k, 0x1p-123, everywhere);
       scale(in.a, p.k, kToDenormal, in_every_third_row);
     }},
    {"denormal products",
     [](const Product& p, Operands& in) {
       scale(in.w, p.k, 1e-16, everywhere);
       scale(in.a, p.k, 1e-25, everywhere);
     }},
    {"large weights, denormal activations",
     [](const Product& p, Operands& in) {
       scale(in.w, p.k, 0x1p60, everywhere);
       scale(in.a, p.k, kToDenormal, everywhere);
     }},
    {"large activations, denormal weights",
     [](const Product& p, Operands& in) {
       scale(in.w, p.k, 0x1p-123, everywhere);
       scale(in.a, p.k, 0x1p55, everywhere);
     }},
};

// Sums of squared errors, relative to the sums' magnitudes, for the GPU and for the plain chain.
struct Errors {
  double gpu = 0, chain = 0;
  void add(double gpu_error, double chain_error, double magnitude) {
    if (magnitude == 0) return;
    gpu += std::pow(gpu_error / magnitude, 2);
    chain += std::pow(chain_error / magnitude, 2);
  }
};

struct ProductErrors {
  Errors all;
  std::vector<Errors> rows, columns;
};

// Expects every element within what the method may lose.
inline ProductErrors check_bf16x3(const Product& p, const Operands& in, const Launch& launch) {
  const HostTensor out = run(p, in, launch);
  ProductErrors errors{
      {}, std::vector<Errors>(static_cast<size_t>(p.m)), std::vector<Errors>(static_cast<size_t>(p.n))};
  int64_t wrong = 0;
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < p.columns(); ++column) {
      const double actual = out.get(static_cast<size_t>(row * p.columns() + column));
      double expected, chain, magnitude, smallest = 0x1p-149;
      if (p.epilogue == Epilogue::kSwiglu) {
        const auto [gate, up] = gate_up_of(p, in, row, column);
        expected = silu(gate.exact) * up.exact;
        chain = silu(gate.chain) * up.chain;
        magnitude = 1.2 * gate.magnitude * std::fabs(up.exact) + std::fabs(silu(gate.exact)) * up.magnitude;
        smallest *= 1 + std::fabs(silu(gate.exact)) + 1.2 * std::fabs(up.exact);
      } else {
        const Sum sum = sum_of(p, in, row, column);
        expected = sum.exact;
        chain = sum.chain;
        magnitude = sum.magnitude;
        if (p.epilogue == Epilogue::kAdd) {
          const double old = in.old.get(static_cast<size_t>(row * p.n + column));
          expected += old;
          chain = static_cast<float>(chain) + static_cast<float>(old);
          magnitude += std::fabs(old);
        }
      }
      if (!std::isfinite(chain) || !std::isfinite(actual)) {
        if (std::isnan(chain) ? !std::isnan(actual) : actual != chain) ++wrong;
        continue;
      }
      if (!(std::fabs(actual - expected) <= 8 * 0x1p-24 * magnitude + smallest)) ++wrong;
      for (Errors* sum :
           {&errors.all, &errors.rows[static_cast<size_t>(row)], &errors.columns[static_cast<size_t>(column)]})
        sum->add(actual - expected, chain - expected, magnitude);
    }
  EXPECT_EQ(wrong, 0) << p.text();
  return errors;
}
inline void check_bf16x3(const Product& p, const Launch& launch) {
  check_bf16x3(p, Operands(p, kBf16x3Spread), launch);
}

// Expects that in no row and in no column the error is larger than plain fp32's.
inline void expect_no_more_loss_than_plain_fp32(const Kind& kind, DType weight, const Launch& launch) {
  const Product p = fp32_product(48, 64, 2048, weight);
  SCOPED_TRACE(std::string(kind.name) + ", " + p.text());
  Operands in(p, kBf16x3Spread);
  kind.change(p, in);
  const ProductErrors errors = check_bf16x3(p, in, launch);
  EXPECT_GT(errors.all.chain, 0);
  int64_t worse = 0;
  for (const std::vector<Errors>& lines : {errors.rows, errors.columns})
    for (const Errors& line : lines) worse += line.gpu > line.chain;
  EXPECT_EQ(worse, 0) << "rows and columns with larger errors";
  std::printf("%s, %s weights: error of the planes over plain fp32's %.3g\n", kind.name,
              std::string(name(weight)).c_str(), std::sqrt(errors.all.gpu / errors.all.chain));
}

// The type of the bias before an epilogue, kI32 for none. No model has a bias before kSwiglu, and not every kernel
// takes one.
inline DType bias_before(Epilogue epilogue) { return epilogue == Epilogue::kSwiglu ? DType::kI32 : DType::kF32; }

// Checks denormal values before every epilogue, with an old value or a bias of their size.
inline void check_denormals_in_epilogues(DType weight, const Launch& launch) {
  for (const Kind& kind : kDenormalKinds)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu}) {
      SCOPED_TRACE(kind.name);
      const Product p = fp32_product(67, 80, 200, weight, epilogue, bias_before(epilogue), {0, 30, 30, 67});
      Operands in(p, kBf16x3Spread);
      kind.change(p, in);
      scale(in.bias, 1, 0x1p-140, everywhere);
      if (epilogue == Epilogue::kAdd) scale(in.old, p.n, kToDenormal, everywhere);
      if (epilogue == Epilogue::kSwiglu) {  // only the up rows are changed
        const Operands fresh(p, kBf16x3Spread);
        for (size_t i = 0; i < in.w.size(); ++i)
          if (static_cast<int64_t>(i) / p.k / kGateUpBlock % 2 == 0) in.w.set(i, fresh.w.get(i));
      }
      check_bf16x3(p, in, launch);
    }
}

// Expects a row's bits to be the same whether the rows beside it are normal, denormal, zeros or infinite.
inline void expect_rows_do_not_feel_denormal_neighbours(DType weight, const Launch& launch) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu}) {
    const Product p = fp32_product(150, 144, 520, weight, epilogue);
    const Operands normal(p, kBf16x3Spread);
    Operands denormal(p, kBf16x3Spread);
    scale(denormal.a, p.k, kToDenormal, everywhere);
    const HostTensor of_normal = run(p, normal, launch), of_denormal = run(p, denormal, launch);
    for (const double factor : {kToDenormal, 0.0, static_cast<double>(INFINITY)}) {
      Operands mixed(p, kBf16x3Spread);
      scale(mixed.a, p.k, factor, in_every_third_row);
      const HostTensor out = run(p, mixed, launch);
      for (int64_t row = 0; row < p.m; ++row) {
        const bool changed = in_every_third_row(row, 0);
        if (changed && factor != kToDenormal) continue;
        const HostTensor& expected = changed ? of_denormal : of_normal;
        EXPECT_TRUE(same_bits(out->rows(row, 1), expected->rows(row, 1))) << "row " << row << ", factor " << factor;
      }
    }
  }
}

// Checks infinities and NaN, of activations and of weights, beside zeros and values whose lower planes are zero.
inline void check_infinities_and_nans(DType weight, const Launch& launch) {
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kSwiglu}) {
    const Product p = fp32_product(140, 144, 200, weight, epilogue, DType::kI32, {0, 40, 140});
    Operands in(p, kBf16x3Spread);
    for (size_t n = 0; n < static_cast<size_t>(p.n); ++n) in.w.set(n * 200 + 7, n % 3 == 0 ? 0 : n % 3 == 1 ? 1 : 1.3);
    in.a.set(3 * 200 + 7, INFINITY);
    in.a.set(5 * 200 + 7, -INFINITY);
    in.a.set(9 * 200 + 199, NAN);
    in.a.set(11 * 200 + 7, INFINITY);
    in.a.set(11 * 200 + 64, -INFINITY);
    in.a.set(100 * 200 + 1, INFINITY);
    in.w.set((144 + 20) * 200 + 5, INFINITY);
    in.w.set((144 + 29) * 200 + 5, NAN);
    for (size_t row = 40; row < 60; ++row) in.a.set(row * 200 + 5, row % 2 == 0 ? 1 : -1.0);
    for (size_t i = 70 * 200; i < 75 * 200; ++i) in.a.set(i, i < 72 * 200 ? 0 : in.a.get(i) * kToDenormal);
    check_bf16x3(p, in, launch);
  }
}

}  // namespace lfm2::test
