// Cases of embed, gather_rows, insert_drawn, rms_norm, add_norm, short_conv, qk_norm_rope and gate_heads, which the
// tests of both backends run.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

inline void check_embed(OpsUnderTest& under) {
  for (const int64_t hidden : {1, 33, 64, 2048})
    for (const DType from : kFloatTypes)
      for (const DType to : kFloatTypes) {
        HostTensor ids(DType::kI32, {4}), table(from, {5, hidden}), expected(to, {4, hidden}), out(to, {4, hidden});
        ids.fill({2, 0, 2, 4});
        table.fill_random(1);
        under.run([](Ops& ops, const auto&... tensors) { ops.embed(tensors...); }, ids, table, out);
        expected.fill(reference::embed(ids, table));  // copied, or rounded once
        EXPECT_TRUE(same_bits(out, expected)) << name(from) << " to " << name(to) << ", " << hidden;
      }
}

inline void check_gather_rows(OpsUnderTest& under) {
  for (const int64_t n : {1, 21, 64, 2048})
    for (const DType dtype : kFloatTypes) {
      HostTensor rows(DType::kI32, {3}), x(dtype, {5, n}), expected(dtype, {3, n}), out(dtype, {3, n});
      rows.fill({4, 0, 4});
      x.fill_random(1);
      under.run([](Ops& ops, const auto&... tensors) { ops.gather_rows(tensors...); }, x, rows, out);
      expected.fill(reference::embed(rows, x));
      EXPECT_TRUE(same_bits(out, expected)) << name(dtype) << ", " << n;
    }
}

inline void check_insert_drawn(OpsUnderTest& under) {
  for (const int64_t tokens : {1, 3, 256, 1000}) {
    HostTensor ids(DType::kI32, {tokens}), drawn(DType::kI32, {tokens});
    for (int64_t i = 0; i < tokens; ++i) {
      ids.set(at(i), static_cast<double>(i % 3 == 0 ? i : i - tokens));
      drawn.set(at(i), static_cast<double>(100000 + i));
    }
    const std::vector<double> expected = reference::insert_drawn(ids, drawn);
    under.run([](Ops& ops, const auto&... tensors) { ops.insert_drawn(tensors...); }, ids, drawn);
    EXPECT_EQ(ids.values(), expected) << tokens;
  }
}

inline HostTensor rms_norm(OpsUnderTest& under, const HostTensor& x, const HostTensor& weight) {
  HostTensor out(x->dtype, {x->dim(0), x->dim(1)});
  std::memcpy(out->data, x->data, out->bytes());
  under.run([](Ops& ops, const Tensor& rows, const Tensor& scale) { ops.rms_norm(rows, scale, 1e-5f, rows); }, out,
            weight);
  return out;
}

inline void check_rms_norm_of_transformers(OpsUnderTest& under) {
  const auto y = golden_operator("rms_norm/y");
  HostTensor x(DType::kF32, {7, 64}), weight(DType::kF32, {64});
  x.fill(golden_operator("rms_norm/x").values);
  weight.fill(golden_operator("rms_norm/weight").values);
  std::vector<double> tolerance;
  for (const double value : y.values) tolerance.push_back(8 * 0x1p-24 * std::fabs(value));
  expect_close(rms_norm(under, x, weight), y.values, tolerance);
}

inline void check_rms_norm(OpsUnderTest& under) {
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes)
      for (const int64_t n : {1, 8, 17, 64, 1000, 2048, 2500, 7168}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name(act), name(weight), n));
        HostTensor x(act, {5, n}), scale(weight, {n});
        x.fill_random(1, 3.0f);
        scale.fill_random(2);
        for (int64_t c = 0; c < n; ++c) x.set(at(c), 0);  // a row of zeros stays zero
        // Half of the sum's error (the additions of a lane, then the fold), and six roundings after it.
        const double units = under.units(70.0 / 2 + 6, 70 + 12);
        expect_close(rms_norm(under, x, scale), reference::rms_norm(x, scale, 1e-5f), units);
      }
}

inline void check_add_norm(OpsUnderTest& under) {
  for (const DType act : kFloatTypes)
    for (const DType weight_type : {act, DType::kBf16})
      for (const int64_t n : {1, 8, 17, 1000, 2048, 2500})
        for (const bool has_next : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {}, next {}", name(act), name(weight_type), n, has_next));
          HostTensor x(act, {5, n}), weight(weight_type, {n}), next(weight_type, {n}), residual(act, {5, n}),
              normed(act, {5, n});
          x.fill_random(1, 3.0f);
          weight.fill_random(2);
          residual.fill_random(3);
          next.fill_random(4);
          for (int64_t c = 0; c < n; ++c) x.set(at(c), 0);  // a row of zeros adds nothing
          const auto expected = reference::add_norm(x, weight, 1e-5f, residual);
          under.run(
              [&](Ops& ops, const Tensor& in, const Tensor& scale, const Tensor& sum, const Tensor& second,
                  const Tensor& out) {
                ops.add_norm(in, scale, 1e-5f, sum, has_next ? second : Tensor(), 1e-3f, has_next ? out : Tensor());
              },
              x, weight, residual, next, normed);
          expect_close(residual, expected, under.units(70.0 / 2 + 7, 70 + 13));
          if (!has_next) continue;
          HostTensor alone(act, {5, n});
          under.run([](Ops& ops, const auto& sum, const auto& second,
                       const auto& out) { ops.rms_norm(sum, second, 1e-3f, out); },
                    residual, next, alone);
          EXPECT_TRUE(same_bits(normed, alone));
        }
}

inline HostTensor short_conv(OpsUnderTest& under, const HostTensor& bcz, const HostTensor& weight,
                             const HostTensor& bias, const PackedBatch& packed) {
  HostTensor out(bcz->dtype, {bcz->dim(0), bcz->dim(1) / 3});
  under.run([&](Ops& ops, const Tensor& in, const Tensor& taps, const Tensor& offset, const Tensor& positions,
                const Tensor& offsets,
                const Tensor& to) { ops.short_conv(in, taps, offset, batch_of(packed, positions, offsets), to); },
            bcz, weight, bias, packed.positions, packed.offsets, out);
  return out;
}

inline void check_short_conv_of_transformers(OpsUnderTest& under) {
  for (const std::string kind : {"k3", "k3_bias", "k4", "k4_bias"}) {
    SCOPED_TRACE(kind);
    const auto x = golden_operator("causal_conv1d/" + kind + "/x"), w = golden_operator("causal_conv1d/" + kind + "/w");
    const auto y = golden_operator("causal_conv1d/" + kind + "/y");
    const int64_t samples = x.dim(0), channels = x.dim(1), length = x.dim(2), taps = w.dim(1);
    const PackedBatch packed(std::vector<int32_t>(at(samples), static_cast<int32_t>(length)));
    HostTensor bcz(DType::kF32, {samples * length, 3 * channels}), weight(DType::kF32, {channels, taps});
    HostTensor bias = kind.size() > 2 ? HostTensor(DType::kF32, {channels}) : no_tensor();
    bcz.fill(1.0);
    weight.fill(w.values);
    if (kind.size() > 2) bias.fill(golden_operator("causal_conv1d/" + kind + "/bias").values);
    std::vector<double> expected(y.values.size());
    for (int64_t i = 0; i < samples; ++i)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = 0; t < length; ++t) {
          const size_t from = at((i * channels + c) * length + t);
          bcz.set(at((i * length + t) * 3 * channels + 2 * channels + c), x.values[from]);
          expected[at((i * length + t) * channels + c)] = y.values[from];
        }
    expect_close(short_conv(under, bcz, weight, bias, packed), expected,
                 std::vector<double>(expected.size(), 2 * 5 * 0x1p-24 * 10));
  }
}

inline void check_short_conv(OpsUnderTest& under) {
  const PackedBatch packed({1, 2, 0, 7, 3, 33, 1, 1});
  for (const int64_t hidden : {37, 64, 1032})
    for (const DType act : kFloatTypes)
      for (const DType weight_type : {act, DType::kBf16})
        for (const int64_t taps : {1, 2, 3, 4, 5, 7, 8}) {
          SCOPED_TRACE(fmt::format("{} {} taps {} hidden {}", name(act), name(weight_type), taps, hidden));
          HostTensor bcz(act, {packed.tokens(), 3 * hidden}), weight(weight_type, {hidden, 1, taps}),
              bias(weight_type, {hidden});
          bcz.fill_random(1);
          weight.fill_random(2);
          bias.fill_random(3);
          const auto steps = static_cast<double>(taps + 4);
          expect_close(short_conv(under, bcz, weight, bias, packed),
                       reference::short_conv(bcz, weight, bias, packed.batch), under.units(steps, 2 * steps));
        }
}

inline void qk_norm_rope(OpsUnderTest& under, const HostTensor& qkv, const HostTensor& q_weight,
                         const HostTensor& k_weight, const Rope& rope, AttentionShape shape,
                         const PackedBatch& packed) {
  under.run(
      [&](Ops& ops, const Tensor& rows, const Tensor& q, const Tensor& k, const Tensor& positions,
          const Tensor& offsets) {
        ops.qk_norm_rope(rows, q, k, 1e-5f, rope, shape, batch_of(packed, positions, offsets));
      },
      qkv, q_weight, k_weight, packed.positions, packed.offsets);
}

inline void check_rope_of_transformers(OpsUnderTest& under) {
  const auto x = golden_operator("rope/x"), y = golden_operator("rope/y");
  const auto theta = static_cast<float>(golden_operator("rope/theta").values.at(0));
  const int64_t samples = x.dim(0), length = x.dim(1), heads = x.dim(2), d = x.dim(3);
  const AttentionShape shape{heads - 1, 1, d};  // the last head of x serves as the key head
  const PackedBatch packed(std::vector<int32_t>(at(samples), static_cast<int32_t>(length)));
  HostTensor qkv(DType::kF32, {packed.tokens(), (heads + 1) * d}), ones(DType::kF32, {d});
  ones.fill(1.0);
  qkv.fill_random(1);
  // The norm only scales a head and the rotation is linear, so the result is transformers' rotation times that factor.
  std::vector<double> expected = qkv.values(), tolerance(expected.size(), 0.0);
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = (token * heads + head) * d, to = (token * (heads + 1) + head) * d;
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += std::pow(x.values[at(from + i)], 2);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
      for (int64_t i = 0; i < d; ++i) {
        qkv.set(at(to + i), x.values[at(from + i)]);
        expected[at(to + i)] = y.values[at(from + i)] * factor;
        const double pair = std::hypot(x.values[at(from + i)], x.values[at(from + (i + d / 2) % d)]) * factor;
        tolerance[at(to + i)] = 12 * 0x1p-24 * pair;
      }
    }
  qk_norm_rope(under, qkv, ones, ones, {theta}, shape, packed);
  expect_close(qkv, expected, tolerance);
}

struct RopeCase {
  AttentionShape shape;
  std::vector<Rope> ropes;
};

inline std::vector<RopeCase> rope_cases() {
  const std::vector<Rope> all = {{10000.0f}, {1e6f}};
  return {{{6, 2, 24}, all}, {{32, 8, 64}, all}, {{4, 2, 8}, all},
          {{3, 1, 16}, all}, {{2, 1, 256}, all}, {{2, 2, 130}, all}};
}

// Pairs that do not turn, factors, and gates after the values.
inline std::vector<RopeCase> partial_rope_cases() {
  return {{{16, 4, 128, false, 0, true}, {{1e6f, 32}, {1e4f}}},
          {{4, 2, 16, false, 5, true}, {{1e6f, 4}, {1e4f, 1, 3.0f}, {1e4f, 8}}},
          {{3, 1, 10, false, 0, true}, {{1e6f, 2}, {1e4f, 0, 0.5f}}}};
}

// A CPU has a table of the angles up to the last position, so of wide heads it takes fewer positions.
inline void check_qk_norm_rope(OpsUnderTest& under, int64_t positions_of_wide_heads,
                               const std::vector<RopeCase>& cases = rope_cases()) {
  for (const auto& [shape, ropes] : cases)
    for (const Rope& rope : ropes) {
      PackedBatch packed({1, 5, 3});
      packed.batch.max_length = shape.head_dim > 64 ? positions_of_wide_heads : 128000;
      packed.positions.fill({0, 1, 2, 3, 77, 1000, 8191, 30000, static_cast<double>(packed.batch.max_length - 1)});
      for (const DType act : kFloatTypes) {
        SCOPED_TRACE(fmt::format("{} head dim {} theta {}, {} pairs, factor {}", name(act), shape.head_dim, rope.theta,
                                 rope.pairs, rope.factor));
        HostTensor qkv(act, {9, shape.qkv_columns()}), q_weight(act, {shape.head_dim}),
            k_weight(DType::kF32, {shape.head_dim});
        qkv.fill_random(1);
        q_weight.fill_random(2);
        k_weight.fill_random(3);
        const auto expected = reference::qk_norm_rope(qkv, q_weight, k_weight, 1e-5f, rope, shape, packed.batch);
        qk_norm_rope(under, qkv, q_weight, k_weight, rope, shape, packed);
        expect_close(qkv, expected, under.units(12, 24));
      }
    }
}

// Heads of values that are hard to round: a largest magnitude at each edge of the rule beside a small one, the ends of
// the scales, zeros, and what is not finite.
inline void fill_hard_values(HostTensor& qkv, AttentionShape shape) {
  const double infinity = HUGE_VAL;
  const std::vector<double> largest = {0,     448,   464,     465,   466,   480,  512,    232,      233,       0x1p-6,
                                       29e-6, 1e-30, 65504.0, 60000, 59392, 3e38, 3.3e38, infinity, -infinity, NAN};
  int64_t head = 0;
  for (int64_t token = 0; token < qkv->dim(0); ++token)
    for (int64_t kv = 0; kv < shape.kv_heads && head < 2 * std::ssize(largest); ++kv, ++head) {
      const int64_t first = (token + 1) * shape.qkv_columns() - (kv + 1) * shape.head_dim;
      const double most = largest[at(head / 2)];
      qkv.set(at(first + shape.head_dim / 2), most);
      if (head % 2 == 0) continue;  // its other elements are small beside it
      for (int64_t i = 0; i < shape.head_dim; ++i)
        qkv.set(at(first + i),
                (std::isfinite(most) ? most : 1) * static_cast<double>(i) / static_cast<double>(2 * shape.head_dim));
      qkv.set(at(first), -most);
    }
}

// With fp8_cache, keys and values are what they are without it, rounded; queries stay.
inline void check_fp8_keys_values(OpsUnderTest& under) {
  for (AttentionShape shape : {AttentionShape{6, 2, 24}, {32, 8, 64}, {4, 2, 8}, {3, 1, 16}, {2, 1, 256}, {2, 2, 130}})
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1, 30, 14}, {1100}})
      for (const DType act : kFloatTypes) {
        SCOPED_TRACE(
            fmt::format("{} heads {} {} {}, {}", name(act), shape.heads, shape.kv_heads, shape.head_dim, under.name()));
        if (lengths.size() == 1 && shape.head_dim != 64) continue;
        const PackedBatch packed(lengths);
        HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()}), q_weight(act, {shape.head_dim}),
            k_weight(DType::kF32, {shape.head_dim}), plain(act, {packed.tokens(), shape.qkv_columns()});
        qkv.fill_random(1);
        fill_hard_values(qkv, shape);
        q_weight.fill_random(2);
        k_weight.fill_random(3);
        plain.fill(qkv.values());
        shape.fp8_cache = false;
        qk_norm_rope(under, plain, q_weight, k_weight, {1e6f}, shape, packed);
        shape.fp8_cache = true;
        qk_norm_rope(under, qkv, q_weight, k_weight, {1e6f}, shape, packed);
        const std::vector<double> expected = reference::fp8_keys_values(plain, shape);
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_TRUE(std::isnan(expected[i]) ? std::isnan(qkv.get(i)) : qkv.get(i) == expected[i])
              << coordinates(qkv, i) << ": " << qkv.get(i) << " of " << plain.get(i) << ", expected " << expected[i];
      }
}

inline void check_gate_heads(OpsUnderTest& under) {
  for (const AttentionShape shape : {AttentionShape{4, 2, 16, false, 8, true},
                                     {16, 4, 128, false, 0, true},
                                     {3, 1, 10, false, 0, true},
                                     {5, 5, 2, false, 0, true}})
    for (const DType act : kFloatTypes)
      for (const int64_t tokens : {0, 1, 9}) {
        SCOPED_TRACE(fmt::format("{} heads {} of {}, {} tokens", name(act), shape.heads, shape.head_dim, tokens));
        HostTensor qkv(act, {tokens, shape.qkv_columns()}), out(act, {tokens, shape.heads * shape.head_dim});
        qkv.fill_random(1, 9.0f);
        out.fill_random(2);
        const auto expected = reference::gate_heads(qkv, shape, out);
        under.run([&](Ops& ops, const Tensor& gates, const Tensor& heads) { ops.gate_heads(gates, shape, heads); }, qkv,
                  out);
        expect_close(out, expected, under.units(6, 8));
      }
}

inline void check_put_columns(const AllUnderTest& all) {
  for (const DType type : kFloatTypes)
    for (const int64_t rows : {0, 1, 9})
      for (const int64_t first : {0, 3, 64}) {
        HostTensor x(type, {rows, 40}), out(type, {rows, 104});
        x.fill_random(1);
        out.fill_random(2);
        std::vector<double> expected = out.values();
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t c = 0; c < 40; ++c) expected[at(row * 104 + first + c)] = x.get(at(row * 40 + c));
        const std::vector<double> before = out.values();
        for (OpsUnderTest* under : all) {
          SCOPED_TRACE(under->name());
          out.fill(before);
          under->run([&](Ops& ops, const Tensor& from, const Tensor& to) { ops.put_columns(from, first, to); }, x, out);
          EXPECT_EQ(out.values(), expected);
        }
      }
}

}  // namespace lfm2::test
