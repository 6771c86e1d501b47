// norm_route_swiglu on the GPU gives the bits of its two operators one after the other, in the routing and the product.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cuda/experts/device_routing.h"
#include "cuda/sequences.h"
#include "support/fp8_cases.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormRouteSwigluTest : ::testing::Test {
  struct Case {
    int64_t tokens = 1, hidden = 256, ffn = 24, top_k = 4, experts = 32;
    DType act = DType::kBf16, norm = act;
    bool bias = true;
    int64_t preferred = 0;                // experts that the bias puts before all others
    std::vector<double> first_of_rows{};  // put where a row begins: first that of row 0
    uint32_t seed = 1;
    bool fp8 = false;  // w has a scale for each row
  };
  struct Result {
    explicit Result(const Case& c)
        : routing(c.tokens, c.top_k, c.experts), product(nans(c.act, {c.tokens * c.top_k, c.ffn})) {}
    TestRouting routing;
    HostTensor product;
  };

  struct Inputs {
    explicit Inputs(const Case& c)
        : x(c.act, {c.tokens, c.hidden}),
          norm(c.norm, {c.hidden}),
          gate(c.act, {c.experts, c.hidden}),
          bias(DType::kF32, {c.experts}),
          w(c.act, {c.experts, 2 * c.ffn, c.hidden}) {
      const float spread = 2 / std::sqrt(static_cast<float>(c.hidden));
      x.fill_random(c.seed, 3.0f);
      norm.fill_random(c.seed + 1);
      gate.fill_random(c.seed + 2, spread);
      bias.fill_random(c.seed + 3, 0.1f);
      if (!c.fp8) w.fill_random(c.seed + 4, spread);
      for (int64_t e = 0; e < c.preferred; ++e) bias.set(at((e * 5 + 3) % c.experts), 2.0);
      for (size_t row = 0; row < c.first_of_rows.size(); ++row) x.set(row * at(c.hidden), c.first_of_rows[row]);
    }
    HostTensor x, norm, gate, bias, w;
  };

  using Operators =
      std::function<void(Ops&, const Routing&, const Tensor& normed, const Tensor& sorted, const Tensor&)>;
  static Result run(const Case& c, const Operators& operators) {
    Result result(c);
    const HostTensor no_rows = nans(c.act, {c.tokens, c.hidden}),
                     not_sorted = nans(c.act, {c.tokens * c.top_k, c.hidden});
    const DeviceTensor normed(no_rows), sorted(not_sorted), product(result.product);
    const DeviceRouting chosen(result.routing);
    on_gpu([&](Ops& ops) { operators(ops, chosen.routing, normed, sorted, product); });
    chosen.fetch(result.routing);
    product.fetch(result.product);
    normed.fetch(no_rows);
    sorted.fetch(not_sorted);
    return result;
  }

  static void check(const Case& c) {
    SCOPED_TRACE(fmt::format("{} tokens {}, norm {}, hidden {} ffn {}, {} choices of {}{}, {} preferred", c.tokens,
                             name(c.act), name(c.norm), c.hidden, c.ffn, c.top_k, c.experts, c.bias ? ", bias" : "",
                             c.preferred));
    const Inputs host(c);
    const DeviceTensor x(host.x), norm(host.norm), gate(host.gate), terms(host.bias), w16(host.w);
    const Fp8Matrix host_w8({c.experts, 2 * c.ffn, c.hidden}, {1, 0}, c.seed + 4);
    const DeviceTensor elements(host_w8.elements), scales(host_w8.scales);
    const Tensor w = c.fp8 ? host_w8.with(elements, scales) : static_cast<const Tensor&>(w16);
    const Tensor bias = c.bias ? static_cast<const Tensor&>(terms) : Tensor();
    const auto rows_of = [&](const Tensor& sorted) { return c.fp8 ? as_fp8_rows(sorted, 0) : sorted; };
    const RouterRule rule{c.top_k, true, 1.5f};
    const Result apart = run(
        c, [&](Ops& ops, const Routing& routing, const Tensor& normed, const Tensor& sorted, const Tensor& product) {
          ops.norm_route(x, norm, 1e-5f, gate, bias, rule, normed, routing, rows_of(sorted));
          ops.grouped_swiglu(rows_of(sorted), w, routing.expert_offsets, product);
        });
    const Result together = run(
        c, [&](Ops& ops, const Routing& routing, const Tensor& normed, const Tensor& sorted, const Tensor& product) {
          ops.norm_route_swiglu(x, norm, 1e-5f, gate, bias, rule, w, normed, routing, rows_of(sorted), product);
        });
    EXPECT_EQ(difference(together.routing.routing, apart.routing.routing), "");
    EXPECT_TRUE(same_bits(together.product, apart.product)) << "product";
  }
};

TEST_F(CudaNormRouteSwigluTest, EveryNumberOfTokens) {
  for (int64_t tokens = 1; tokens <= 10; ++tokens)
    for (const DType act : kFloatTypes)
      for (const bool bias : {false, true})
        check({.tokens = tokens, .act = act, .bias = bias, .seed = static_cast<uint32_t>(tokens)});
}

// Every number of tokens, of tiles of a block, and widths that the kernel for fp8 does not take.
TEST_F(CudaNormRouteSwigluTest, Fp8Weights) {
  for (int64_t tokens = 1; tokens <= 9; ++tokens)
    for (const int64_t ffn : {8, 24, 160, 528, 1056, 1792})
      for (const int64_t hidden : {256, 2048})
        check({.tokens = tokens, .hidden = hidden, .ffn = ffn, .experts = 9, .fp8 = true});
  for (const int64_t tokens : {1, 2, 8}) check({.tokens = tokens, .hidden = 2048, .ffn = 1792, .fp8 = true});
  for (const int64_t tokens : {1, 2, 7})
    for (const int64_t hidden : {128, 288, 1792})
      for (const auto& [top_k, experts] : {std::pair<int64_t, int64_t>{1, 1}, {1, 32}, {3, 17}, {4, 4}, {4, 32}})
        check({.tokens = tokens, .hidden = hidden, .ffn = 200, .top_k = top_k, .experts = experts, .fp8 = true});
}

// Rows that fill no whole slices of the gate's product, pieces of k or trees of the norm's sum, and rows that no kernel
// of both operators takes.
TEST_F(CudaNormRouteSwigluTest, EveryWidthOfRows) {
  for (const int64_t tokens : {1, 3, 8})
    for (const int64_t hidden : {32, 64, 72, 96, 256, 288, 1024, 1056, 1792, 2016, 2048, 2080})
      for (const DType act : {DType::kBf16, DType::kF16}) check({.tokens = tokens, .hidden = hidden, .act = act});
}

// Every number of tiles of a block, which are up to seven; a single unit, and more units than multiprocessors.
TEST_F(CudaNormRouteSwigluTest, EveryWidthOfTheProduct) {
  for (const int64_t tokens : {1, 4, 8})
    for (const int64_t ffn : {8, 16, 160, 320, 528, 800, 1056, 1792, 2112})
      for (const int64_t top_k : {1, 4})
        check({.tokens = tokens, .hidden = 64, .ffn = ffn, .top_k = top_k, .experts = 9});
  // On 132 multiprocessors, four choices have five and six tiles only here.
  for (const int64_t ffn : {1312, 1536})
    for (const int64_t hidden : {96, 256}) check({.hidden = hidden, .ffn = ffn, .experts = 5});
}

TEST_F(CudaNormRouteSwigluTest, EveryNumberOfChoicesAndExperts) {
  for (const int64_t tokens : {1, 2, 5, 8})
    for (const auto& [top_k, experts] : {std::pair<int64_t, int64_t>{1, 1},
                                         {1, 32},
                                         {2, 5},
                                         {3, 17},
                                         {3, 31},
                                         {4, 4},
                                         {4, 16},
                                         {4, 33},
                                         {5, 32},
                                         {6, 32},
                                         {8, 32},
                                         {32, 32}})
      check({.tokens = tokens, .top_k = top_k, .experts = experts});
}

// All tokens go to the same experts, or to one of few.
TEST_F(CudaNormRouteSwigluTest, UnevenRoutings) {
  for (int64_t tokens = 1; tokens <= 8; ++tokens)
    for (const int64_t preferred : {1, 4, 6})
      check({.tokens = tokens, .hidden = 512, .preferred = preferred, .seed = static_cast<uint32_t>(tokens)});
}

// A row that is not finite, or so large that its squares are not, leaves the others as they are.
TEST_F(CudaNormRouteSwigluTest, RowsThatAreNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const bool bias : {false, true}) {
      check({.tokens = 1, .act = act, .bias = bias, .first_of_rows = {kNan}});
      check({.tokens = 5, .act = act, .bias = bias, .first_of_rows = {1.0, kNan, -kInfinity, 2.0, kInfinity}});
    }
  check({.tokens = 2, .first_of_rows = {1e30, 1.0}});
}

TEST_F(CudaNormRouteSwigluTest, OtherTypes) {
  check({.tokens = 3, .norm = DType::kF32});
  check({.tokens = 3, .act = DType::kF16, .norm = DType::kBf16});
}

TEST_F(CudaNormRouteSwigluTest, TheWidthsOfTheModel) {
  for (const int64_t tokens : {1, 8}) check({.tokens = tokens, .hidden = 2048, .ffn = 1792, .experts = 8});
  for (const int64_t tokens : {1, 2, 8}) check({.tokens = tokens, .hidden = 2048, .ffn = 112});
}

}  // namespace
}  // namespace lfm2
