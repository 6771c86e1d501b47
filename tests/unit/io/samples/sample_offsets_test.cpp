// Lists of samples, equally long or not, beside plain lists of numbers.
#include "stage/io/samples/sample_offsets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "stage/scoring/plan.h"

namespace lfm2 {
namespace {

void expect_equals(const SampleOffsets& offsets, const std::vector<int64_t>& plain) {
  ASSERT_EQ(offsets.size(), static_cast<int64_t>(plain.size()));
  EXPECT_EQ(offsets.back(), plain.back());
  for (int64_t i = 0; i < offsets.size(); ++i) ASSERT_EQ(offsets[i], plain[static_cast<size_t>(i)]) << i;
  for (int64_t token = 0; token < plain.back(); ++token)
    ASSERT_EQ(offsets.sample_of(token), std::upper_bound(plain.begin(), plain.end(), token) - plain.begin() - 1);
  EXPECT_TRUE(SampleOffsets::from_bytes(offsets.to_bytes()) == offsets);
}

TEST(SampleOffsetsTest, AreAPlainList) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> plain{0};
    const int64_t usual = 1 + random() % 5, samples = random() % 9;
    for (int64_t i = 0; i < samples; ++i)
      plain.push_back(plain.back() + (random() % 8 == 0 ? 1 + random() % 9 : usual));
    const SampleOffsets offsets(plain);
    expect_equals(offsets, plain);
    std::vector<int64_t> lengths(plain.size());
    std::adjacent_difference(plain.begin(), plain.end(), lengths.begin());
    EXPECT_EQ(offsets.all_have_length(usual),
              std::all_of(lengths.begin() + 1, lengths.end(), [&](int64_t length) { return length == usual; }));
  }
}

// Lines that are answered with errors have no tokens.
TEST(SampleOffsetsTest, OnlyTheLastSampleHasTokens) {
  for (int64_t empty = 1; empty < 4; ++empty) {
    std::vector<int64_t> plain(static_cast<size_t>(empty) + 1, 0);
    plain.push_back(5);
    expect_equals(SampleOffsets(plain), plain);
  }
}

// A job of 2^31 tokens, and its plan.
TEST(SampleOffsetsTest, EquallyLongSamplesTakeNoMemory) {
  const SampleOffsets offsets = SampleOffsets::equally_long(int64_t{1} << 26, 32);
  EXPECT_EQ(offsets.back(), int64_t{1} << 31);
  EXPECT_EQ(offsets.memory_bytes(), 0u);
  const MicroBatches micro_batches(offsets, {}, {0, 512});
  EXPECT_EQ(micro_batches.memory_bytes(), 0u);
  const MicroBatch last = micro_batches[micro_batches.plan().micro_batches - 1];
  EXPECT_EQ(last.first_sample + last.samples, micro_batches.plan().samples);
  EXPECT_LE(offsets.to_bytes().size(), 24u);
}

TEST(SampleNumbersTest, CountWhatIsLeft) {
  SampleNumbers numbers;
  EXPECT_TRUE(numbers.all_are_left());
  EXPECT_EQ(numbers[5], 5);
  std::vector<int64_t> plain;
  for (const auto& [first, count] : {std::pair(2, 3), std::pair(5, 1), std::pair(9, 2), std::pair(100, 1)}) {
    numbers.add(first, count);
    for (int64_t i = 0; i < count; ++i) plain.push_back(first + i);
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(numbers[static_cast<int64_t>(i)], plain[i]);
}

}  // namespace
}  // namespace lfm2
