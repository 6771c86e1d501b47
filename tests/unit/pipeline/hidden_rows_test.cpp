// States in fp32 and their means: the same however the rows were cut into pieces.
#include "stage/pipeline/hidden_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace lfm2::test {
namespace {

TEST(HiddenRowsTest, RowsOfSamplesPieceByPiece) {
  const std::vector<int32_t> lengths{2, 1, 5};
  SampleCutter samples(lengths);
  EXPECT_EQ(samples.next(1), (std::vector<SampleRows>{{1, 0}}));
  EXPECT_EQ(samples.ended(), 0);
  EXPECT_EQ(samples.next(3), (std::vector<SampleRows>{{1, 2}, {1, 1}, {1, 0}}));
  EXPECT_EQ(samples.ended(), 2);
  EXPECT_EQ(samples.next(4), (std::vector<SampleRows>{{4, 5}}));
  EXPECT_EQ(samples.ended(), 3);
  EXPECT_THROW(samples.next(1), Error);
}

TEST(HiddenRowsTest, MeansDoNotDependOnPieces) {
  const std::vector<int32_t> lengths{3, 1, 4};
  std::vector<float> rows;
  for (int i = 0; i < 16; ++i) rows.push_back(1e8f / static_cast<float>(3 + i * i * i) - 7);
  std::vector<float> expected;
  for (const size_t first : {size_t{0}, size_t{3}, size_t{4}})
    for (const size_t column : {size_t{0}, size_t{1}}) {
      const size_t count = first == 0 ? 3 : first == 3 ? 1 : 4;
      double sum = 0;
      for (size_t row = first; row < first + count; ++row) sum += static_cast<double>(rows[2 * row + column]);
      expected.push_back(static_cast<float>(sum / static_cast<double>(count)));
    }
  for (const int64_t piece : {1, 2, 3, 5, 8}) {
    SampleCutter samples(lengths);
    HiddenRows hidden(2);
    std::vector<float> found;
    for (int64_t row = 0; row < 8; row += piece) {
      const std::vector<SampleRows> parts = samples.next(std::min<int64_t>(piece, 8 - row));
      const auto means = hidden.means(DType::kF32, rows.data() + 2 * row, parts);
      found.insert(found.end(), means.begin(), means.end());
    }
    EXPECT_EQ(found, expected) << piece;
  }
}

TEST(HiddenRowsTest, SmallerTypesAreConvertedAndAnOpenSampleIsForgotten) {
  HiddenRows hidden(2);
  const std::vector<Bf16> rows{from_float<Bf16>(1.5f), from_float<Bf16>(-2), from_float<Bf16>(3),
                               from_float<Bf16>(0.25f)};
  const auto converted = hidden.convert(DType::kBf16, rows.data(), 2);
  EXPECT_EQ(std::vector<float>(converted.begin(), converted.end()), (std::vector<float>{1.5f, -2, 3, 0.25f}));
  EXPECT_TRUE(hidden.means(DType::kBf16, rows.data(), std::vector<SampleRows>{{2, 0}}).empty());
  hidden.start_over();
  const auto means = hidden.means(DType::kBf16, rows.data(), std::vector<SampleRows>{{2, 2}});
  EXPECT_EQ(std::vector<float>(means.begin(), means.end()), (std::vector<float>{2.25f, -0.875f}));
}

}  // namespace
}  // namespace lfm2::test
