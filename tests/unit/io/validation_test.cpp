// What a job says of its results beside given answers.
#include "stage/io/validation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class ValidationTest : public testing::Test {
 protected:
  Verdict compare(const std::vector<float>& ours, double tolerance) {
    std::vector<int32_t> file{2, 3};
    for (const float value : {1.0f, 2.5f, -3.0f, 4.0f, 5.0f, 0.1f}) file.push_back(std::bit_cast<int32_t>(value));
    write_values(folder_ / "answers.bin", file);
    Validation validation(open_reference(folder_ / "answers.bin", Positions::kLast, offsets_, 3), 3, tolerance);
    const std::span<const float> rows = ours;
    validation.consume({.first = 0, .count = 1, .logits = rows.subspan(0, 3)});
    validation.consume({.first = 1, .count = 1, .logits = rows.subspan(3, 3)});
    return validation.verdict();
  }

  TemporaryFolder folder_;
  SampleOffsets offsets_{0, 2, 3};
};

TEST_F(ValidationTest, EqualIsValid) {
  const Verdict verdict = compare({1, 2.5f, -3, 4, 5, 0.1f}, 0);
  EXPECT_TRUE(verdict.valid());
  EXPECT_EQ(verdict.top1_equal, 2);
  EXPECT_NEAR(verdict.mean_kl(), 0, 1e-15);
}

TEST_F(ValidationTest, LargestDifferenceAndTop1AndKl) {
  const Verdict verdict = compare({1, 2.5f, -3, 4, 3, 0.1f}, 1.5);
  EXPECT_FALSE(verdict.valid());
  EXPECT_EQ(verdict.largest_difference, 2);
  EXPECT_EQ(verdict.top1_equal, 1);
  // The KL divergence of one row by hand: p = softmax(4, 5, 0.1), q = softmax(4, 3, 0.1).
  const double zp = std::exp(4) + std::exp(5) + std::exp(0.1), zq = std::exp(4) + std::exp(3) + std::exp(0.1);
  const double kl = std::log(zq / zp) + std::exp(5) / zp * 2;
  EXPECT_NEAR(verdict.mean_kl(), kl / 2, 1e-6);
}

TEST_F(ValidationTest, NanIsInvalidAtAnyTolerance) {
  EXPECT_FALSE(compare({1, std::nanf(""), -3, 4, 5, 0.1f}, 1e30).valid());
}

// Replicas add their rows in an order of their own.
TEST(OrderlessSumTest, TheOrderDoesNotCount) {
  std::mt19937_64 generator(1);
  std::vector<double> numbers{-1e-9, 3e5, 1e-14};
  for (int i = 0; i < 1000; ++i)
    numbers.push_back(std::ldexp(static_cast<double>(generator() >> 11), -30 - static_cast<int>(generator() % 60)));
  OrderlessSum forth, back, half;
  long double expected = 0;
  for (const double x : numbers) expected += x;
  for (size_t i = 0; i < numbers.size(); ++i) {
    (i < 300 ? half : forth).add(numbers[i]);
    back.add(numbers[numbers.size() - 1 - i]);
  }
  forth.add(half);
  EXPECT_EQ(forth.value(), back.value());
  EXPECT_NEAR(forth.value(), static_cast<double>(expected), 1e-12 * static_cast<double>(expected));
  forth.add(HUGE_VAL);
  EXPECT_TRUE(std::isnan(forth.value()));
}

TEST_F(ValidationTest, AnswersOfAnotherShapeAreRefused) {
  write_values<int32_t>(folder_ / "a.bin", {3, 3});
  EXPECT_THROW(open_reference(folder_ / "a.bin", Positions::kLast, offsets_, 3), Error);
  write_values<int32_t>(folder_ / "a.bin", {2, 3, 0, 0});
  EXPECT_THROW(open_reference(folder_ / "a.bin", Positions::kLast, offsets_, 3), Error);
}

}  // namespace
}  // namespace lfm2::test
