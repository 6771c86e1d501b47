// Shares of time of a run of any length.
#include "stage/pipeline/stage_run.h"

#include <gtest/gtest.h>

#include <random>

#include "base/duration_histogram.h"

namespace lfm2 {
namespace {

double hidden_sending(const std::vector<Span>& sends, const std::vector<Span>& computations) {
  OverlapClock clock;
  for (const Span& span : computations) clock.computed(span);
  for (const Span& span : sends) clock.sent(span);
  clock.finish();
  return clock.hidden_sending();
}

TEST(OverlapClockTest, SecondsUnderComputation) {
  const std::vector<Span> compute{{0, 0.0, 1.0}, {0, 1.0, 2.0}, {0, 3.0, 4.0}};
  EXPECT_DOUBLE_EQ(hidden_sending({{0, 0.5, 1.5}}, compute), 1.0);  // across two
  EXPECT_DOUBLE_EQ(hidden_sending({{0, 2.25, 2.75}}, compute), 0);  // in the gap
  EXPECT_DOUBLE_EQ(hidden_sending({{0, 1.5, 3.5}}, compute), 1.0);  // both sides of the gap
  EXPECT_DOUBLE_EQ(hidden_sending({{0, -1, 0.5}, {0, 0.25, 0.75}, {0, 3.5, 9}}, compute), 1.5);
  EXPECT_DOUBLE_EQ(hidden_sending({}, compute), 0);
  EXPECT_DOUBLE_EQ(hidden_sending(compute, {}), 0);
}

// As a run tells them: each when it has ended, a send while the next computation goes on.
TEST(OverlapClockTest, ALongRunIsNotKept) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> length(0.1, 1.0);
  OverlapClock clock;
  std::vector<Span> sends, computations;
  double now = 0;
  for (int unit = 0; unit < 20000; ++unit) {
    const Span compute{0, now, now + length(random)};
    computations.push_back(compute);
    clock.computed(compute);
    now = compute.end + (unit % 3 == 0 ? length(random) : 0);
    const double begin = std::max(compute.end, sends.empty() ? 0 : sends.back().end);
    const Span send{0, begin, begin + 0.9 * length(random)};
    sends.push_back(send);
    clock.sent(send);
    clock.waited({0, compute.start - 0.05, compute.start + 0.01});
    ASSERT_LE(clock.kept(), 1300u);
  }
  clock.finish();
  double expected = 0;
  for (size_t send = 0, first = 0; send < sends.size(); ++send) {
    while (first < computations.size() && computations[first].end <= sends[send].start) ++first;
    for (size_t i = first; i < computations.size() && computations[i].start < sends[send].end; ++i)
      expected += std::min(sends[send].end, computations[i].end) - std::max(sends[send].start, computations[i].start);
  }
  EXPECT_GT(expected, 1000);
  EXPECT_NEAR(clock.hidden_sending(), expected, 1e-6 * expected);
  EXPECT_NEAR(clock.waiting(), 20000 * 0.06, 1e-6);
}

// One stage alone neither sends nor waits.
TEST(OverlapClockTest, ComputationsAloneAreNotKept) {
  OverlapClock clock;
  for (int unit = 0; unit < 100000; ++unit) clock.computed({0, unit + 0.0, unit + 0.5});
  EXPECT_LE(clock.kept(), 1300u);
}

TEST(DurationHistogramTest, QuantilesAreRightToOnePercent) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> duration(-6, 2);
  DurationHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  std::vector<double> all;
  for (int i = 0; i < 100001; ++i) {
    all.push_back(duration(random));
    histogram.add(all.back());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(histogram.count(), 100001);
  for (const double share : {0.0, 0.01, 0.5, 0.95, 0.999, 1.0}) {
    const double exact = all[static_cast<size_t>(share * 100000)];
    EXPECT_NEAR(histogram.quantile(share) / exact, 1, 0.006) << share;
  }
  DurationHistogram extremes;
  for (const double seconds : {-1.0, 0.0, 1e9}) extremes.add(seconds);
  EXPECT_EQ(extremes.count(), 3);
  EXPECT_GT(extremes.quantile(1), 1e4);
}

}  // namespace
}  // namespace lfm2
