// Names and errors are the same in memory and in a temporary file, and pass between ranks line by line.
#include "stage/io/samples/sample_names.h"

#include <gtest/gtest.h>

#include <string>

#include "stage/io/samples/sample_errors.h"

namespace lfm2 {
namespace {

std::string name_of(int sample) { return sample % 7 == 3 ? "" : "\"name of sample " + std::to_string(sample) + '"'; }

SampleNames names_of(int count, uint64_t memory_limit) {
  SampleNames names;
  names.set_memory_limit(memory_limit);
  for (int sample = 0; sample < count; ++sample) names.push_back(name_of(sample));
  return names;
}

TEST(SampleNamesTest, AreTheSameOnDisk) {
  constexpr int kNames = 600000;
  SampleNames in_memory = names_of(kNames, uint64_t{1} << 30);
  const SampleNames on_disk = names_of(kNames, uint64_t{6} << 20);  // the first pieces are in memory
  EXPECT_FALSE(in_memory.is_on_disk());
  EXPECT_TRUE(on_disk.is_on_disk());
  for (int sample = 0; sample < kNames; ++sample)
    ASSERT_EQ(on_disk[static_cast<size_t>(sample)], name_of(sample)) << sample;
  EXPECT_EQ(in_memory, on_disk);
  in_memory.push_back("");
  EXPECT_NE(in_memory, on_disk);
  EXPECT_NE(names_of(9, 0), names_of(8, 0));
  EXPECT_EQ(SampleNames(), SampleNames());
}

TEST(SampleNamesTest, PassAsLines) {
  const SampleNames names = names_of(3 * static_cast<int>(SampleNames::kPiece) / 2, uint64_t{1} << 30);
  SampleNames received;
  for (size_t first = 0;; first += SampleNames::kPiece) {
    const std::string lines = names.lines(first);
    if (lines.empty()) break;
    received.add_lines(lines);
  }
  EXPECT_EQ(received, names);
}

TEST(SampleErrorsTest, KeepSamplesAndTexts) {
  SampleErrors errors;
  for (int sample = 0; sample < 10000; ++sample) errors.push_back(3 * int64_t{sample}, name_of(sample));
  ASSERT_EQ(errors.size(), 10000u);
  for (int sample = 0; sample < 10000; ++sample) {
    ASSERT_EQ(errors.sample(static_cast<size_t>(sample)), 3 * sample);
    ASSERT_EQ(errors.text(static_cast<size_t>(sample)), name_of(sample));
  }
}

}  // namespace
}  // namespace lfm2
