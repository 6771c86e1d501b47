// norm_route on the GPU gives the bits of rms_norm, and the choice that the CPU's product and route make.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/experts/test_routing.h"
#include "cuda/rows/rms_norm_support.h"

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
    TestRouting& to = result.routing;
    const DeviceTensor in(part), norm(scale), matrix(gate), offset(bias), normed(result.normed), ids(to.ids),
        weights(to.weights), sources(to.sources), rows(to.rows), offsets(to.expert_offsets), sorted(result.sorted);
    on_gpu([&](Ops& ops) {
      ops.norm_route(in, norm, 1e-5f, matrix, offset, {kTopK, true, 1.5f}, normed,
                     {ids, weights, sources, rows, offsets}, sorted);
    });
    normed.fetch(result.normed);
    ids.fetch(to.ids);
    weights.fetch(to.weights);
    sources.fetch(to.sources);
    rows.fetch(to.rows);
    offsets.fetch(to.expert_offsets);
    sorted.fetch(result.sorted);
    return result;
  }
  static constexpr int kTopK = 4;
  HostTensor x, scale, gate, bias;
};

struct CudaNormRouteTest : ::testing::Test {
  // The assignments are sorted as the CPU sorts them, and the normed rows stand in that order.
  void expect_grouped(const NormRouteCase::Result& result) {
    const TestRouting& got = result.routing;
    const int64_t tokens = got.ids->dim(0), top_k = got.ids->dim(1), hidden = result.normed->dim(1);
    TestRouting expected(tokens, top_k, got.expert_offsets->numel() - 1);
    std::memcpy(expected.ids->data, got.ids->data, got.ids->bytes());
    cpu.ops.group_by_expert(expected.routing);
    EXPECT_TRUE(same_bits(got.sources, expected.sources));
    EXPECT_TRUE(same_bits(got.rows, expected.rows));
    EXPECT_TRUE(same_bits(got.expert_offsets, expected.expert_offsets));
    HostTensor rows(result.normed->dtype, {tokens * top_k, hidden});
    cpu.ops.gather_rows(result.normed, expected.sources, rows);
    EXPECT_TRUE(same_bits(result.sorted, rows));
  }
  CpuReference cpu;
};

TEST_F(CudaNormRouteTest, IsNormProductAndRoute) {
  for (const DType act : kFloatTypes)
    for (const DType gate : {act, DType::kBf16, DType::kF32})
      for (const int64_t hidden : {96, 200, 2048, 2560})
        for (const int64_t experts : {5, 32, 64, 70}) {
          SCOPED_TRACE(fmt::format("{} gate {}, hidden {}, {} experts", name(act), name(gate), hidden, experts));
          const int64_t tokens = 37;
          const auto width = static_cast<size_t>(experts);
          const NormRouteCase problem(act, gate, hidden, experts, tokens);
          const auto result = problem.run(0, tokens);
          EXPECT_TRUE(same_bits(result.normed, rms_norm(problem.x, problem.scale)));
          expect_grouped(result);
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
              ASSERT_EQ(result.routing.ids.get(i), ids.get(i)) << "token " << t;
              ASSERT_NEAR(result.routing.weights.get(i), weights.get(i), 0x1p-16 * weights.get(i));
            }
          }
          EXPECT_GT(compared, 30);
        }
}

TEST_F(CudaNormRouteTest, ARowsBitsAreItsOwn) {
  for (const DType act : kFloatTypes)
    for (const auto& [hidden, experts] : {std::pair<int64_t, int64_t>{2048, 32}, {96, 5}, {2048, 40}}) {
      const NormRouteCase problem(act, act == DType::kF32 ? DType::kBf16 : act, hidden, experts, 2200);
      const auto all = problem.run(0, 2200);
      for (const int64_t count : {1, 2, 7, 8, 9, 300}) {
        SCOPED_TRACE(fmt::format("{}, hidden {}, {} experts, {} rows", name(act), hidden, experts, count));
        const auto part = problem.run(1234, count);
        expect_grouped(part);
        EXPECT_TRUE(same_bits(part.normed, all.normed->rows(1234, count)));
        EXPECT_TRUE(same_bits(part.routing.ids, all.routing.ids->rows(1234, count)));
        EXPECT_TRUE(same_bits(part.routing.weights, all.routing.weights->rows(1234, count)));
      }
    }
}

}  // namespace
}  // namespace lfm2
