// The pipeline over threads and the pipeline of one stage give the same bits, however the samples are cut, ordered and
// accompanied.
#include "stage/scoring/scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "comm/local_channel.h"
#include "comm/local_control_link.h"
#include "stage/io/input_file.h"
#include "stage/model/memory_plan.h"
#include "support/golden.h"
#include "support/largest_difference.h"
#include "support/loaded_stage.h"
#include "support/local_watchdogs.h"

namespace lfm2::test {
namespace {

// A cut into the virtual stages of ranks that have so many pieces each.
struct Cut {
  std::vector<LayerRange> ranges;
  int64_t pieces = 1;
  Cut(std::vector<LayerRange> all, int64_t pieces_of_rank = 1) : ranges(std::move(all)), pieces(pieces_of_rank) {}
};

// Runs `samples` through one thread a rank; the collector gets all rows. `stop`: see Scorer::run. Returns whether the
// run was finished.
bool run(const std::string& golden_case, const Cut& cut, const Samples& samples, MicroBatches::Size size,
         ResultKind kind, DType compute, int threads, ResultConsumer& collector, const std::function<bool()>& stop = {},
         LateParts late = {}) {
  const MicroBatches micro_batches(samples.offsets, samples.ids, {0, samples.count()}, size,
                                   kind.score ? &samples.scored : nullptr);
  BatchPlan plan = micro_batches.plan();
  plan.late = late;
  const size_t stages = cut.ranges.size() / static_cast<size_t>(cut.pieces);
  const bool ring = cut.pieces > 1;
  const int most =
      Schedule::most_buffers({static_cast<int64_t>(stages), cut.pieces}, micro_batches.plan().micro_batches);
  std::vector<LocalLink> links(stages);  // from each rank to the next
  LocalControlHub hub(stages);
  LocalBoard board(stages);
  std::vector<std::thread> ranks;
  std::vector<std::exception_ptr> errors(stages);
  std::atomic<bool> finished = true;
  for (size_t rank = 0; rank < stages; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        LoadedStage loaded(golden_case, pieces_of(cut.ranges, static_cast<int64_t>(stages), static_cast<int64_t>(rank)),
                           compute, threads);
        LocalChannel channel(rank > 0 || ring ? &links[(rank + stages - 1) % stages] : nullptr,
                             rank + 1 < stages || ring ? &links[rank] : nullptr, rank == 0 ? most : kBuffers);
        LocalControlLink control(hub, rank);
        Watchdog watchdog = board.watchdog(rank);
        Scorer scorer({.backend = loaded.backend,
                       .pieces = loaded.pieces,
                       .channel = &channel,
                       .control = &control,
                       .index = static_cast<int64_t>(rank),
                       .stages = static_cast<int64_t>(stages),
                       .watchdog = watchdog},
                      plan, compute, kind);
        scorer.run(
            rank == 0 ? &micro_batches : nullptr, {&collector}, [](const MicroBatch&) {},
            rank == 0 ? stop : std::function<bool()>());
        if (!scorer.finished()) finished = false;
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return finished;
}

// The logits of all rows.
std::vector<float> score(const std::string& golden_case, const Cut& cut, const Samples& samples, int64_t micro_batch,
                         Positions positions, DType compute = DType::kF32, int threads = 1) {
  LogitsCollector collector;
  run(golden_case, cut, samples, {micro_batch}, {.positions = positions}, compute, threads, collector);
  return collector.logits;
}

// The scores of all rows, which must come in order.
struct ScoreCollector : ResultConsumer {
  void take(const ResultRows& rows) override {
    EXPECT_EQ(rows.first, std::ssize(log_probs));
    log_probs.insert(log_probs.end(), rows.log_probs.begin(), rows.log_probs.end());
    likeliest.insert(likeliest.end(), rows.likeliest.begin(), rows.likeliest.end());
  }
  std::vector<float> log_probs;
  std::vector<int32_t> likeliest;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Samples golden_samples(const std::string& golden_case) {
  return read_samples(golden_dir() / golden_case / "golden.h5", {1 << 20, 1 << 20, 0});
}

Samples ragged_samples(int64_t vocab) {
  Samples all{.ids = {}, .offsets = {0}};
  for (int64_t length : {1, 7, 2, 30, 1, 3, 12}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab);
    all.ids.append(one.ids);
    all.offsets.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

class ScorerTest : public testing::TestWithParam<std::string> {
 protected:
  ModelConfig config() const { return ShardSet::open(golden_shards(GetParam(), 4)).config(); }
  int64_t layers() const { return config().layers; }
  int64_t blocks() const { return kBlocksOfLayer * layers(); }
  int64_t vocab() const { return config().vocab; }
};

TEST_P(ScorerTest, EveryCutIntoStagesGivesTheSameBits) {
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

// Cut between any two blocks, with the tails cut on either side or in between, and with a block a stage.
TEST_P(ScorerTest, EveryCutBetweenBlocksGivesTheSameBits) {
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

// What is said to be needed before anything is loaded is what a rank allocates, with the tails cut and without.
TEST_P(ScorerTest, MemoryIsAsItWasPlanned) {
  const ShardSet shards = ShardSet::open(golden_shards(GetParam(), 4));
  const Samples samples = random_samples(24, 40, 1, vocab());
  const MicroBatches micro_batches(samples.offsets, samples.ids, {0, samples.count()}, {2});
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
        LocalChannel channel(&previous, &next, Schedule::most_buffers({2, pieces}, plan.micro_batches));
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
            buffers * buffer_extras(shards.config(), own, plan, kind).bytes(shards.config(), DType::kF32);
        EXPECT_EQ(planned, backend.bytes());
      }
}

// Round a ring, whose ranks have pieces that are not neighbours: samples of many lengths, one or several in a
// micro-batch, in groups that are smaller and larger than the ring; with the tails cut in any piece.
TEST_P(ScorerTest, EveryRingGivesTheSameBits) {
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
TEST_P(ScorerTest, PartsOfLongSamplesGiveTheSameBits) {
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
        run(GetParam(), cut, samples, size, kind, compute, 1,
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

// A run that is stopped hands out what has begun, from the first micro-batch on, and nothing twice.
struct CountingCollector : LogitsCollector {
  void take(const ResultRows& rows) override {
    LogitsCollector::take(rows);
    ++taken;
  }
  int taken = 0;
};

// The last micro-batch in two parts through the last layers, from any layer on in front of the cut of the tails. Rows
// come in order.
TEST_P(ScorerTest, LatePartsGiveTheSameBits) {
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
          run(GetParam(), whole, samples, {micro_batch, 1 << 20}, {}, compute, 1, collector, {},
              {.layer = layer, .samples = second});
          EXPECT_TRUE(same_bits(alone, collector.logits));
          // Of three samples, six cannot be the second part.
          EXPECT_EQ(collector.taken, (micro_batch == 4 ? 2 : 1) + (micro_batch == 4 && second == 6 ? 0 : 1));
        }
  }
}

TEST_P(ScorerTest, ARingThatIsStoppedFinishesWhatHasBegun) {
  const Samples samples = random_samples(24, 6, 5, vocab());
  const std::vector<float> alone = score(GetParam(), equal_partition(layers(), 1), samples, 0, Positions::kLast);
  for (const int looks : {0, 1, 2, 5, 11, 23}) {
    LogitsCollector collector;
    int looked = 0;
    const bool finished = run(GetParam(), {equal_partition(layers(), 4), 2}, samples, {1}, {}, DType::kF32, 1,
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
               our_error = largest_difference(ours, expected.values);
  ASSERT_LE(our_error, their_error);
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
    run(GetParam(), equal_partition(layers(), 1), samples, {}, kind, DType::kF32, 1, alone);
    ASSERT_EQ(std::ssize(alone.log_probs), samples.scored.back());
    size_t row = 0;
    for (int64_t i = 0; i < samples.count(); ++i)
      for (int64_t token = samples.offsets[i + 1] - samples.scored.length(i); token < samples.offsets[i + 1]; ++token) {
        const float* at = logits.data() + (token - 1) * vocab;
        const int32_t id = samples.ids[static_cast<size_t>(token)];
        double sum = 0;
        for (int64_t other = 0; other < vocab; ++other) sum += std::exp(static_cast<double>(at[other] - at[id]));
        EXPECT_NEAR(alone.log_probs[row], -std::log(sum), 1e-5);
        EXPECT_EQ(alone.likeliest[row] != 0, std::max_element(at, at + vocab) - at == id);
        ++row;
      }
    ScoreCollector found;
    run(GetParam(), equal_partition(layers(), targets ? 2 : 3), samples, {targets ? 1 : 2}, kind, DType::kF32, 1,
        found);
    EXPECT_TRUE(same_bits(found.log_probs, alone.log_probs));
    EXPECT_EQ(found.likeliest, alone.likeliest);
    ScoreCollector round;
    run(GetParam(), {equal_partition(layers(), 4), 2}, samples, {1}, kind, DType::kF32, 1, round);
    EXPECT_TRUE(same_bits(round.log_probs, alone.log_probs));
    EXPECT_EQ(round.likeliest, alone.likeliest);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ScorerTest, testing::ValuesIn(kGoldenCases), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ScorerErrorTest, AStageThatNeverHearsEndsWithItsName) {
  const Samples samples = golden_samples("tiny-moe");
  const MicroBatches micro_batches(samples.offsets, samples.ids, {0, samples.count()}, {1, 0});
  LocalLink silent;
  LocalControlHub hub(2);
  LocalControlLink first(hub, 0), control(hub, 1);
  first.send_step(micro_batches.message(0));
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
