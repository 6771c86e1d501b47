// Which calls of project_short_conv and norm_project_short_conv take the one kernel of all of their operators: it
// leaves bcz and the normed rows as they were.
#include <gtest/gtest.h>

#include "cuda/common/hopper_test.h"
#include "cuda/fused/operator_scratch.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaProjectShortConvChoiceTest : HopperTest {
  struct Case {
    int64_t sequences = 1, tokens_each = 1, hidden = 32, taps = 3;
    DType act = DType::kBf16;
    size_t plain = 0;  // sequences with one token that are not among the singles
    int64_t width = 64;
    bool norm = false;
  };

  static bool takes_one_kernel(const Case& c) {
    Sequences sequences(std::vector<int64_t>(at(c.sequences), c.tokens_each), 16, 1);
    std::vector<Sequences::Part> parts;
    for (int64_t s = 0; s < c.sequences; ++s) parts.push_back({s, c.tokens_each});
    sequences.next(parts, c.plain);
    const int64_t tokens = c.sequences * c.tokens_each;
    HostTensor host_x(c.act, {tokens, c.width}), in_proj(c.act, {3 * c.hidden, c.width}),
        weight(c.act, {c.hidden, c.taps}), norm(c.act, {c.width});
    host_x.fill_random(1);
    in_proj.fill_random(2);
    weight.fill_random(3);
    norm.fill_random(4);
    const DeviceTensor x(host_x), w(in_proj), taps(weight), scale(norm), out(HostTensor(c.act, {tokens, c.hidden}));
    const DeviceTensor states(HostTensor(DType::kF32, {Sequences::kStateRows * c.sequences, c.taps - 1, c.hidden}));
    const OperatorScratch bcz(c.act, tokens, 3 * c.hidden), normed(c.act, tokens, c.width);
    on_gpu([&](Ops& ops) {
      if (c.norm)
        ops.norm_project_short_conv(x, scale, 1e-5f, w, {}, taps, {}, sequences.batch, {states}, normed, bcz, out);
      else
        ops.project_short_conv(x, w, {}, taps, {}, sequences.batch, {states}, bcz, out);
    });
    const bool no_bcz = bcz.is_untouched(), no_rows = normed.is_untouched();
    return no_bcz && no_rows;
  }
};

TEST_F(CudaProjectShortConvChoiceTest, IsTakenByFewSingleTokens) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t sequences : {1, 2, 8, 9, 16})
      for (const int64_t taps : {3, 7})
        EXPECT_TRUE(takes_one_kernel({.sequences = sequences, .taps = taps, .act = act}));
}

TEST_F(CudaProjectShortConvChoiceTest, IsNotTakenByOthers) {
  EXPECT_FALSE(takes_one_kernel({.sequences = 17}));
  EXPECT_FALSE(takes_one_kernel({.tokens_each = 2}));
  EXPECT_FALSE(takes_one_kernel({.sequences = 2, .plain = 1}));
  EXPECT_FALSE(takes_one_kernel({.hidden = 40}));
  EXPECT_FALSE(takes_one_kernel({.taps = 9}));
  EXPECT_FALSE(takes_one_kernel({.act = DType::kF32}));
}

TEST_F(CudaProjectShortConvChoiceTest, TakesTheNormOfFewRows) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t sequences : {1, 2, 8})
      for (const int64_t taps : {3, 7})
        EXPECT_TRUE(takes_one_kernel({.sequences = sequences, .taps = taps, .act = act, .width = 2048, .norm = true}));
  EXPECT_FALSE(takes_one_kernel({.sequences = 9, .norm = true}));
  EXPECT_FALSE(takes_one_kernel({.width = 2056, .norm = true}));
  EXPECT_FALSE(takes_one_kernel({.tokens_each = 2, .norm = true}));
}

}  // namespace
}  // namespace lfm2
