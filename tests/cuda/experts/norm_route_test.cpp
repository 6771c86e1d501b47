// norm_route on the GPU gives the bits of rms_norm, and the choice that the specification makes of its rows.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/experts/device_routing.h"
#include "cuda/rows/rms_norm_support.h"
#include "support/experts_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct NormRouteCase {
  NormRouteCase(DType act, DType gate_type, int64_t hidden, int64_t experts, int64_t rows)
      : x(act, {rows, hidden}), scale(act, {hidden}), gate(gate_type, {experts, hidden}), bias(DType::kF32, {experts}) {
    x.fill_random(1, 3.0f);
    scale.fill_random(2);
    gate.fill_random(3, 2.0f / std::sqrt(static_cast<float>(hidden)));
    bias.fill_random(4, 0.1f);
  }
  // The results of norm_route for the rows first … first + count.
  struct Result {
    Result(DType act, int64_t count, int64_t hidden, int64_t experts)
        : normed(act, {count, hidden}), routing(count, kTopK, experts), sorted(act, {count * kTopK, hidden}) {}
    HostTensor normed;
    TestRouting routing;
    HostTensor sorted;
  };
  Result run(int64_t first, int64_t count) const {
    HostTensor part(x->dtype, {count, x->dim(1)});
    std::memcpy(part->data, x->rows(first, count).data, part->bytes());
    Result result(x->dtype, count, x->dim(1), gate->dim(0));
    const DeviceTensor in(part), norm(scale), matrix(gate), offset(bias), normed(result.normed), sorted(result.sorted);
    const DeviceRouting chosen(result.routing);
    on_gpu([&](Ops& ops) {
      ops.norm_route(in, norm, 1e-5f, matrix, offset, {kTopK, true, 1.5f}, normed, chosen.routing, sorted);
    });
    normed.fetch(result.normed);
    chosen.fetch(result.routing);
    sorted.fetch(result.sorted);
    return result;
  }
  static constexpr int kTopK = 4;
  HostTensor x, scale, gate, bias;
};

// Tokens of launches with one block, one cluster, more blocks of which the GPU has room for all, and yet more.
constexpr std::initializer_list<int64_t> kCounts = {1,   2,   7,   8,   9,    16,   17,   31,  32,
                                                    33,  64,  65,  100, 128,  200,  256,  257, 300,
                                                    512, 900, 928, 929, 1000, 1024, 1025, 1100};

struct CudaNormRouteTest : ::testing::Test {
  // The assignments are sorted by expert, and the normed rows stand in that order.
  void expect_grouped(const NormRouteCase::Result& result) {
    const TestRouting& got = result.routing;
    const TestRouting expected = grouped(got.ids, got.weights, got.expert_offsets->numel() - 1);
    EXPECT_EQ(difference(got.routing, expected.routing), "");
    HostTensor rows(result.normed->dtype, {got.ids->numel(), result.normed->dim(1)});
    rows.fill(reference::embed(expected.sources, result.normed));
    EXPECT_TRUE(same_bits(result.sorted, rows));
  }
};

TEST_F(CudaNormRouteTest, IsNormProductAndRoute) {
  for (const DType act : kFloatTypes)
    for (const DType gate : {act, DType::kBf16, DType::kF32})
      for (const int64_t hidden : {96, 200, 2048, 2560})
        for (const int64_t experts : {5, 32, 64, 70}) {
          SCOPED_TRACE(fmt::format("{} gate {}, hidden {}, {} experts", name(act), name(gate), hidden, experts));
          const int64_t tokens = 37;
          const NormRouteCase problem(act, gate, hidden, experts, tokens);
          const auto result = problem.run(0, tokens);
          EXPECT_TRUE(same_bits(result.normed, rms_norm(problem.x, problem.scale)));
          expect_grouped(result);
          HostTensor logits(DType::kF32, {tokens, experts});
          logits.fill(reference::matmul(result.normed, problem.gate, {}, {}).values);
          expect_routed(
              result.routing, logits, problem.bias, {4, true, 1.5f}, [](double) { return 0x1p-16; }, 255);
        }
}

TEST_F(CudaNormRouteTest, ARowsBitsAreItsOwn) {
  for (const DType act : kFloatTypes)
    for (const auto& [hidden, experts] : {std::pair<int64_t, int64_t>{2048, 32}, {96, 5}, {2048, 40}}) {
      const NormRouteCase problem(act, act == DType::kF32 ? DType::kBf16 : act, hidden, experts, 2200);
      const auto all = problem.run(0, 2200);
      for (const int64_t count : kCounts) {
        SCOPED_TRACE(fmt::format("{}, hidden {}, {} experts, {} rows", name(act), hidden, experts, count));
        const auto part = problem.run(1100, count);
        expect_grouped(part);
        EXPECT_TRUE(same_bits(part.normed, all.normed->rows(1100, count)));
        EXPECT_TRUE(same_bits(part.routing.ids, all.routing.ids->rows(1100, count)));
        EXPECT_TRUE(same_bits(part.routing.weights, all.routing.weights->rows(1100, count)));
      }
    }
}

// Launches back to back in one stream, by turns with other biases, each with a routing of its own. Each must be sorted
// by its own counts, and not by those that the launch before has left.
struct BackToBack {
  static constexpr int64_t kHidden = 2048, kExperts = 32, kTopK = NormRouteCase::kTopK, kLaunches = 100,
                           kMaxTokens = 1100;

  // The biases: none to speak of; four experts that take all tokens; half of the experts.
  explicit BackToBack(DType act)
      : problem(act, act == DType::kF32 ? DType::kBf16 : act, kHidden, kExperts, 2 * kMaxTokens) {
    for (const int64_t preferred : {int64_t{0}, kTopK, kExperts / 2}) {
      for (int64_t e = 0; e < preferred; ++e) problem.bias.set(static_cast<size_t>(e * 5 % kExperts), 2.0);
      biases.emplace_back(problem.bias);
      expected.push_back(problem.run(0, 2 * kMaxTokens));  // so many that other kernels sort them
    }
  }

  void expect_launches(const std::vector<int64_t>& counts) {
    const HostTensor host_ids(DType::kI32, {kLaunches, kMaxTokens, kTopK}),
        host_weights(DType::kF32, {kLaunches, kMaxTokens, kTopK});
    const HostTensor host_sources(DType::kI32, {kLaunches, kMaxTokens * kTopK}),
        host_rows(DType::kI32, {kLaunches, kMaxTokens, kTopK});
    const HostTensor host_offsets(DType::kI32, {kLaunches, kExperts + 1});
    const HostTensor host_sorted(problem.x->dtype, {kMaxTokens * kTopK, kHidden});
    const DeviceTensor ids(host_ids), weights(host_weights), sources(host_sources), rows(host_rows),
        offsets(host_offsets), sorted(host_sorted), in(problem.x), norm(problem.scale), gate(problem.gate),
        normed(problem.x);
    on_gpu([&](Ops& ops) {
      for (size_t i = 0; i < counts.size(); ++i) {
        const int64_t count = counts[i];
        const auto at = static_cast<int64_t>(i);
        ops.norm_route(in->rows(0, count), norm, 1e-5f, gate, biases[i % biases.size()], {kTopK, true, 1.5f},
                       normed->rows(0, count),
                       {ids->at(at).rows(0, count), weights->at(at).rows(0, count),
                        sources->at(at).rows(0, count * kTopK), rows->at(at).rows(0, count), offsets->at(at)},
                       sorted->rows(0, count * kTopK));
      }
    });
    ids.fetch(host_ids);
    weights.fetch(host_weights);
    sources.fetch(host_sources);
    rows.fetch(host_rows);
    offsets.fetch(host_offsets);
    sorted.fetch(host_sorted);
    for (size_t i = 0; i < counts.size(); ++i) {
      SCOPED_TRACE(fmt::format("launch {}, {} tokens", i, counts[i]));
      const int64_t count = counts[i];
      const auto at = static_cast<int64_t>(i);
      const NormRouteCase::Result& all = expected[i % expected.size()];
      const TestRouting routing =
          grouped(all.routing.ids->rows(0, count), all.routing.weights->rows(0, count), kExperts);
      const Routing got{host_ids->at(at).rows(0, count), host_weights->at(at).rows(0, count),
                        host_sources->at(at).rows(0, count * kTopK), host_rows->at(at).rows(0, count),
                        host_offsets->at(at)};
      ASSERT_EQ(difference(got, routing.routing), "");
      if (i + 1 < counts.size()) continue;
      HostTensor spread(problem.x->dtype, {count * kTopK, kHidden});
      spread.fill(reference::embed(routing.sources, all.normed));
      EXPECT_TRUE(same_bits(host_sorted->rows(0, count * kTopK), spread));
    }
  }

  NormRouteCase problem;
  std::vector<DeviceTensor> biases;
  std::vector<NormRouteCase::Result> expected;
};

TEST_F(CudaNormRouteTest, LaunchesBackToBackHaveTheirOwnRoutings) {
  for (const DType act : kFloatTypes) {
    SCOPED_TRACE(name(act));
    BackToBack launches(act);
    for (const int64_t count : kCounts) launches.expect_launches(std::vector<int64_t>(BackToBack::kLaunches, count));
    std::vector<int64_t> mixed;
    for (int64_t i = 0; i < BackToBack::kLaunches; ++i)
      mixed.push_back(kCounts.begin()[i * i % static_cast<int64_t>(kCounts.size())]);
    launches.expect_launches(mixed);
  }
}

}  // namespace
}  // namespace lfm2
