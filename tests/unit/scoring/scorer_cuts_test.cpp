// However layers and samples are cut, the pipeline over threads gives the bits of one stage.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/golden.h"
#include "support/scoring_run.h"

namespace lfm2::test {
namespace {

class ScorerCutsTest : public ScorerTest {};

TEST_P(ScorerCutsTest, EveryCutIntoStagesGivesTheSameBits) {
  const Samples samples = golden_samples(GetParam());
  const std::vector<float> alone = score(GetParam(), equal_partition(layers(), 1), samples, 0, Positions::kAll);
  for (int64_t stages : {int64_t{2}, int64_t{3}, int64_t{4}, layers()})
    for (int64_t micro_batch : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, micro-batch " << micro_batch);
      EXPECT_TRUE(same_bits(
          alone, score(GetParam(), equal_partition(layers(), stages), samples, micro_batch, Positions::kAll)));
    }
  const std::vector<LayerRange> uneven = {{0, 1}, {1, layers() - 2}, {layers() - 1, 1}};
  EXPECT_TRUE(same_bits(alone, score(GetParam(), uneven, samples, 1, Positions::kAll)));
}

// Cut between any two blocks, with tokens pruned on either side or in between, and with a block a stage.
TEST_P(ScorerCutsTest, EveryCutBetweenBlocksGivesTheSameBits) {
  const Samples samples = ragged_samples(vocab());
  for (const auto& [compute, positions] :
       {std::pair{DType::kF32, Positions::kLast}, std::pair{DType::kBf16, Positions::kAll}}) {
    const std::vector<float> alone = score(GetParam(), equal_partition(layers(), 1), samples, 0, positions, compute);
    for (int64_t block = 1; block < blocks(); ++block) {
      SCOPED_TRACE(testing::Message() << "cut at block " << block << ", " << positions_name({.positions = positions}));
      EXPECT_TRUE(
          same_bits(alone, score(GetParam(), cut_at_blocks({block, blocks()}), samples, 2, positions, compute)));
    }
    std::vector<int64_t> every(static_cast<size_t>(blocks()));
    std::iota(every.begin(), every.end(), 1);
    EXPECT_TRUE(same_bits(alone, score(GetParam(), cut_at_blocks(every), samples, 3, positions, compute)));
    EXPECT_TRUE(same_bits(alone, score(GetParam(), {cut_at_blocks(every), 2}, samples, 3, positions, compute)));
  }
}

// Round a ring, whose ranks have pieces that are not neighbours: samples of many lengths, one or several in a
// micro-batch, in groups that are smaller and larger than the ring; with tokens pruned in any piece.
TEST_P(ScorerCutsTest, EveryRingGivesTheSameBits) {
  Samples samples = ragged_samples(vocab());
  const Samples more = random_samples(16, 5, 3, vocab());
  samples.ids.append(more.ids);
  for (int64_t i = 0; i < more.count(); ++i) samples.offsets.push_back(samples.offsets.back() + more.offsets.length(i));
  std::vector<Cut> rings;
  for (const auto& [stages, pieces] : {std::pair<int64_t, int64_t>{2, 2}, {2, 3}, {3, 2}, {2, layers() / 2}, {4, 2}})
    if (stages * pieces <= layers() && pieces > 1)
      rings.emplace_back(equal_partition(layers(), stages * pieces), pieces);
  rings.emplace_back(explicit_partition(layers(), {1, layers() - 3, 1, 1}), 2);
  rings.emplace_back(explicit_partition(layers(), {1, 1, layers() - 3, 1}), 2);
  rings.emplace_back(cut_at_blocks({3, layers(), blocks() - 3, blocks()}), 2);
  for (const Positions positions : {Positions::kLast, Positions::kAll}) {
    const std::vector<float> alone = score(GetParam(), equal_partition(layers(), 1), samples, 0, positions);
    for (const Cut& ring : rings)
      for (int64_t micro_batch : {1, 3, 23}) {
        SCOPED_TRACE(testing::Message() << ring.ranges.size() << " virtual stages in " << ring.pieces
                                        << " pieces, micro-batch " << micro_batch);
        EXPECT_TRUE(same_bits(alone, score(GetParam(), ring, samples, micro_batch, positions)));
      }
  }
}

// Long samples in parts, which go on over caches: every kind of result, in pipelines and rings, with parts of many
// sizes and samples that are short beside them, has the bits of whole samples on one rank.
TEST_P(ScorerCutsTest, PartsOfLongSamplesGiveTheSameBits) {
  const int64_t tail = tail_length(config());
  const int64_t last_mixer = kBlocksOfLayer * last_attention_layer(config());
  Samples samples{.ids = {}, .offsets = {0}};
  for (const int64_t length : {int64_t{3}, 7 * tail + 5, int64_t{1}, 300 + tail, int64_t{9}, 4 * tail, 5 * tail + 1}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab());
    samples.ids.append(one.ids);
    samples.offsets.push_back(samples.offsets.back() + length);
  }
  for (int64_t i = 0; i < samples.count(); ++i)  // the targets of some samples begin in the middle of a part
    samples.scored.push_back(samples.scored.back() + (samples.offsets.length(i) - 1) / (i % 2 + 1));
  const std::vector<ResultKind> kinds{{.positions = Positions::kLast},
                                      {.positions = Positions::kAll},
                                      {.positions = Positions::kAll, .score = true},
                                      {.hidden = Hidden::kMean}};
  const std::vector<Cut> cuts{equal_partition(layers(), 2),
                              equal_partition(layers(), layers()),
                              {equal_partition(layers(), 4), 2},
                              cut_at_blocks({last_mixer, blocks()}),
                              cut_at_blocks({last_mixer + 1, blocks()})};
  for (const DType compute : {DType::kF32, DType::kBf16})
    for (const ResultKind& kind : kinds) {
      const auto results = [&](const Cut& cut, MicroBatches::Size size) {
        LogitsCollector logits;
        ScoreCollector scores;
        run_scoring(GetParam(), cut, samples, size, kind, compute, 1,
                    kind.score ? static_cast<ResultConsumer&>(scores) : logits);
        return kind.score ? scores.log_probs : logits.logits;
      };
      const std::vector<float> whole = results(equal_partition(layers(), 1), {.tokens = 1});
      ASSERT_FALSE(whole.empty());
      for (const Cut& cut : cuts)
        for (const int64_t target : {tail, 2 * tail + 1, int64_t{128}}) {
          SCOPED_TRACE(testing::Message() << cut.ranges.size() << " virtual stages, parts of " << target << ", results "
                                          << positions_name(kind) << kind.score);
          EXPECT_TRUE(same_bits(whole, results(cut, {.tokens = target, .smallest_part = tail})));
        }
      if (compute == DType::kBf16) break;  // one kind of result says enough of another type
    }
}

struct CountingCollector : LogitsCollector {
  void consume(const ResultRows& rows) override {
    LogitsCollector::consume(rows);
    ++taken;
  }
  int taken = 0;
};

// The last micro-batch in two parts through the last layers, from any layer before the pruning. Rows come in
// order.
// Of samples of one token, the rounding of each index array to whole units is most of what the arrays take.
TEST_P(ScorerCutsTest, LatePartsOfTheShortestSamplesFitTheirArrays) {
  const Samples samples = random_samples(3, 1, 7, vocab());
  const std::vector<LayerRange> whole = equal_partition(layers(), 1);
  const std::vector<float> alone = score(GetParam(), whole, samples, 0, Positions::kLast);
  for (const int64_t second : {1, 2}) {
    CountingCollector collector;
    run_scoring(GetParam(), whole, samples, {0, 1 << 20}, {}, DType::kF32, 1, collector, {},
                {.layer = last_attention_layer(config()), .samples = second});
    EXPECT_TRUE(same_bits(alone, collector.logits));
    EXPECT_EQ(collector.taken, 2);
  }
}

TEST_P(ScorerCutsTest, LatePartsGiveTheSameBits) {
  const Samples samples = ragged_samples(vocab());
  const std::vector<LayerRange> whole = equal_partition(layers(), 1);
  const int64_t attention = last_attention_layer(config());
  ASSERT_GT(attention, 0);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    const std::vector<float> alone = score(GetParam(), whole, samples, 0, Positions::kLast, compute);
    for (const int64_t micro_batch : {0, 4})
      for (int64_t layer = 1; layer <= attention; ++layer)
        for (const int64_t second : {1, 2, 6}) {
          SCOPED_TRACE(testing::Message() << "micro-batch " << micro_batch << ", from layer " << layer
                                          << " on, the second part has " << second);
          CountingCollector collector;
          run_scoring(GetParam(), whole, samples, {micro_batch, 1 << 20}, {}, compute, 1, collector, {},
                      {.layer = layer, .samples = second});
          EXPECT_TRUE(same_bits(alone, collector.logits));
          // Of three samples, six cannot be the second part.
          EXPECT_EQ(collector.taken, (micro_batch == 4 ? 2 : 1) + (micro_batch == 4 && second == 6 ? 0 : 1));
        }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ScorerCutsTest, testing::ValuesIn(kGoldenCases), ScorerTest::name);

}  // namespace
}  // namespace lfm2::test
