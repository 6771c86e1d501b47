// Windows over texts that are longer than the model.
#include "stage/scoring/windows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace lfm2 {
namespace {

Samples one_sample(int64_t tokens, int64_t scored) {
  Samples samples{.ids = {}, .offsets = {0, tokens}};
  for (int32_t id = 0; id < static_cast<int32_t>(tokens); ++id) samples.ids.push_back(id);
  samples.scored = {0, scored};
  return samples;
}

TEST(WindowsTest, AsInTransformersGuide) {
  const Windows windows = cut_windows(one_sample(11, 10), 6, 4);
  EXPECT_EQ(windows.offsets, (SampleOffsets{0, 6, 12, 15}));
  EXPECT_EQ(windows.ids, (TokenIds{0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 8, 9, 10}));
  EXPECT_EQ(windows.scored, (SampleOffsets{0, 5, 9, 10}));
}

TEST(WindowsTest, OnlyWhereATargetIsScored) {
  const Windows windows = cut_windows(one_sample(11, 2), 6, 4);
  EXPECT_EQ(windows.offsets, (SampleOffsets{0, 6, 9}));
  EXPECT_EQ(windows.ids, (TokenIds{4, 5, 6, 7, 8, 9, 8, 9, 10}));
  EXPECT_EQ(windows.scored, (SampleOffsets{0, 1, 2}));
}

// For every size: the scored tokens are the sample's, in order, and each sees enough before it.
TEST(WindowsTest, EachTokenIsScoredOnceBehindEnoughOthers) {
  for (int64_t tokens = 2; tokens < 20; ++tokens)
    for (int64_t scored = 1; scored < tokens; ++scored)
      for (int64_t length = 2; length < 12; ++length)
        for (int64_t stride = 1; stride < length; ++stride) {
          const Windows windows = cut_windows(one_sample(tokens, scored), length, stride);
          ASSERT_EQ(windows.scored.samples(), windows.offsets.samples());
          ASSERT_EQ(windows.scored.back(), scored);
          int64_t next = tokens - scored;
          for (int64_t window = 0; window < windows.offsets.samples(); ++window) {
            const int64_t size = windows.offsets.length(window), count = windows.scored.length(window);
            ASSERT_GE(count, 1);
            ASSERT_LE(size, length);
            for (int64_t place = size - count; place < size; ++place) {
              ASSERT_GE(place, std::min(next, length - stride));
              ASSERT_EQ(windows.ids[static_cast<size_t>(windows.offsets[window] + place)], next++);
            }
          }
          ASSERT_EQ(next, tokens);
        }
  EXPECT_THROW(cut_windows(one_sample(9, 8), 4, 4), Error);
}

TEST(WindowsTest, ShortSamplesStayWhole) {
  Samples samples{.ids = {1, 2, 3, 4, 5, 6, 7}, .offsets = {0, 2, 7}};
  samples.scored = {0, 1, 5};
  const Windows windows = cut_windows(samples, 4, 2);
  EXPECT_EQ(windows.offsets, (SampleOffsets{0, 2, 6, 9}));
  EXPECT_EQ(windows.scored, (SampleOffsets{0, 1, 4, 5}));
  EXPECT_TRUE(any_longer(samples.offsets, 4));
}

}  // namespace
}  // namespace lfm2
