// cached_short_conv on the GPU gives the bits of whole samples, however those are cut, and keeps the states at the ends
// of their pages. Both convolutions round to fp8 as quantize does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "cuda/sequences.h"
#include "support/fp8_cases.h"

namespace lfm2 {
namespace {

using namespace test;

class CudaCachedShortConvTest : public ::testing::Test {
 protected:
  void check(const std::vector<int64_t>& lengths, int64_t hidden, int64_t taps, bool with_bias, DType act,
             uint32_t seed, bool blocks = false) {
    SCOPED_TRACE(fmt::format("{} hidden {}, {} taps{}", name(act), hidden, taps, blocks ? ", blocks" : ""));
    constexpr int64_t kPage = 16;
    Sequences sequences(lengths, kPage, seed);
    const int64_t tokens = sequences.packed.tokens();
    HostTensor bcz(act, {tokens, 3 * hidden}), weight(act, {hidden, taps}), bias(DType::kF32, {hidden});
    HostTensor whole(act, {tokens, hidden});
    bcz.fill_random(seed);
    weight.fill_random(seed + 1);
    bias.fill_random(seed + 2);
    const int64_t first_page_row = Sequences::kStateRows * sequences.slots();
    const HostTensor no_states = nans(DType::kF32, {first_page_row + sequences.pages(), taps - 1, hidden});
    const DeviceTensor in(bcz), device_weight(weight), device_bias(bias), device_whole(whole), states(no_states);
    const Tensor& bias_or_none = with_bias ? static_cast<const Tensor&>(device_bias) : Tensor();
    on_gpu([&](Ops& ops) { ops.short_conv(in, device_weight, bias_or_none, sequences.packed.device, device_whole); });
    device_whole.fetch(whole);
    check_rounded(whole, in, device_weight, [&](Ops& ops, const Tensor& out) {
      ops.short_conv(in, device_weight, bias_or_none, sequences.packed.device, out);
    });
    std::map<int64_t, int64_t> ends;  // the last token of each full page
    while (!sequences.finished()) {
      const auto parts = sequences.random_parts(1200, blocks);
      if (parts.empty()) continue;
      sequences.next(parts);
      const HostTensor expected = sequences.take(whole);
      HostTensor out = nans(act, {expected->dim(0), hidden});
      const DeviceTensor rows(sequences.take(bcz)), device_out(out);
      on_gpu([&](Ops& ops) {
        ops.cached_short_conv(rows, device_weight, bias_or_none, sequences.batch, {states, first_page_row, kPage},
                              device_out);
      });
      device_out.fetch(out);
      ASSERT_TRUE(same_bits(out, expected));
      check_rounded(expected, rows, device_weight, [&](Ops& ops, const Tensor& rounded) {
        ops.cached_short_conv(rows, device_weight, bias_or_none, sequences.batch, {states, first_page_row, kPage},
                              rounded);
      });
      for (size_t i = 0; i < sequences.tokens.size(); ++i)
        if (const int64_t row = sequences.cache_row(i); row % kPage == kPage - 1)
          ends[row / kPage] = sequences.tokens[i];
    }
    states.fetch(no_states);
    pages_checked_ += ends.size();
    check_pages(bcz, no_states, first_page_row, ends);
  }

  // convolve(ops, out) must write to fp8 rows what quantize makes of `expected`, where the GPU rounds with these
  // operands.
  template <class F>
  void check_rounded(const HostTensor& expected, const Tensor& bcz, const Tensor& weight, const F& convolve) {
    for (const int64_t group : {0, 128}) {
      const int64_t tokens = expected->dim(0), hidden = expected->dim(1);
      Fp8Matrix at_once({tokens, hidden}, {1, group}, 1), after({tokens, hidden}, {1, group}, 2);
      const DeviceTensor plain(expected), once(at_once.elements), once_scales(at_once.scales), twice(after.elements),
          twice_scales(after.scales);
      bool rounds = false;
      on_gpu([&](Ops& ops) {
        rounds = ops.rounds_short_conv(bcz, weight);
        if (!rounds) return;
        convolve(ops, at_once.with(once, once_scales));
        ops.quantize(plain, after.with(twice, twice_scales));
      });
      if (!rounds) return;
      once.fetch(at_once.elements);
      once_scales.fetch(at_once.scales);
      twice.fetch(after.elements);
      twice_scales.fetch(after.scales);
      ASSERT_TRUE(same_bits(at_once.elements, after.elements)) << "group " << group;
      ASSERT_TRUE(same_bits(at_once.scales, after.scales)) << "group " << group;
      ++rounded_;
    }
  }

  // The state behind a page's last token: the inputs of the convolution of the last taps - 1 positions, oldest first.
  static void check_pages(const HostTensor& bcz, const HostTensor& states, int64_t first_page_row,
                          const std::map<int64_t, int64_t>& ends) {
    const int64_t kept = states->dim(1), hidden = states->dim(2);
    for (const auto& [page, last] : ends)
      for (int64_t entry = 0; entry < kept; ++entry)
        for (int64_t c = 0; c < hidden; ++c) {
          const int64_t row = (last - (kept - 1 - entry)) * 3 * hidden;
          const float input =
              static_cast<float>(bcz.get(at(row + c))) * static_cast<float>(bcz.get(at(row + 2 * hidden + c)));
          ASSERT_EQ(states.get(at(((first_page_row + page) * kept + entry) * hidden + c)), input)
              << "page " << page << ", entry " << entry << ", channel " << c;
        }
  }

  void TearDown() override { EXPECT_GT(pages_checked_, 0u) << "no page was filled"; }

  size_t pages_checked_ = 0, rounded_ = 0;
};

TEST_F(CudaCachedShortConvTest, HasTheBitsOfWholeSamples) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const int64_t hidden : {264, 33, 8})
      for (const int64_t taps : {3, 1, 2, 4, 7})
        for (const bool with_bias : {false, true})
          check({1, 2, 3, 40, 5, 700, 9, 1, 64, 33, 2500}, hidden, taps, with_bias, act, ++seed);
}

// The rows of a draft block are singles that take the inputs before them from each other.
TEST_F(CudaCachedShortConvTest, BlocksHaveTheBitsOfWholeSamples) {
  uint32_t seed = 100;
  for (const DType act : kFloatTypes)
    for (const int64_t hidden : {264, 33})
      for (const int64_t taps : {3, 1, 2, 4, 7})
        for (const std::vector<int64_t>& lengths :
             {std::vector<int64_t>{1, 2, 40, 9}, {1, 2, 3, 40, 5, 700, 9, 1, 64, 33, 2500}})
          check(lengths, hidden, taps, true, act, ++seed, true);
}

TEST_F(CudaCachedShortConvTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const int64_t hidden : {64, 33}) check({1, 2, 40, 9}, hidden, 3, true, act, 1);
}

TEST_F(CudaCachedShortConvTest, RoundsRowsAsQuantizeDoes) {
  for (const int64_t hidden : {256, 1280, 2048})
    for (const bool with_bias : {false, true})
      check({1, 2, 3, 40, 5, 700, 9, 1, 64, 33, 1500}, hidden, 3, with_bias, DType::kBf16, 7);
  EXPECT_GT(rounded_, 50u);
}

}  // namespace
}  // namespace lfm2
