// Operators that round their result to fp8 give the bits of the same operator and quantize after it, which the tests of
// both backends run.
#pragma once

#include <cstring>

#include "support/fp8_cases.h"
#include "support/test_routing.h"

namespace lfm2::test {

struct RoundedCase {
  DType act;
  int64_t tokens, hidden, group;
  std::string text() const { return fmt::format("{} {} x {} group {}", name(act), tokens, hidden, group); }
};

// Two results of `rows` rows that must have the same bits: rounded by an operator itself, and by quantize after it.
struct RoundedTwice {
  RoundedTwice(const RoundedCase& c, int64_t rows)
      : plain(c.act, {rows, c.hidden}),
        at_once({rows, c.hidden}, {1, c.group}, 1),
        after({rows, c.hidden}, {1, c.group}, 2) {}
  void expect_same() const {
    EXPECT_EQ(std::memcmp(at_once.elements->data, after.elements->data, after.elements->bytes()), 0);
    EXPECT_EQ(std::memcmp(at_once.scales->data, after.scales->data, after.scales->bytes()), 0);
  }
  HostTensor plain;
  Fp8Matrix at_once, after;
};

inline HostTensor random_rows(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed) {
  HostTensor x(dtype, dims);
  x.fill_random(seed, 1.0f);
  return x;
}
// The same with a row of zeros, one with a NaN and one with an infinity.
inline HostTensor hard_rows(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed) {
  HostTensor x = random_rows(dtype, dims, seed);
  const int64_t k = x->k();
  if (x->dim(0) < 4) return x;
  for (int64_t c = 0; c < k; ++c) x.set(at(k + c), 0);
  x.set(at(2 * k + 1), std::numeric_limits<double>::quiet_NaN());
  x.set(at(3 * k + 2), std::numeric_limits<double>::infinity());
  return x;
}

inline void check_rounded_norm(OpsUnderTest& under, const RoundedCase& c) {
  const HostTensor x = hard_rows(c.act, {c.tokens, c.hidden}, 3), weight = random_rows(c.act, {c.hidden}, 4);
  RoundedTwice both(c, c.tokens);
  under.run(
      [&](Ops& ops, const Tensor& in, const Tensor& scale, const Tensor& plain, const Tensor& once,
          const Tensor& once_scales, const Tensor& after, const Tensor& after_scales) {
        ops.rms_norm(in, scale, 1e-5f, plain);
        ops.quantize(plain, both.after.with(after, after_scales));
        ops.rms_norm(in, scale, 1e-5f, both.at_once.with(once, once_scales));
      },
      x, weight, both.plain, both.at_once.elements, both.at_once.scales, both.after.elements, both.after.scales);
  both.expect_same();
}

inline void check_rounded_combination(OpsUnderTest& under, const RoundedCase& c) {
  constexpr int64_t kTopK = 2;
  const HostTensor y = random_rows(c.act, {c.tokens * kTopK, c.hidden}, 5), weight = random_rows(c.act, {c.hidden}, 6);
  HostTensor residual = hard_rows(c.act, {c.tokens, c.hidden}, 7), other = hard_rows(c.act, {c.tokens, c.hidden}, 7);
  TestRouting routing(c.tokens, kTopK, 1);
  routing.weights.fill_random(8, 1.0f);
  for (int64_t i = 0; i < c.tokens * kTopK; ++i) routing.rows.set(at(i), static_cast<double>(c.tokens * kTopK - 1 - i));
  RoundedTwice both(c, c.tokens);
  under.run(
      [&](Ops& ops, const Tensor& rows, const Tensor& weights, const Tensor& products, const Tensor& scale,
          const Tensor& one, const Tensor& two, const Tensor& plain, const Tensor& once, const Tensor& once_scales,
          const Tensor& after, const Tensor& after_scales) {
        const Routing chosen{.ids = {}, .weights = weights, .sources = {}, .rows = rows, .expert_offsets = {}};
        ops.combine_experts_norm(products, chosen, one, scale, 1e-5f, plain);
        ops.quantize(plain, both.after.with(after, after_scales));
        ops.combine_experts_norm(products, chosen, two, scale, 1e-5f, both.at_once.with(once, once_scales));
      },
      routing.rows, routing.weights, y, weight, residual, other, both.plain, both.at_once.elements, both.at_once.scales,
      both.after.elements, both.after.scales);
  both.expect_same();
  EXPECT_EQ(std::memcmp(residual->data, other->data, other->bytes()), 0);
}

inline void check_rounded_route(OpsUnderTest& under, const RoundedCase& c, int64_t experts, int64_t top_k) {
  const HostTensor x = hard_rows(c.act, {c.tokens, c.hidden}, 9), weight = random_rows(c.act, {c.hidden}, 10),
                   gate = random_rows(c.act, {experts, c.hidden}, 11);
  HostTensor normed(c.act, {c.tokens, c.hidden});
  TestRouting one(c.tokens, top_k, experts), two(c.tokens, top_k, experts);
  RoundedTwice both(c, c.tokens * top_k);
  const RouterRule rule{top_k, true, 1.0f};
  const auto run = [&](TestRouting& routing, const auto& work) {
    under.run(
        [&](Ops& ops, const Tensor& in, const Tensor& scale, const Tensor& router, const Tensor& scratch,
            const Tensor& ids, const Tensor& weights, const Tensor& sources, const Tensor& rows, const Tensor& offsets,
            const Tensor& plain, const Tensor& elements, const Tensor& scales) {
          work(ops, plain, elements, scales, [&](const Tensor& sorted) {
            ops.norm_route(in, scale, 1e-5f, router, {}, rule, scratch, {ids, weights, sources, rows, offsets}, sorted);
          });
        },
        x, weight, gate, normed, routing.ids, routing.weights, routing.sources, routing.rows, routing.expert_offsets,
        both.plain, &routing == &one ? both.after.elements : both.at_once.elements,
        &routing == &one ? both.after.scales : both.at_once.scales);
  };
  run(one, [&](Ops& ops, const Tensor& plain, const Tensor& elements, const Tensor& scales, const auto& route) {
    route(plain);
    ops.quantize(plain, both.after.with(elements, scales));
  });
  run(two, [&](Ops&, const Tensor&, const Tensor& elements, const Tensor& scales, const auto& route) {
    route(both.at_once.with(elements, scales));
  });
  both.expect_same();
  for (const auto& [first, second] : {std::pair(&one.rows, &two.rows), std::pair(&one.weights, &two.weights),
                                      std::pair(&one.expert_offsets, &two.expert_offsets)})
    EXPECT_EQ(std::memcmp((*first)->data, (*second)->data, (*first)->bytes()), 0);
}

// Sizes by which the GPU chooses its kernels: one block for all tokens, a cluster, a grid, and many; rows of one warp,
// of one octet a thread, and longer ones; rows whose last group is not whole.
inline void check_rounded_results(const AllUnderTest& all, bool many) {
  for (OpsUnderTest* under : all)
    for (const DType act : kFloatTypes)
      for (const int64_t group : {0, 128})
        for (const int64_t tokens : {1, 8, 20, 300, 2400})
          for (const int64_t hidden : {64, 72, 256, 2048, 2304, 4352}) {
            const RoundedCase c{act, tokens, hidden, group};
            if (tokens * hidden > (many ? 700000 : 50000)) continue;
            SCOPED_TRACE(under->name() + " " + c.text());
            check_rounded_norm(*under, c);
            check_rounded_combination(*under, c);
            check_rounded_route(*under, c, 32, 4);
            check_rounded_route(*under, c, 5, 2);
          }
}

}  // namespace lfm2::test
