// norm_route on the GPU gives the bits of rms_norm, and the choice that the CPU's product and route make.
#include <gtest/gtest.h>

#include <cmath>

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
    HostTensor normed, ids, weights;
  };
  Result run(int64_t first, int64_t count) const {
    HostTensor part(x->dtype, {count, x->dim(1)});
    std::memcpy(part->data, x->rows(first, count).data, part->bytes());
    Result result{HostTensor(x->dtype, {count, x->dim(1)}), HostTensor(DType::kI32, {count, kTopK}),
                  HostTensor(DType::kF32, {count, kTopK})};
    const DeviceTensor in(part), norm(scale), matrix(gate), offset(bias), normed(result.normed), ids(result.ids),
        weights(result.weights);
    on_gpu([&](Ops& ops) {
      ops.norm_route(in, norm, 1e-5f, matrix, offset, {kTopK, true, 1.5f}, normed, {ids, weights, {}, {}, {}});
    });
    normed.fetch(result.normed);
    ids.fetch(result.ids);
    weights.fetch(result.weights);
    return result;
  }
  static constexpr int kTopK = 4;
  HostTensor x, scale, gate, bias;
};

struct CudaNormRouteTest : ::testing::Test {
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

TEST_F(CudaNormRouteTest, ARowsBitsAreItsOwn) {
  for (const DType act : kFloatTypes) {
    const NormRouteCase problem(act, act == DType::kF32 ? DType::kBf16 : act, 2048, 32, 2200);
    const auto all = problem.run(0, 2200);
    for (const int64_t count : {1, 9, 300}) {
      const auto part = problem.run(1234, count);
      EXPECT_TRUE(same_bits(part.normed, all.normed->rows(1234, count))) << count;
      EXPECT_TRUE(same_bits(part.ids, all.ids->rows(1234, count))) << count;
      EXPECT_TRUE(same_bits(part.weights, all.weights->rows(1234, count))) << count;
    }
  }
}

}  // namespace
}  // namespace lfm2
