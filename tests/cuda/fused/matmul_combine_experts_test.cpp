// matmul_combine_experts on the GPU gives the bits of its two operators one after the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cuda/experts/device_routing.h"
#include "cuda/sequences.h"
#include "support/fp8_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaMatmulCombineExpertsTest : ::testing::Test {
  enum class Split {
    kRandom,  // each token chooses some experts
    kSame,    // all tokens choose the same
    kApart,   // each choice is of another expert, as long as there are any
    kTwice,   // every choice is of the same expert, which the router does not do
  };
  struct Case {
    int64_t hidden = 48, k = 64, top_k = 4, experts = 32;
    DType act = DType::kBf16;
    uint32_t seed = 1;
  };

  static std::vector<double> choices(int64_t tokens, const Case& c, Split split) {
    std::vector<double> ids, experts(at(c.experts));
    std::iota(experts.begin(), experts.end(), 0);
    std::mt19937 generator(c.seed);
    std::shuffle(experts.begin(), experts.end(), generator);
    for (int64_t token = 0; token < tokens; ++token) {
      if (split == Split::kRandom) std::shuffle(experts.begin(), experts.end(), generator);
      for (int64_t j = 0; j < c.top_k; ++j)
        ids.push_back(split == Split::kTwice   ? static_cast<double>(c.experts - 1)
                      : split == Split::kApart ? experts[at((token * c.top_k + j) % c.experts)]
                                               : experts[at(j)]);
    }
    return ids;
  }

  void check(int64_t tokens, Split split, const Case& c) {
    HostTensor w(c.act, {c.experts, c.hidden, c.k});
    w.fill_random(c.seed + 2, 2 / std::sqrt(static_cast<float>(c.k)));
    const DeviceTensor down(w);
    check(tokens, split, c, down);
  }

  // The same with fp8 weights, which have a scale for each row.
  void check_fp8(int64_t tokens, Split split, const Case& c) {
    const Fp8Matrix w({c.experts, c.hidden, c.k}, {1, 0}, c.seed + 2);
    const DeviceTensor elements(w.elements), scales(w.scales);
    check(tokens, split, c, w.with(elements, scales));
  }

  void check(int64_t tokens, Split split, const Case& c, const Tensor& down) {
    SCOPED_TRACE(fmt::format("{} tokens {}, hidden {} k {}, {} choices of {}, split {}", tokens, name(c.act), c.hidden,
                             c.k, c.top_k, c.experts, static_cast<int>(split)));
    const int64_t rows = tokens * c.top_k;
    TestRouting host(tokens, c.top_k, c.experts);
    host.ids.fill(choices(tokens, c, split));
    host.weights.fill_random(c.seed);
    HostTensor a(c.act, {rows, c.k}), residual(c.act, {tokens, c.hidden});
    a.fill_random(c.seed + 1);
    residual.fill_random(c.seed + 3);
    const HostTensor untouched = nans(c.act, {rows, c.hidden});
    const DeviceTensor x(a), apart_y(untouched), y(untouched);
    const DeviceTensor apart(residual), early(residual), late(residual);
    const DeviceRouting chosen(host);
    const Routing& routing = chosen.routing;
    on_gpu([&](Ops& ops) {
      ops.group_by_expert(routing);
      ops.matmul_combine_experts(x, down, routing, y, early);  // behind a routing that is new
      ops.group_by_expert(routing);
      ops.grouped_matmul(x, down, routing.expert_offsets, apart_y);
      ops.combine_experts(apart_y, routing, apart);
      ops.matmul_combine_experts(x, down, routing, y, late);  // behind one that is old
    });
    HostTensor expected(c.act, {tokens, c.hidden}), out(c.act, {tokens, c.hidden});
    apart.fetch(expected);
    early.fetch(out);
    EXPECT_TRUE(same_bits(out, expected)) << "a new routing";
    late.fetch(out);
    EXPECT_TRUE(same_bits(out, expected)) << "an old routing";
    y.fetch(untouched);
  }
};

TEST_F(CudaMatmulCombineExpertsTest, EveryNumberOfTokensAndSplit) {
  for (int64_t tokens = 1; tokens <= 10; ++tokens)
    for (const DType act : kFloatTypes)
      for (const Split split : {Split::kRandom, Split::kSame, Split::kApart, Split::kTwice})
        check(tokens, split, {.act = act, .seed = static_cast<uint32_t>(tokens)});
}

// Widths that are no whole tiles or pieces of k, more tiles than multiprocessors, and what the kernel does not take.
TEST_F(CudaMatmulCombineExpertsTest, EveryWidth) {
  for (const int64_t tokens : {1, 2, 5, 8})
    for (const auto& [hidden, k] :
         {std::pair<int64_t, int64_t>{8, 8}, {16, 72}, {40, 192}, {2328, 320}, {4336, 136}, {33, 64}, {48, 36}})
      for (const DType act : {DType::kBf16, DType::kF16})
        for (const Split split : {Split::kRandom, Split::kSame})
          check(tokens, split,
                {.hidden = hidden, .k = k, .experts = 9, .act = act, .seed = static_cast<uint32_t>(tokens + hidden)});
}

TEST_F(CudaMatmulCombineExpertsTest, EveryNumberOfChoicesAndExperts) {
  for (const int64_t tokens : {1, 3, 8})
    for (const auto& [top_k, experts] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 32}, {2, 5}, {3, 31}, {4, 4}, {4, 33}, {5, 32}})
      check(tokens, Split::kRandom, {.k = 256, .top_k = top_k, .experts = experts});
}

TEST_F(CudaMatmulCombineExpertsTest, TheWidthsOfTheModel) {
  for (const int64_t tokens : {1, 2, 8}) check(tokens, Split::kRandom, {.hidden = 2048, .k = 1792});
}

// Up to eight rows, which the product rounds; more units than multiprocessors, and a k that the kernel does not take.
TEST_F(CudaMatmulCombineExpertsTest, Fp8Weights) {
  for (const auto& [tokens, top_k] : {std::pair<int64_t, int64_t>{1, 4}, {2, 4}, {2, 3}, {8, 1}, {1, 1}, {4, 2}})
    for (const Split split : {Split::kRandom, Split::kSame, Split::kApart, Split::kTwice}) {
      const auto seed = static_cast<uint32_t>(tokens);
      check_fp8(tokens, split, {.hidden = 136, .k = 1792, .top_k = top_k, .seed = seed});
      check_fp8(tokens, split, {.hidden = 72, .k = 256, .top_k = top_k, .experts = 9, .seed = seed});
      check_fp8(tokens, split, {.hidden = 2328, .k = 256, .top_k = top_k, .experts = 9, .seed = seed});
      check_fp8(tokens, split, {.hidden = 40, .k = 1664, .top_k = top_k, .experts = 9, .seed = seed});
    }
}

}  // namespace
}  // namespace lfm2
