// Results of the pipeline over threads: those of the references, and of each sample by itself.
#include "stage/scoring/scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "stage/io/inputs/input_file.h"
#include "stage/model/memory_plan.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/loaded_stage.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"
#include "support/scoring_run.h"

namespace lfm2::test {
namespace {

// Counts the memory that is allocated on it.
class CountingBackend : public CpuBackend {
 public:
  CountingBackend() : CpuBackend(1) {}
  uint64_t bytes() const { return bytes_; }
  Buffer allocate(size_t bytes) override {
    bytes_ += bytes;
    return CpuBackend::allocate(bytes);
  }
  Buffer allocate_host(size_t bytes) override {
    bytes_ += bytes;
    return CpuBackend::allocate_host(bytes);
  }

 private:
  uint64_t bytes_ = 0;
};

// What is said to be needed before anything is loaded is what a rank allocates, with tokens pruned and without.
TEST_P(ScorerTest, MemoryIsAsItWasPlanned) {
  const ShardSet shards = ShardSet::open(golden_shards(GetParam(), 4));
  const Samples samples = random_samples(24, 40, 1, vocab());
  const MicroBatches micro_batches(samples.offsets, samples.ids, {2});
  const BatchPlan& plan = micro_batches.plan();
  for (const int64_t pieces : {1, 2})
    for (const Positions positions : {Positions::kLast, Positions::kAll})
      for (const int64_t rank : {0, 1}) {
        if (2 * pieces > layers()) continue;
        SCOPED_TRACE(testing::Message() << pieces << " pieces, rank " << rank);
        const auto cut =
            pieces == 1 ? cut_at_blocks({blocks() / 2 + 1, blocks()}) : equal_partition(layers(), 2 * pieces);
        const std::vector<LayerRange> own = pieces_of(cut, 2, rank);
        const ResultKind kind{.positions = positions};
        LoadedStage loaded(GetParam(), own, DType::kF32);
        CountingBackend backend;
        LocalLink previous, next;
        LocalChannel channel(&previous, &next, Schedule::max_buffers({2, pieces}, plan.micro_batches));
        LocalControlHub hub(2);
        LocalControlLink control(hub, static_cast<size_t>(rank));
        LocalBoard board(2);
        Watchdog watchdog = board.watchdog(static_cast<size_t>(rank));
        const Scorer scorer({.backend = backend,
                             .pieces = loaded.pieces,
                             .channel = &channel,
                             .control = &control,
                             .index = rank,
                             .stages = 2,
                             .watchdog = watchdog},
                            plan, DType::kF32, kind);
        const auto buffers = static_cast<uint64_t>(Schedule({2, pieces}, rank, plan.micro_batches).buffers());
        const StageMemory cost =
            stage_memory(shards.config(), own, DType::kF32, DType::kF32, plan.max_tokens, plan.max_rows(kind));
        const uint64_t planned =
            cost.total_bytes(buffers) - cost.weight_bytes +
            buffers *
                scoring_buffers(shards.config(), own, plan, kind).extra_bytes(shards.config().hidden, DType::kF32);
        EXPECT_EQ(planned, backend.bytes());
      }
}

// A run that is stopped hands out what has begun, from the first micro-batch on, and nothing twice.
TEST_P(ScorerTest, ARingThatIsStoppedFinishesWhatHasBegun) {
  const Samples samples = random_samples(24, 6, 5, vocab());
  const std::vector<float> alone = score(GetParam(), equal_partition(layers(), 1), samples, 0, Positions::kLast);
  for (const int looks : {0, 1, 2, 5, 11, 23}) {
    LogitsCollector collector;
    int looked = 0;
    const bool finished = run_scoring(GetParam(), {equal_partition(layers(), 4), 2}, samples, {1}, {}, DType::kF32, 1,
                                      collector, [&] { return looked++ >= looks; });
    EXPECT_FALSE(finished);
    ASSERT_LE(collector.logits.size(), alone.size());
    EXPECT_EQ(collector.logits.size() % static_cast<size_t>(vocab()), 0u);
    EXPECT_TRUE(std::equal(collector.logits.begin(), collector.logits.end(), alone.begin()));
  }
}

TEST_P(ScorerTest, LogitsAreTheReferences) {
  const Array expected = read_array(golden_dir() / GetParam() / "golden.h5", "logits_f64");
  const Array reference = read_array(golden_dir() / GetParam() / "golden.h5", "logits");
  const std::vector<float> found =
      score(GetParam(), equal_partition(layers(), 4), golden_samples(GetParam()), 2, Positions::kAll);
  ASSERT_EQ(found.size(), expected.values.size());
  const double own_error = largest_difference(reference.values, expected.values),
               error = largest_difference(found, expected.values);
  EXPECT_LE(error, 3 * own_error);
  RecordProperty("error", std::to_string(error));
  RecordProperty("reference_error", std::to_string(own_error));
}

TEST_P(ScorerTest, ASampleDependsOnItselfAlone) {
  const Samples all = ragged_samples(vocab());
  for (DType compute : {DType::kF32, DType::kBf16}) {
    const std::vector<float> together =
        score(GetParam(), equal_partition(layers(), 1), all, 0, Positions::kLast, compute);
    ASSERT_EQ(together.size(), static_cast<size_t>(all.count() * vocab()));
    EXPECT_TRUE(
        same_bits(together, score(GetParam(), equal_partition(layers(), 3), all, 2, Positions::kLast, compute)));
    EXPECT_TRUE(
        same_bits(together, score(GetParam(), equal_partition(layers(), 2), all, 3, Positions::kLast, compute, 3)));
    for (int64_t sample = 0; sample < all.count(); ++sample) {
      const auto first = all.offsets[sample], end = all.offsets[static_cast<size_t>(sample + 1)];
      const Samples one{.ids = {all.ids.begin() + first, all.ids.begin() + end}, .offsets = {0, end - first}};
      const std::vector<float> alone =
          score(GetParam(), equal_partition(layers(), 1), one, 0, Positions::kLast, compute);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + sample * vocab(), alone.size() * sizeof(float)), 0)
          << "sample " << sample;
    }
  }
}

// The yardstick is transformers' own bf16 run: routing near-ties that fall the other way make any bf16 run of a small
// random MoE differ from fp64 by whole logits.
TEST_P(ScorerTest, Bf16IsAsCloseAsTransformersOwnBf16) {
  const std::filesystem::path golden = golden_dir() / GetParam();
  const Array expected = read_array(golden / "golden.h5", "logits_f64"),
              theirs = read_array(golden / "bf16.h5", "logits_bf16");
  const std::vector<float> ours =
      score(GetParam(), equal_partition(layers(), 2), golden_samples(GetParam()), 2, Positions::kAll, DType::kBf16);
  const double their_error = largest_difference(theirs.values, expected.values),
               our_error = bf16_difference(GetParam(), ours, expected.values);
  ASSERT_LE(our_error, bf16_difference(GetParam(), theirs.values, expected.values));
  EXPECT_GT(our_error, 1e-3) << "this was no bf16 run";
  const auto columns = static_cast<size_t>(vocab());
  for (size_t row = 0; row < ours.size() / columns; ++row) {
    std::vector<double> sorted(expected.values.begin() + static_cast<std::ptrdiff_t>(row * columns),
                               expected.values.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
    const auto best = std::max_element(sorted.begin(), sorted.end()) - sorted.begin();
    std::sort(sorted.rbegin(), sorted.rend());
    if (sorted[0] - sorted[1] <= their_error) continue;
    EXPECT_EQ(std::max_element(&ours[row * columns], &ours[row * columns] + columns) - &ours[row * columns], best)
        << "token " << row;
  }
}

// --score: the log-probabilities are those of the logits in front of each token, for all tokens but the first and for
// targets of other lengths, with the same bits for every cut and micro-batch.
TEST_P(ScorerTest, ScoresAreThoseOfTheLogits) {
  const int64_t vocab = this->vocab();
  Samples samples = golden_samples(GetParam());
  const std::vector<float> logits = score(GetParam(), equal_partition(layers(), 1), samples, 0, Positions::kAll);
  for (const bool targets : {false, true}) {
    samples.scored = {};
    for (int64_t i = 0; i < samples.count(); ++i) {
      const int64_t most = samples.offsets.length(i) - 1;
      samples.scored.push_back(samples.scored.back() + (targets ? 1 + i % most : most));
    }
    ScoreCollector alone;
    const ResultKind kind{.positions = Positions::kAll, .score = true};
    run_scoring(GetParam(), equal_partition(layers(), 1), samples, {}, kind, DType::kF32, 1, alone);
    ASSERT_EQ(std::ssize(alone.log_probs), samples.scored.back());
    size_t row = 0;
    for (int64_t i = 0; i < samples.count(); ++i)
      for (int64_t token = samples.offsets[i + 1] - samples.scored.length(i); token < samples.offsets[i + 1]; ++token) {
        const float* at = logits.data() + (token - 1) * vocab;
        const int32_t id = samples.ids[static_cast<size_t>(token)];
        double sum = 0;
        for (int64_t other = 0; other < vocab; ++other) sum += std::exp(static_cast<double>(at[other] - at[id]));
        EXPECT_NEAR(alone.log_probs[row], -std::log(sum), 1e-5);
        EXPECT_EQ(alone.is_greedy[row] != 0, std::max_element(at, at + vocab) - at == id);
        ++row;
      }
    ScoreCollector found;
    run_scoring(GetParam(), equal_partition(layers(), targets ? 2 : 3), samples, {targets ? 1 : 2}, kind, DType::kF32,
                1, found);
    EXPECT_TRUE(same_bits(found.log_probs, alone.log_probs));
    EXPECT_EQ(found.is_greedy, alone.is_greedy);
    ScoreCollector round;
    run_scoring(GetParam(), {equal_partition(layers(), 4), 2}, samples, {1}, kind, DType::kF32, 1, round);
    EXPECT_TRUE(same_bits(round.log_probs, alone.log_probs));
    EXPECT_EQ(round.is_greedy, alone.is_greedy);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ScorerTest, testing::ValuesIn(kGoldenCases), ScorerTest::name);

TEST(ScorerErrorTest, AStageThatNeverHearsEndsWithItsName) {
  const Samples samples = golden_samples("tiny-moe");
  const MicroBatches micro_batches(samples.offsets, samples.ids, {1, 0});
  LocalLink silent;
  LocalControlHub hub(2);
  LocalControlLink first(hub, 0), control(hub, 1);
  first.send_step(to_words(micro_batches.content(0)));
  LoadedStage loaded("tiny-moe", {4, 4}, DType::kF32);
  LocalChannel channel(&silent, nullptr);
  LocalBoard board(2);
  Watchdog silent_one = board.watchdog(0, 0.4), watchdog = board.watchdog(1, 0.4);
  silent_one.enter({.phase = Phase::kCompute, .unit = 3});
  Scorer scorer({loaded.backend, loaded.pieces, &channel, &control, 1, 2, watchdog}, micro_batches.plan(), DType::kF32,
                {});
  try {
    scorer.run(nullptr, {}, [](const MicroBatch&) {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kLost);
    EXPECT_NE(std::string(error.what())
                  .find("rank 0 computes micro-batch 3 and does not come out of it; rank 1 waits for micro-batch "
                        "0 from rank 0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lfm2::test
