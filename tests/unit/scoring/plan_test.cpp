// Cutting samples into micro-batches.
#include "stage/scoring/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"

namespace lfm2 {
namespace {

SampleOffsets offsets_of(const std::vector<int64_t>& lengths) {
  SampleOffsets offsets;
  for (int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

MicroBatches all_plans(const SampleOffsets& offsets, int64_t micro_batch, int64_t target_tokens) {
  return {offsets, {}, {0, offsets.samples()}, {micro_batch, target_tokens}};
}

void expect_covers(const MicroBatches& micro_batches, const SampleOffsets& offsets) {
  const BatchPlan& plan = micro_batches.plan();
  int64_t sample = 0, token = 0, max_tokens = 0, max_samples = 0;
  for (int64_t i = 0; i < plan.micro_batches; ++i) {
    const MicroBatch one = micro_batches[i];
    EXPECT_EQ(one.first_sample, sample);
    EXPECT_EQ(one.first_token, token);
    EXPECT_GE(one.samples, 1);
    max_tokens = std::max(max_tokens, one.tokens);
    max_samples = std::max(max_samples, one.samples);
    std::vector<int32_t> lengths;
    for (int64_t j = 0; j < one.samples; ++j) lengths.push_back(static_cast<int32_t>(offsets.length(sample + j)));
    EXPECT_EQ(content_of_message(micro_batches.message(i), false).lengths, lengths);
    sample += one.samples;
    token += one.tokens;
    EXPECT_EQ(token, offsets[sample]);
  }
  EXPECT_EQ(sample, plan.samples);
  EXPECT_EQ(token, plan.tokens);
  EXPECT_EQ(max_tokens, plan.max_tokens);
  EXPECT_EQ(max_samples, plan.max_samples);
}

TEST(PlanTest, GivenSamplesPerMicroBatch) {
  const SampleOffsets offsets = offsets_of({3, 1, 4, 1, 5});
  const MicroBatches micro_batches = all_plans(offsets, 2, 0);
  ASSERT_EQ(micro_batches.plan().micro_batches, 3);
  EXPECT_EQ(micro_batches[0].tokens, 4);
  EXPECT_EQ(micro_batches[1].tokens, 5);
  EXPECT_EQ(micro_batches[2].tokens, 5);
  expect_covers(micro_batches, offsets);
}

TEST(PlanTest, ChosenMicroBatchesHoldTheTarget) {
  const SampleOffsets offsets = offsets_of({10, 200, 3, 3, 3, 90, 20});
  const MicroBatches micro_batches = all_plans(offsets, 0, 100);
  for (int64_t i = 0; i < micro_batches.plan().micro_batches; ++i)
    EXPECT_TRUE(micro_batches[i].tokens <= 100 || micro_batches[i].samples == 1);
  expect_covers(micro_batches, offsets);
}

TEST(PlanTest, CoversEveryCountAndSize) {
  for (int64_t samples = 1; samples < 20; ++samples)
    for (int64_t size = 0; size < 22; ++size) {
      std::vector<int64_t> lengths(static_cast<size_t>(samples));
      std::iota(lengths.begin(), lengths.end(), 1);
      const SampleOffsets offsets = offsets_of(lengths);
      expect_covers(all_plans(offsets, size, 8), offsets);
    }
}

// Where a token costs more the more tokens are in front of it, parts get smaller, so that they cost alike. The largest
// is as large as asked for.
TEST(PlanTest, PartsCostAlike) {
  constexpr int64_t kLength = 65536;
  const SampleOffsets offsets = offsets_of({kLength});
  for (const double growth : {1e-9, 2.5e-5, 1e-3})
    for (const int64_t target : {1024, 4096, 10000, 40000}) {
      const MicroBatches::Size size{.tokens = target, .smallest_part = 512, .growth = growth};
      const MicroBatches parts(offsets, {}, {0, 1}, size);
      const BatchPlan& plan = parts.plan();
      ASSERT_EQ(plan.micro_batches, MicroBatches::parts(kLength, size));
      ASSERT_LE(plan.micro_batches, MicroBatches::max_parts(kLength, size));
      EXPECT_LE(plan.max_tokens, MicroBatches::largest_part(kLength, size, plan.micro_batches));
      const bool as_asked = plan.micro_batches < MicroBatches::max_parts(kLength, size);
      EXPECT_TRUE(!as_asked || 2 * plan.max_tokens <= 3 * target) << plan.max_tokens;
      double cheapest = std::numeric_limits<double>::infinity(), dearest = 0;
      int64_t past = 0;
      for (int64_t i = 0; i < plan.micro_batches; ++i) {
        const MicroBatch part = parts[i];
        ASSERT_EQ(part.past, past);
        ASSERT_GE(part.tokens, size.smallest_part);
        past += part.tokens;
        const auto tokens = static_cast<double>(part.tokens);
        const double cost = tokens * (1 + growth * (static_cast<double>(part.past) + tokens / 2));
        cheapest = std::min(cheapest, cost);
        dearest = std::max(dearest, cost);
      }
      ASSERT_EQ(past, kLength);
      EXPECT_LT(dearest, 1.005 * cheapest) << growth << " " << target;
    }
}

// Parts follow one another without a gap, are about as large as asked for, and each scores the tokens behind its own.
TEST(PlanTest, LongSamplesGoInParts) {
  const SampleOffsets offsets = offsets_of({5, 100, 3, 16, 17, 60, 1});
  std::vector<int32_t> ids(static_cast<size_t>(offsets.back()));
  std::iota(ids.begin(), ids.end(), 0);
  SampleOffsets scored;
  for (const int64_t count : {4, 99, 1, 2, 16, 20, 0}) scored.push_back(scored.back() + count);
  for (const bool scores : {false, true}) {
    const MicroBatches micro_batches(offsets, ids, {0, 7}, {.tokens = 16, .smallest_part = 8},
                                     scores ? &scored : nullptr);
    const BatchPlan& plan = micro_batches.plan();
    EXPECT_EQ(plan.longest_in_parts, 100);
    int64_t token = 0, samples = 0, next_scored = 0, parts = 0;
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      const MicroBatch one = micro_batches[i];
      SCOPED_TRACE(i);
      EXPECT_EQ(one.first_token, token);
      EXPECT_EQ(one.first_sample, samples);
      EXPECT_LE(one.tokens, plan.max_tokens);
      EXPECT_LE(one.tokens, 24);
      const MicroBatchContent content = content_of_message(micro_batches.message(i), scores);
      EXPECT_EQ(content.past, one.past);
      EXPECT_EQ(content.whole, one.whole);
      EXPECT_EQ(std::accumulate(content.lengths.begin(), content.lengths.end(), int64_t{0}), one.tokens);
      if (one.is_part()) {
        ++parts;
        EXPECT_GE(one.tokens, 8);
        EXPECT_EQ(one.whole, offsets.length(one.first_sample));
        EXPECT_EQ(one.past, one.first_token - offsets[one.first_sample]);
        EXPECT_EQ(one.ends_samples(), one.samples == 1);
      }
      token += one.tokens;
      samples += one.samples;
      if (!scores) continue;
      EXPECT_EQ(one.first_scored, next_scored);
      EXPECT_EQ(one.scored, std::ssize(content.targets));
      EXPECT_LE(one.scored, plan.max_scored);
      next_scored += one.scored;
      targets.insert(targets.end(), content.targets.begin(), content.targets.end());
      // Each target stands behind a token of the micro-batch.
      if (one.is_part())
        for (const int32_t target : content.targets) {
          EXPECT_GT(target, one.first_token);
          EXPECT_LE(target, one.first_token + one.tokens);
        }
    }
    EXPECT_EQ(token, offsets.back());
    EXPECT_EQ(samples, 7);
    EXPECT_EQ(parts, 6 + 4);  // 17 tokens are not worth two
    if (!scores) continue;
    std::vector<int32_t> expected;
    for (int64_t sample = 0; sample < 7; ++sample)
      for (int64_t at = offsets[sample + 1] - scored.length(sample); at < offsets[sample + 1]; ++at)
        expected.push_back(static_cast<int32_t>(at));
    EXPECT_EQ(targets, expected);
  }
  // Parts may be smaller than the micro-batches that other samples make.
  EXPECT_EQ(MicroBatches(offsets, ids, {1, 1}, {.tokens = 50, .smallest_part = 8, .part = 10}).plan().micro_batches,
            10);
  for (const std::vector<int32_t>& words :
       {std::vector<int32_t>{0}, {0, 0, 8, 9}, {0, 5, 8, 4}, {0, -1, 8, 4}, {0, 0, 8, 0}})
    EXPECT_THROW(content_of_message(words, true), Error);
  EXPECT_THROW(content_of_message(std::vector<int32_t>{0, 0, 8, 4, 1}, false), Error);
}

TEST(PlanTest, EquallyLongSamplesAreToldInTwoWords) {
  const SampleOffsets offsets = offsets_of({7, 7, 7, 7, 2});
  const MicroBatches micro_batches = all_plans(offsets, 3, 0);
  EXPECT_EQ(micro_batches.message(0), (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(micro_batches.message(1), (std::vector<int32_t>{2, 7, 2}));
  expect_covers(micro_batches, offsets);
  for (const std::vector<int32_t>& words : {std::vector<int32_t>{}, {3}, {0, 7}, {-1, 7}, {2, 7, 2, 1}, {3, 1, 2}})
    EXPECT_THROW(content_of_message(words, false), Error);
}

TEST(PlanTest, MessagesOfScoringHoldTheTargets) {
  const SampleOffsets offsets = offsets_of({3, 3, 2, 4}), scored = offsets_of({2, 1, 1, 2});
  const std::vector<int32_t> ids{10, 11, 12, 20, 21, 22, 30, 31, 40, 41, 42, 43};
  // The pipeline has the samples from 1 on.
  const MicroBatches micro_batches(offsets, std::span<const int32_t>(ids).subspan(3), {1, 3}, {2, 0}, &scored);
  EXPECT_EQ(micro_batches.plan().first_scored, 2);
  EXPECT_EQ(micro_batches.plan().max_scored, 2);
  EXPECT_EQ(micro_batches.plan().max_rows({.positions = Positions::kAll, .score = true}), 2);
  EXPECT_EQ(micro_batches[0].scored, 2);
  EXPECT_EQ(micro_batches[1].first_scored, 2);
  EXPECT_EQ(micro_batches.message(0), (std::vector<int32_t>{2, 3, 2, 1, 1, 22, 31}));
  EXPECT_EQ(micro_batches.message(1), (std::vector<int32_t>{1, 4, 2, 42, 43}));
  const MicroBatchContent content = content_of_message(micro_batches.message(0), true);
  EXPECT_EQ(content.lengths, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(content.scored, (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(content.targets, (std::vector<int32_t>{22, 31}));
  for (const std::vector<int32_t>& words : {std::vector<int32_t>{}, {1, 4}, {1, 4, 2, 42}, {0, 1, 1}, {2, 3, 2, 1}})
    EXPECT_THROW(content_of_message(words, true), Error);
}

TEST(PlanTest, TargetKeepsStagesBusy) {
  EXPECT_EQ(choose_target_tokens(1000, {1}, 512), 512);
  EXPECT_EQ(choose_target_tokens(5, {1}, 512), 5);
  EXPECT_EQ(choose_target_tokens(1, {8}, 512), 1);
  const int64_t target = choose_target_tokens(3200, {4}, 512);
  EXPECT_GE((3200 + target - 1) / target, 15);  // at least five micro-batches for each step of the fill
}

// Twice as many tokens where their last positions are no more rows than there are buffers for.
TEST(PlanTest, MicroBatchesAreLargestWhereResultsAreFew) {
  const ResultKind last, all{.positions = Positions::kAll}, scores{.positions = Positions::kAll, .score = true};
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 32), 65536);
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 63), 65536);
  EXPECT_EQ(max_measured_target(DType::kBf16, last, 64), 131072);
  EXPECT_EQ(max_measured_target(DType::kF16, last, 65536), 131072);
  EXPECT_EQ(max_measured_target(DType::kBf16, {.hidden = Hidden::kLast}, 2048), 131072);
  EXPECT_EQ(max_measured_target(DType::kBf16, {.hidden = Hidden::kMean}, 2048), 65536);
  for (const ResultKind& kind : {all, scores}) EXPECT_EQ(max_measured_target(DType::kBf16, kind, 2048), 65536);
  EXPECT_EQ(max_measured_target(DType::kF32, last, 2048), 16384);
}

TEST(ReplicaSamplesTest, EveryPipelineGetsItsShareInOrder) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{1, 1, 1, 1},
                                              {100, 1, 1, 1, 1},
                                              {1, 1, 1, 1, 100},
                                              {1, 8, 1, 1},
                                              {5, 7, 3, 9, 2, 8, 1, 1, 30, 4}}) {
    const SampleOffsets offsets = offsets_of(lengths);
    for (int64_t replicas = 1; replicas <= 4; ++replicas) {
      int64_t next = 0;
      for (int64_t replica = 0; replica < replicas; ++replica) {
        const SampleRange range = replica_samples(offsets, replicas, replica);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.count, 1);
        next += range.count;
      }
      EXPECT_EQ(next, static_cast<int64_t>(lengths.size()));
    }
  }
  const SampleOffsets even = offsets_of(std::vector<int64_t>(1024, 32));
  for (int64_t replica = 0; replica < 4; ++replica) EXPECT_EQ(replica_samples(even, 4, replica).count, 256);
  EXPECT_THROW(replica_samples(offsets_of({3, 3}), 3, 0), Error);
}

// The fewest tokens that the largest share of a cut into `replicas` shares in order can have.
int64_t largest_share_of_best_cut(const std::vector<int64_t>& lengths, int64_t replicas) {
  const auto shares_of = [&](int64_t most) {
    int64_t shares = 1, tokens = 0;
    for (const int64_t length : lengths) {
      if (tokens + length > most) ++shares, tokens = 0;
      tokens += length;
    }
    return shares;
  };
  int64_t low = *std::max_element(lengths.begin(), lengths.end());
  int64_t high = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (shares_of(middle) <= replicas)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

std::vector<int64_t> ragged_lengths(std::mt19937& random, int64_t replicas) {
  std::lognormal_distribution<double> length(2, 1.5);
  std::vector<int64_t> lengths(static_cast<size_t>(replicas) + random() % 100);
  for (int64_t& one : lengths) one = random() % 20 == 0 ? 1000 : 1 + static_cast<int64_t>(length(random));
  return lengths;
}

// One long sample, or several, may cover the boundaries of many equal shares.
TEST(ReplicaSamplesTest, NoShareIsEmptyAndNoneIsASampleLargerThanThoseOfTheBestCut) {
  std::mt19937 random(1);
  for (int list = 0; list < 10000; ++list) {
    const auto replicas = static_cast<int64_t>(2 + random() % 63);
    const std::vector<int64_t> lengths = ragged_lengths(random, replicas);
    const SampleOffsets offsets = offsets_of(lengths);
    const int64_t most =
        largest_share_of_best_cut(lengths, replicas) + *std::max_element(lengths.begin(), lengths.end());
    int64_t next = 0;
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const SampleRange range = replica_samples(offsets, replicas, replica);
      ASSERT_EQ(range.first, next) << "list " << list << ", replica " << replica;
      ASSERT_GE(range.count, 1) << "list " << list << ", replica " << replica;
      next += range.count;
      ASSERT_LE(offsets[next] - offsets[range.first], most) << "list " << list << ", replica " << replica;
    }
    ASSERT_EQ(next, offsets.samples()) << "list " << list;
  }
}

TEST(ReplicaSamplesTest, APlanOfAPartKnowsWhereItStands) {
  const SampleOffsets offsets = offsets_of({3, 1, 4, 1, 5});
  const std::vector<int32_t> ids{40, 41, 42, 43, 10, 50, 51, 52, 53, 54};
  const MicroBatches micro_batches(offsets, ids, {2, 3}, {2, 0});
  EXPECT_EQ(micro_batches.plan().first_sample, 2);
  EXPECT_EQ(micro_batches.plan().first_token, 4);
  ASSERT_EQ(micro_batches.plan().micro_batches, 2);
  EXPECT_EQ(micro_batches[1].first_sample, 2);
  EXPECT_EQ(micro_batches[1].first_token, 5);
  EXPECT_EQ(micro_batches.ids(1).front(), 50);
  EXPECT_EQ(micro_batches.ids(1).size(), 5u);
}

}  // namespace
}  // namespace lfm2
