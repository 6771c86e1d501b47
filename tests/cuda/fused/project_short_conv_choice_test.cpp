// Which calls of project_short_conv take the one kernel of both operators: it leaves bcz as it was.
#include <gtest/gtest.h>

#include "cuda/sequences.h"
#include "kernels/cuda/cuda_backend.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaProjectShortConvChoiceTest : ::testing::Test {
  void SetUp() override {
    if (cuda_device_facts(0).compute_capability != 90) GTEST_SKIP() << "needs a Hopper GPU";
  }

  struct Case {
    int64_t sequences = 1, tokens_each = 1, hidden = 32, taps = 3;
    DType act = DType::kBf16;
    size_t plain = 0;  // sequences with one token that are not among the singles
  };

  static bool takes_one_kernel(const Case& c) {
    constexpr int64_t kWidth = 64;
    Sequences sequences(std::vector<int64_t>(at(c.sequences), c.tokens_each), 16, 1);
    std::vector<Sequences::Part> parts;
    for (int64_t s = 0; s < c.sequences; ++s) parts.push_back({s, c.tokens_each});
    sequences.next(parts, c.plain);
    const int64_t tokens = c.sequences * c.tokens_each;
    HostTensor host_x(c.act, {tokens, kWidth}), in_proj(c.act, {3 * c.hidden, kWidth}),
        weight(c.act, {c.hidden, c.taps});
    host_x.fill_random(1);
    in_proj.fill_random(2);
    weight.fill_random(3);
    const HostTensor untouched = nans(c.act, {tokens, 3 * c.hidden}), after = nans(c.act, {tokens, 3 * c.hidden});
    const DeviceTensor x(host_x), w(in_proj), taps(weight), bcz(untouched), out(HostTensor(c.act, {tokens, c.hidden}));
    const DeviceTensor states(HostTensor(DType::kF32, {2 * c.sequences, c.taps - 1, c.hidden}));
    on_gpu([&](Ops& ops) { ops.project_short_conv(x, w, {}, taps, {}, sequences.batch, {states}, bcz, out); });
    bcz.fetch(after);
    return same_bits(after, untouched);
  }
};

TEST_F(CudaProjectShortConvChoiceTest, IsTakenByFewSingleTokens) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t sequences : {1, 2, 8, 9, 16})
      EXPECT_TRUE(takes_one_kernel({.sequences = sequences, .act = act}));
}

TEST_F(CudaProjectShortConvChoiceTest, IsNotTakenByOthers) {
  EXPECT_FALSE(takes_one_kernel({.sequences = 17}));
  EXPECT_FALSE(takes_one_kernel({.tokens_each = 2}));
  EXPECT_FALSE(takes_one_kernel({.sequences = 2, .plain = 1}));
  EXPECT_FALSE(takes_one_kernel({.hidden = 40}));
  EXPECT_FALSE(takes_one_kernel({.taps = 4}));
  EXPECT_FALSE(takes_one_kernel({.act = DType::kF32}));
}

}  // namespace
}  // namespace lfm2
