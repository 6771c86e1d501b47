// The row-wise operators of the GPU: against transformers' results and the CPU's operators.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/cuda_stream.h"
#include "support/golden.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaOpsFixture : ::testing::Test {
  CpuReference cpu;
};
// The part of a routing that combine_experts reads.
Routing weighted_rows(const Tensor& weights, const Tensor& rows) { return {{}, weights, {}, rows, {}}; }

using CudaEmbedTest = CudaOpsFixture;
using CudaRmsNormTest = CudaOpsFixture;
using CudaShortConvTest = CudaOpsFixture;
using CudaGatherRowsTest = CudaOpsFixture;
using CudaCombineExpertsTest = CudaOpsFixture;
using CudaRouterTest = CudaOpsFixture;
using CudaDependentLaunchTest = CudaOpsFixture;

AnyArray any(const Tensor& x) { return {x.data, x.dtype}; }
cudaStream_t gpu_stream() { return dynamic_cast<CudaStream&>(gpu().compute()).native(); }

Array golden(const std::string& dataset) { return read_array(golden_dir() / "operators.h5", dataset); }

HostTensor rms_norm(const HostTensor& x, const HostTensor& weight) {
  const DeviceTensor in(x), scale(weight);
  on_gpu([&](Ops& ops) { ops.rms_norm(in, scale, 1e-5f, in); });
  HostTensor out(x->dtype, {x->dim(0), x->dim(1)});
  in.fetch(out);
  return out;
}

TEST_F(CudaEmbedTest, CopiesOrConvertsTheRows) {
  for (const int64_t hidden : {1, 33, 64, 2048})
    for (const DType from : kFloatTypes)
      for (const DType to : kFloatTypes) {
        HostTensor ids(DType::kI32, {4}), table(from, {5, hidden}), expected(to, {4, hidden}), out(to, {4, hidden});
        ids.fill({2, 0, 2, 4});
        table.fill_random(1);
        const DeviceTensor device_ids(ids), device_table(table), device_out(out);
        on_gpu([&](Ops& ops) { ops.embed(device_ids, device_table, device_out); });
        device_out.fetch(out);
        cpu.ops.embed(ids, table, expected);
        EXPECT_TRUE(same_bits(out, expected)) << name(from) << " to " << name(to) << ", " << hidden;
      }
}

TEST_F(CudaRmsNormTest, AgreesWithTransformers) {
  const auto x = golden("rms_norm/x"), weight = golden("rms_norm/weight"), y = golden("rms_norm/y");
  HostTensor in(DType::kF32, {7, 64}), scale(DType::kF32, {64});
  in.fill(x.values);
  scale.fill(weight.values);
  std::vector<double> tolerance;
  for (const double value : y.values) tolerance.push_back(8 * 0x1p-24 * std::fabs(value));
  expect_close(rms_norm(in, scale), y.values, tolerance);
}

TEST_F(CudaRmsNormTest, EveryTypeInPlaceAndOddWidths) {
  for (const DType act : kFloatTypes)
    for (const DType weight : kFloatTypes)
      for (const int64_t n : {1, 8, 17, 64, 1000, 2048, 2500, 7168}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name(act), name(weight), n));
        HostTensor x(act, {5, n}), scale(weight, {n}), expected(act, {5, n});
        x.fill_random(1, 3.0f);
        scale.fill_random(2);
        for (int64_t c = 0; c < n; ++c) x.set(static_cast<size_t>(c), 0);  // a row of zeros stays zero
        cpu.ops.rms_norm(x, scale, 1e-5f, expected);
        // Half of each side's sum (an octet's and a lane's additions, then the folds) and six roundings after it.
        expect_close_to_cpu(rms_norm(x, scale), expected, magnitudes(expected), 70 + 12);
      }
}

TEST_F(CudaRmsNormTest, ARowsBitsAreItsOwn) {
  HostTensor x(DType::kBf16, {300, 2048}), scale(DType::kBf16, {2048});
  x.fill_random(1);
  scale.fill_random(2);
  const HostTensor all = rms_norm(x, scale);
  for (const int64_t row : {0, 1, 150, 299}) {
    HostTensor one(DType::kBf16, {1, 2048});
    std::memcpy(one->data, x->rows(row, 1).data, one->bytes());
    EXPECT_TRUE(same_bits(rms_norm(one, scale), all->rows(row, 1)));
  }
}

TEST_F(CudaRmsNormTest, InPlaceOrNot) {
  for (const int64_t n : {64, 2048, 7168}) {
    HostTensor x(DType::kBf16, {9, n}), scale(DType::kBf16, {n}), out(DType::kBf16, {9, n});
    x.fill_random(1);
    scale.fill_random(2);
    const DeviceTensor in(x), weight(scale), apart(out);
    on_gpu([&](Ops& ops) { ops.rms_norm(in, weight, 1e-5f, apart); });
    apart.fetch(out);
    EXPECT_TRUE(same_bits(out, rms_norm(x, scale))) << n;
  }
}

HostTensor short_conv(const HostTensor& bcz, const HostTensor& weight, const HostTensor* bias, const Batch& batch) {
  const DeviceTensor in(bcz), taps(weight);
  std::unique_ptr<DeviceTensor> offset;
  if (bias != nullptr) offset = std::make_unique<DeviceTensor>(*bias);
  HostTensor out(bcz->dtype, {bcz->dim(0), bcz->dim(1) / 3});
  const DeviceTensor device_out(out);
  on_gpu([&](Ops& ops) { ops.short_conv(in, taps, offset ? Tensor(*offset) : Tensor(), batch, device_out); });
  device_out.fetch(out);
  return out;
}

TEST_F(CudaShortConvTest, AgreesWithTransformers) {
  for (const std::string kind : {"k3", "k3_bias", "k4", "k4_bias"}) {
    SCOPED_TRACE(kind);
    const auto x = golden("causal_conv1d/" + kind + "/x"), w = golden("causal_conv1d/" + kind + "/w");
    const auto y = golden("causal_conv1d/" + kind + "/y");
    const int64_t samples = x.dim(0), channels = x.dim(1), length = x.dim(2), taps = w.dim(1);
    const PackedSamples packed(std::vector<int64_t>(static_cast<size_t>(samples), length));
    HostTensor bcz(DType::kF32, {samples * length, 3 * channels}), weight(DType::kF32, {channels, taps});
    HostTensor bias(DType::kF32, {channels});
    bcz.fill(1.0);
    weight.fill(w.values);
    const bool has_bias = kind.size() > 2;
    if (has_bias) bias.fill(golden("causal_conv1d/" + kind + "/bias").values);
    std::vector<double> expected(y.values.size());
    for (int64_t i = 0; i < samples; ++i)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = 0; t < length; ++t) {
          const auto from = static_cast<size_t>((i * channels + c) * length + t);
          bcz.set(static_cast<size_t>((i * length + t) * 3 * channels + 2 * channels + c), x.values[from]);
          expected[static_cast<size_t>((i * length + t) * channels + c)] = y.values[from];
        }
    expect_close(short_conv(bcz, weight, has_bias ? &bias : nullptr, packed.device), expected,
                 std::vector<double>(expected.size(), 2 * 5 * 0x1p-24 * 10));
  }
}

TEST_F(CudaShortConvTest, EveryTypeAndLength) {
  const PackedSamples packed({1, 2, 0, 7, 3, 33, 1, 1});
  for (const int64_t hidden : {37, 64, 1032})
    for (const DType act : kFloatTypes)
      for (const DType weight_type : {act, DType::kBf16})
        for (const int64_t taps : {1, 2, 3, 5}) {
          SCOPED_TRACE(fmt::format("{} {} taps {} hidden {}", name(act), name(weight_type), taps, hidden));
          HostTensor bcz(act, {packed.tokens(), 3 * hidden}), weight(weight_type, {hidden, 1, taps});
          HostTensor bias(weight_type, {hidden}), expected(act, {packed.tokens(), hidden});
          bcz.fill_random(1);
          weight.fill_random(2);
          bias.fill_random(3);
          cpu.ops.short_conv(bcz, weight, bias, packed.host, expected);
          const HostTensor out = short_conv(bcz, weight, &bias, packed.device);
          // The magnitude of the terms: the same operator on absolute values.
          HostTensor all(act, {packed.tokens(), 3 * hidden}), most(DType::kF32, {packed.tokens(), hidden});
          HostTensor wide(DType::kF32, {packed.tokens(), 3 * hidden});
          wide.fill(magnitudes(bcz));
          weight.fill(magnitudes(weight));
          bias.fill(magnitudes(bias));
          cpu.ops.short_conv(wide, weight, bias, packed.host, most);
          expect_close_to_cpu(out, expected, most.values(), 2 * static_cast<double>(taps + 4));
        }
}

TEST_F(CudaShortConvTest, ASamplesBitsAreItsOwn) {
  const std::vector<int64_t> lengths{31, 1, 32, 2, 5, 64, 3};
  const PackedSamples packed(lengths);
  for (const DType act : kFloatTypes) {
    HostTensor bcz(act, {packed.tokens(), 3 * 2048}), weight(act, {2048, 1, 3});
    bcz.fill_random(1);
    weight.fill_random(2);
    const HostTensor all = short_conv(bcz, weight, nullptr, packed.device);
    int64_t first = 0;
    for (const int64_t length : lengths) {
      HostTensor one(act, {length, 3 * 2048});
      std::memcpy(one->data, bcz->rows(first, length).data, one->bytes());
      const PackedSamples alone({length});
      EXPECT_TRUE(same_bits(short_conv(one, weight, nullptr, alone.device), all->rows(first, length)))
          << name(act) << ", " << length;
      first += length;
    }
  }
}

TEST_F(CudaGatherRowsTest, CopiesTheRows) {
  for (const int64_t n : {1, 21, 64, 2048})
    for (const DType dtype : kFloatTypes) {
      HostTensor rows(DType::kI32, {3}), x(dtype, {5, n}), out(dtype, {3, n}), expected(dtype, {3, n});
      rows.fill({4, 0, 4});
      x.fill_random(1);
      const DeviceTensor device_rows(rows), device_x(x), device_out(out);
      on_gpu([&](Ops& ops) { ops.gather_rows(device_x, device_rows, device_out); });
      device_out.fetch(out);
      cpu.ops.gather_rows(x, rows, expected);
      EXPECT_TRUE(same_bits(out, expected)) << name(dtype) << " " << n;
    }
}

TEST_F(CudaCombineExpertsTest, AddsTheWeightedRowsToTheResidual) {
  const int64_t tokens = 9, top_k = 3;
  for (const int64_t hidden : {1, 45, 64, 2048})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), hidden));
      HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden}), out(act, {tokens, hidden});
      HostTensor weights(DType::kF32, {tokens, top_k}), rows(DType::kI32, {tokens, top_k});
      y.fill_random(1);
      residual.fill_random(2, 4.0f);
      weights.fill_random(3);
      for (size_t i = 0; i < 27; ++i) rows.set(i, static_cast<double>(i * 10 % 27));
      const DeviceTensor device_y(y), device_residual(residual), device_weights(weights), device_rows(rows);
      on_gpu([&](Ops& ops) {
        ops.combine_experts(device_y, weighted_rows(device_weights, device_rows), device_residual);
      });
      device_residual.fetch(out);
      HostTensor most(DType::kF32, {tokens, hidden}), wide(DType::kF32, {tokens * top_k, hidden});
      most.fill(magnitudes(residual));
      wide.fill(magnitudes(y));
      cpu.ops.combine_experts(y, weighted_rows(weights, rows), residual);
      weights.fill(magnitudes(weights));
      cpu.ops.combine_experts(wide, weighted_rows(weights, rows), most);
      expect_close_to_cpu(out, residual, most.values(), 10);
    }
}

TEST_F(CudaCombineExpertsTest, ANormInTheSamePassHasTheNormsBits) {
  const int64_t tokens = 9, top_k = 4;
  for (const int64_t hidden : {1, 45, 64, 1000, 2048, 7168})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), hidden));
      HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden}), normed(act, {tokens, hidden});
      HostTensor weights(DType::kF32, {tokens, top_k}), rows(DType::kI32, {tokens, top_k}), scale(act, {hidden});
      y.fill_random(1);
      residual.fill_random(2, 4.0f);
      weights.fill_random(3);
      scale.fill_random(4);
      for (size_t i = 0; i < 36; ++i) rows.set(i, static_cast<double>(i * 7 % 36));
      const DeviceTensor device_y(y), apart(residual), together(residual), device_weights(weights), device_rows(rows);
      const DeviceTensor device_scale(scale), apart_normed(normed), together_normed(normed);
      on_gpu([&](Ops& ops) {
        ops.combine_experts(device_y, weighted_rows(device_weights, device_rows), apart);
        ops.rms_norm(apart, device_scale, 1e-5f, apart_normed);
      });
      launch_combine_experts(gpu_stream(),
                             {.y = device_y->data,
                              .rows = device_rows->as<const int32_t>(),
                              .weights = device_weights->as<const float>(),
                              .residual = together->data,
                              .tokens = tokens,
                              .hidden = hidden,
                              .top_k = static_cast<int>(top_k),
                              .normed = together_normed->data,
                              .norm_weight = any(device_scale),
                              .eps = 1e-5f},
                             act);
      HostTensor out(act, {tokens, hidden}), expected(act, {tokens, hidden});
      apart.fetch(expected);
      together.fetch(out);
      EXPECT_TRUE(same_bits(out, expected));
      apart_normed.fetch(expected);
      together_normed.fetch(out);
      EXPECT_TRUE(same_bits(out, expected)) << "the norm";
    }
}

struct RouterCase {
  RouterCase(DType act, DType gate_type, int64_t hidden, int64_t experts, int64_t rows)
      : x(act, {rows, hidden}), scale(act, {hidden}), gate(gate_type, {experts, hidden}), bias(DType::kF32, {experts}) {
    x.fill_random(1, 3.0f);
    scale.fill_random(2);
    gate.fill_random(3, 2.0f / std::sqrt(static_cast<float>(hidden)));
    bias.fill_random(4, 0.1f);
  }
  // Of rows first … first + count, normed before.
  struct Result {
    HostTensor normed, ids, weights;
  };
  Result run(int64_t first, int64_t count) const {
    HostTensor part(x->dtype, {count, x->dim(1)});
    std::memcpy(part->data, x->rows(first, count).data, part->bytes());
    Result result{HostTensor(x->dtype, {count, x->dim(1)}), HostTensor(DType::kI32, {count, kTopK}),
                  HostTensor(DType::kF32, {count, kTopK})};
    const DeviceTensor in(part), norm(scale), matrix(gate), offset(bias), normed(result.normed), ids(result.ids),
        weights(result.weights);
    launch_router(gpu_stream(),
                  {.x = in->data,
                   .gate = any(matrix),
                   .bias = offset->as<const float>(),
                   .ids = ids->as<int32_t>(),
                   .weights = weights->as<float>(),
                   .tokens = count,
                   .hidden = x->dim(1),
                   .experts = static_cast<int>(gate->dim(0)),
                   .top_k = kTopK,
                   .normalize = true,
                   .scale = 1.5f,
                   .normed = normed->data,
                   .norm_weight = any(norm),
                   .eps = 1e-5f},
                  x->dtype);
    normed.fetch(result.normed);
    ids.fetch(result.ids);
    weights.fetch(result.weights);
    return result;
  }
  static constexpr int kTopK = 4;
  HostTensor x, scale, gate, bias;
};

TEST_F(CudaRouterTest, IsNormProductAndRoute) {
  for (const DType act : kFloatTypes)
    for (const DType gate : {act, DType::kBf16, DType::kF32})
      for (const int64_t hidden : {96, 200, 2048, 2560})
        for (const int64_t experts : {5, 32, 64, 70}) {
          SCOPED_TRACE(fmt::format("{} gate {}, hidden {}, {} experts", name(act), name(gate), hidden, experts));
          const int64_t tokens = 37;
          const auto width = static_cast<size_t>(experts);
          const RouterCase problem(act, gate, hidden, experts, tokens);
          const auto result = problem.run(0, tokens);
          EXPECT_TRUE(same_bits(result.normed, rms_norm(problem.x, problem.scale)));
          HostTensor wide(DType::kF32, {tokens, hidden}), logits(DType::kF32, {tokens, experts});
          wide.fill(result.normed.values());
          cpu.ops.matmul(wide, problem.gate, {}, logits, Write::kStore);
          HostTensor ids(DType::kI32, {tokens, 4}), weights(DType::kF32, {tokens, 4});
          cpu.ops.route(logits, problem.bias, {4, true, 1.5f}, {ids, weights, {}, {}, {}});
          int compared = 0;
          for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
            const auto score = [&](size_t e) {
              return 1 / (1 + std::exp(-logits.get(t * width + e))) + problem.bias.get(e);
            };
            bool near_tie = false;
            for (size_t j = 0; j < 4; ++j)
              for (size_t e = 0; e < width; ++e) {
                const auto chosen = static_cast<size_t>(ids.get(t * 4 + j));
                if (e != chosen && std::fabs(score(e) - score(chosen)) < 0x1p-16) near_tie = true;
              }
            if (near_tie) continue;
            ++compared;
            for (size_t i = t * 4; i < t * 4 + 4; ++i) {
              ASSERT_EQ(result.ids.get(i), ids.get(i)) << "token " << t;
              ASSERT_NEAR(result.weights.get(i), weights.get(i), 0x1p-16 * weights.get(i));
            }
          }
          EXPECT_GT(compared, 30);
        }
}

TEST_F(CudaRouterTest, ARowsBitsAreItsOwn) {
  for (const DType act : kFloatTypes) {
    const RouterCase problem(act, act == DType::kF32 ? DType::kBf16 : act, 2048, 32, 2200);
    const auto all = problem.run(0, 2200);
    for (const int64_t count : {1, 9, 300}) {
      const auto part = problem.run(1234, count);
      EXPECT_TRUE(same_bits(part.normed, all.normed->rows(1234, count))) << count;
      EXPECT_TRUE(same_bits(part.ids, all.ids->rows(1234, count))) << count;
      EXPECT_TRUE(same_bits(part.weights, all.weights->rows(1234, count))) << count;
    }
  }
}

// Every kernel of the chain starts while the one before it ends: the results are those of one kernel at a time.
TEST_F(CudaDependentLaunchTest, AChainIsItsKernelsOneByOne) {
  const int64_t tokens = 700, hidden = 2048, top_k = 4, experts = 32;
  const PackedSamples packed({300, 1, 32, 32, 335});
  HostTensor bcz(DType::kBf16, {tokens, 3 * hidden}), x(DType::kBf16, {tokens, hidden}), scale(DType::kBf16, {hidden});
  HostTensor taps(DType::kBf16, {hidden, 3}), gate(DType::kBf16, {experts, hidden});
  bcz.fill_random(1);
  x.fill_random(2);
  scale.fill_random(3);
  taps.fill_random(4);
  gate.fill_random(5, 0.1f);
  const HostTensor ids(DType::kI32, {tokens, top_k}), weights(DType::kF32, {tokens, top_k});
  const HostTensor sources(DType::kI32, {tokens * top_k}), rows(DType::kI32, {tokens, top_k});
  const HostTensor offsets(DType::kI32, {experts + 1}), sorted(DType::kBf16, {tokens * top_k, hidden});
  const HostTensor logits(DType::kF32, {tokens, experts});
  const auto run = [&](bool apart) {
    const DeviceTensor in(bcz), mixed(x), residual(x), norm(scale), conv(taps), router(gate), chosen(ids),
        shares(weights), from(sources), to(rows), first(offsets), spread(sorted), scores(logits);
    const Routing routing{chosen, shares, from, to, first};
    std::vector<std::function<void(Ops&)>> steps;
    for (int layer = 0; layer < 3; ++layer) {
      steps.push_back([&](Ops& ops) { ops.short_conv(in, conv, {}, packed.device, mixed); });
      steps.push_back([&](Ops& ops) { ops.rms_norm(mixed, norm, 1e-5f, mixed); });
      steps.push_back([&](Ops& ops) { ops.matmul(mixed, router, {}, scores, Write::kStore); });
      steps.push_back([&](Ops& ops) { ops.route(scores, {}, {top_k, true, 1.0f}, routing); });
      steps.push_back([&](Ops& ops) { ops.group_by_expert(routing); });
      steps.push_back([&](Ops& ops) { ops.gather_rows(mixed, routing.sources, spread); });
      steps.push_back([&](Ops& ops) { ops.combine_experts(spread, routing, residual); });
      steps.push_back([&](Ops& ops) { ops.rms_norm(residual, norm, 1e-5f, residual); });
    }
    if (apart) {
      for (const auto& step : steps) {
        on_gpu(step);
        gpu().compute().drain();
      }
    } else {
      on_gpu([&](Ops& ops) {
        for (const auto& step : steps) step(ops);
      });
    }
    HostTensor out(DType::kBf16, {tokens, hidden});
    residual.fetch(out);
    return out;
  };
  const HostTensor expected = run(true);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(same_bits(run(false), expected));
}

TEST_F(CudaRmsNormTest, NoTokensIsFineForEveryRowOperator) {
  const PackedSamples none({});
  const HostTensor host_x(DType::kF32, {0, 6}), host_out(DType::kF32, {0, 2}), host_weight(DType::kF32, {6});
  const HostTensor host_taps(DType::kF32, {2, 3}), host_ids(DType::kI32, {0}), host_table(DType::kF32, {4, 6});
  const HostTensor host_choices(DType::kI32, {0, 2});
  const DeviceTensor x(host_x), out(host_out), weight(host_weight), taps(host_taps), ids(host_ids), table(host_table),
      choices(host_choices);
  on_gpu([&](Ops& ops) {
    ops.embed(ids, table, x);
    ops.rms_norm(x, weight, 1e-5f, x);
    ops.short_conv(x, taps, {}, none.device, out);
    ops.gather_rows(table, ids, x);
    ops.combine_experts(x, weighted_rows(choices, choices), x);
    ops.top_log_probs(out, choices, out);
  });
  x.fetch(host_x);
}

}  // namespace
}  // namespace lfm2
