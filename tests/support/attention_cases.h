// Cases of attention, which the tests of both backends run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/golden.h"
#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

inline HostTensor attention(OpsUnderTest& under, const HostTensor& qkv, AttentionShape shape,
                            const PackedBatch& packed) {
  HostTensor out(qkv->dtype, {qkv->dim(0), shape.heads * shape.head_dim});
  under.run([&](Ops& ops, const Tensor& in, const Tensor& positions, const Tensor& offsets,
                const Tensor& to) { ops.attention(in, shape, batch_of(packed, positions, offsets), to); },
            qkv, packed.positions, packed.offsets, out);
  return out;
}

// How far a token's attention over `keys` tokens may be from its specification.
inline std::vector<double> attention_tolerance(const OpsUnderTest& under, const reference::AttentionRow& row,
                                               int64_t head_dim, int64_t keys, DType out) {
  const auto d = static_cast<double>(head_dim), count = static_cast<double>(keys);
  // For the 16-bit types a GPU has two terms of each probability.
  const double split = out == DType::kF32 ? 0 : 512 * rounding_unit(out) * rounding_unit(out) * 0x1p15;
  std::vector<double> tolerance;
  for (size_t i = 0; i < row.out.values.size(); ++i) {
    // An error of a score (that of its products' sum, scale, difference) is a relative error of its weight, above and
    // below the fraction bar. Then come the errors of the exponential and of the additions over the keys: on a CPU
    // those of up to 1024, on a GPU those of the 64 keys of a tile, in order, and of the tiles (at random, so their
    // square root).
    const double score = (under.units(d / 16, d / 8) + 8) * row.magnitude[i / at(head_dim)];
    const double steps = 2 * score + under.units(6 + std::min(count, 1024.0), 64 + 4 * std::sqrt(count / 64) + split);
    tolerance.push_back(steps * 0x1p-24 * row.out.magnitudes[i] + store_error(out, row.out.values[i]));
  }
  return tolerance;
}

// Expects attention over whole samples to be its specification, and `golden` within twice the tolerance, where that is
// given: it is fp32, too.
inline void check_attention(const AllUnderTest& all, const HostTensor& qkv, AttentionShape shape,
                            const PackedBatch& packed, const std::vector<double>& golden = {}) {
  const std::vector<double> elements = reference::elements(qkv);
  std::vector<reference::AttentionRow> rows;
  for (int64_t token = 0; token < packed.tokens(); ++token)
    rows.push_back(reference::attention(elements, shape, token - packed.positions->as<int32_t>()[token], token));
  for (OpsUnderTest* under : all) {
    SCOPED_TRACE(under->name());
    std::vector<double> expected, tolerance;
    for (size_t token = 0; token < rows.size(); ++token) {
      int64_t keys = packed.positions->as<int32_t>()[token] + 1;
      if (shape.window > 0) keys = std::min(keys, shape.window);
      const auto bounds = attention_tolerance(*under, rows[token], shape.head_dim, keys, qkv->dtype);
      expected.insert(expected.end(), rows[token].out.values.begin(), rows[token].out.values.end());
      tolerance.insert(tolerance.end(), bounds.begin(), bounds.end());
    }
    const HostTensor out = attention(*under, qkv, shape, packed);
    expect_close(out, expected, tolerance);
    if (golden.empty()) continue;
    for (double& bound : tolerance) bound *= 2;
    expect_close(out, golden, tolerance);
  }
}

inline void check_attention_of_transformers(const AllUnderTest& all) {
  const auto q = golden_operator("gqa_attention/q"), k = golden_operator("gqa_attention/k"),
             v = golden_operator("gqa_attention/v");
  const AttentionShape shape{q.dim(2), k.dim(2), q.dim(3)};
  const PackedBatch packed(std::vector<int32_t>(at(q.dim(0)), static_cast<int32_t>(q.dim(1))));
  HostTensor qkv(DType::kF32, {packed.tokens(), shape.qkv_columns()});
  std::vector<double> joined;
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (const auto* part : {&q, &k, &v}) {
      const int64_t width = part->dim(2) * part->dim(3);
      joined.insert(joined.end(), part->values.begin() + token * width, part->values.begin() + (token + 1) * width);
    }
  qkv.fill(joined);
  check_attention(all, qkv, shape, packed, golden_operator("gqa_attention/y").values);
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<int32_t> lengths;
  float spread;
};

inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (const AttentionShape shape : {AttentionShape{4, 2, 8},
                                     {6, 1, 24},
                                     {8, 2, 64},
                                     {32, 8, 64},
                                     {3, 3, 82},
                                     {4, 2, 16},
                                     {2, 1, 256},
                                     {5, 1, 2},
                                     {40, 1, 128}})
    cases.push_back({shape, {1, 30, 2, 0, 9, 32, 32, 64, 65, 1, 130}, 1.5f});
  // Scores beyond 100 overflow unless the largest is subtracted.
  cases.push_back({{2, 1, 16}, {1300}, 6.0f});
  cases.push_back({{4, 1, 64}, {200}, 6.0f});
  cases.push_back({{4, 1, 64}, std::vector<int32_t>(200, 1), 1.0f});
  return cases;
}

inline std::vector<AttentionCase> window_cases() {
  std::vector<AttentionCase> cases;
  for (int64_t window = 1; window <= 30; ++window)  // with and without gates, which attention does not read
    cases.push_back({{4, 2, 16, false, window, window % 2 == 0}, {1, 30, 2, 0, 9, 64, 65, 130}, 1.5f});
  for (const int64_t window : {3, 64, 100, 256})
    cases.push_back({{4, 1, 128, false, window, window != 100}, {1, 300, 65}, 1.5f});
  cases.push_back({{2, 1, 16, false, 1100}, {1300}, 1.5f});
  return cases;
}

inline void check_attention(const AllUnderTest& all, const std::vector<AttentionCase>& cases = attention_cases()) {
  for (const AttentionCase& c : cases)
    for (const DType act : kFloatTypes) {
      const PackedBatch packed(c.lengths);
      SCOPED_TRACE(fmt::format("{} heads {} {} {}, window {}, {} tokens", name(act), c.shape.heads, c.shape.kv_heads,
                               c.shape.head_dim, c.shape.window, packed.tokens()));
      HostTensor qkv(act, {packed.tokens(), c.shape.qkv_columns()});
      qkv.fill_random(1, c.spread);
      check_attention(all, qkv, c.shape, packed);
    }
}

}  // namespace lfm2::test
