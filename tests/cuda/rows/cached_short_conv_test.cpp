// cached_short_conv on the GPU gives the bits of whole samples, however those are cut, and keeps the states at the ends
// of their pages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "cuda/sequences.h"

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
      for (size_t i = 0; i < sequences.tokens.size(); ++i)
        if (const int64_t row = sequences.cache_row(i); row % kPage == kPage - 1)
          ends[row / kPage] = sequences.tokens[i];
    }
    states.fetch(no_states);
    pages_checked_ += ends.size();
    check_pages(bcz, no_states, first_page_row, ends);
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

  size_t pages_checked_ = 0;
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

}  // namespace
}  // namespace lfm2
