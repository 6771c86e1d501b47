// What live requests ask about their prompts, and the top tokens of those that ask for them: the bits of a
// scoring job, in any company, and however prompts are cut into stages, steps, chunks and pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "stage/generation/generator.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/scores.h"
#include "stage/scoring/scorer.h"
#include "support/golden.h"
#include "support/live_requests.h"
#include "support/loaded_stage.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"

namespace lfm2::test {
namespace {

constexpr const char* kAskedCase = "tiny-moe";
constexpr int64_t kPositions = 48, kPage = 4, kTop = 3;

using Told = std::map<int32_t, std::vector<DrawnToken>>;

ModelConfig config() { return ShardSet::open(golden_shards(kAskedCase, 4)).config(); }

// Prompts that ask for their log-probabilities, for hidden states of both kinds, for both and for nothing; some name
// top tokens, some are drawn from adjusted logits.
std::vector<Request> requests() {
  std::vector<Request> all;
  for (const int64_t length : {1, 7, 2, 40, 1, 3, 12, 5, 30, 9, 17, 2}) {
    const auto number = static_cast<int32_t>(all.size());
    const Samples prompt = random_samples(1, length, static_cast<uint64_t>(length), config().vocab);
    Request& one = all.emplace_back(Request{.sample = number, .prompt = {prompt.ids.begin(), prompt.ids.end()}});
    one.max_new = std::min<int64_t>(20, kPositions + 1 - length);
    one.num_top_logprobs = number % 3 == 0 ? static_cast<int32_t>(kTop) : 0;
    if (number % 4 == 2) one.rule = {.temperature = 0.8f, .seed = 3, .repetition_penalty = 1.3f};
    one.prompt_log_probs = number % 2 == 1;
    if (number % 4 == 3) one.hidden = Hidden::kLast;
    if (number % 5 == 3) one.hidden = Hidden::kMean;
    if (number % 7 == 6) make_prefill_only(one);
  }
  return all;
}

struct AskedSettings {
  int64_t stages = 1, slots = 1, chunk = 64, pages = 64;
  DType compute = DType::kF32;
  std::optional<DType> cache{};
};

Told told_by(const std::vector<Request>& all, const AskedSettings& settings, int64_t* preemptions = nullptr) {
  const auto stages = static_cast<size_t>(settings.stages);
  const GenerationPlan plan{.longest = kPositions,
                            .top_k = kTop,
                            .live = true,
                            .prompt_log_probs = true,
                            .hidden = true,
                            .counts = true,
                            .limits = {.steps_in_flight = settings.stages,
                                       .max_sequences = (settings.slots + settings.stages - 1) / settings.stages,
                                       .prompt_tokens = settings.chunk,
                                       .caches = {settings.slots, settings.pages, kPage}}};
  const std::vector<LayerRange> ranges = equal_partition(config().layers, settings.stages);
  std::vector<LocalLink> links(stages);
  LocalControlHub hub(stages);
  LocalBoard board(stages);
  LiveRequests source(all, std::vector<int64_t>(all.size(), 0), std::vector<int64_t>(all.size(), -1));
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(stages);
  for (size_t stage = 0; stage < stages; ++stage)
    threads.emplace_back([&, stage] {
      try {
        LoadedStage loaded(kAskedCase, ranges[stage], settings.compute, 1, settings.cache);
        LocalChannel channel(stage == 0 ? nullptr : &links[stage - 1], stage + 1 == stages ? nullptr : &links[stage]);
        LocalControlLink control(hub, stage);
        Watchdog watchdog = board.watchdog(stage);
        Generator generator(
            {loaded.backend, loaded.pieces, &channel, &control, static_cast<int64_t>(stage), settings.stages, watchdog},
            plan, settings.compute);
        generator.run(stage == 0 ? &source : nullptr, {}, [](int64_t) {});
        EXPECT_EQ(generator.free_pages(), settings.pages);
        if (stage == 0 && preemptions != nullptr) *preemptions = generator.counts().scheduled.preemptions;
      } catch (...) {
        errors[stage] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return source.told;
}

class Rows : public ResultConsumer {
 public:
  void consume(const ResultRows& rows) override {
    states.insert(states.end(), rows.logits.begin(), rows.logits.end());
    log_probs.insert(log_probs.end(), rows.log_probs.begin(), rows.log_probs.end());
    is_greedy.insert(is_greedy.end(), rows.is_greedy.begin(), rows.is_greedy.end());
  }
  std::vector<float> states, log_probs;
  std::vector<int32_t> is_greedy;
};

// What a scoring job gives for the prompt alone.
Rows scored(const Request& request, const ResultKind& kind, DType compute, std::optional<DType> cache) {
  Samples samples{.ids = {}, .offsets = {0}};
  for (const int32_t id : request.prompt) samples.ids.push_back(id);
  samples.offsets.push_back(std::ssize(request.prompt));
  if (kind.score) find_scored(samples, nullptr, "prompt", [] {});
  const MicroBatches micro_batches(samples.offsets, samples.ids, {1, 0}, kind.score ? &samples.scored : nullptr);
  LoadedStage loaded(kAskedCase, {0, config().layers}, compute, 1, cache);
  LocalControlHub hub(1);
  LocalControlLink control(hub, 0);
  LocalBoard board(1);
  Watchdog watchdog = board.watchdog(0);
  Scorer scorer({loaded.backend, loaded.pieces, nullptr, &control, 0, 1, watchdog}, micro_batches.plan(), compute,
                kind);
  Rows rows;
  FrontBatches source(micro_batches);
  scorer.run(&source, {&rows}, [](const MicroBatch&) {});
  return rows;
}

void expect_bits_of_scoring(std::optional<DType> cache) {
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    const std::vector<Request> all = requests();
    const Told told = told_by(all, {.stages = 3, .slots = 9, .chunk = 5, .compute = compute, .cache = cache});
    for (const Request& request : all) {
      SCOPED_TRACE(request.sample);
      const std::vector<DrawnToken>& tokens = told.at(request.sample);
      EXPECT_EQ(std::ssize(tokens), request.max_new);
      const TokenLogProbs& prompt = tokens.front().prompt;
      if (request.prompt_log_probs && request.prompt.size() > 1) {
        const Rows rows = scored(request, {.positions = Positions::kAll, .score = true}, compute, cache);
        EXPECT_EQ(prompt.log_probs, rows.log_probs);
        for (size_t token = 0; request.num_top_logprobs > 0 && token < rows.is_greedy.size(); ++token) {
          EXPECT_EQ(prompt.top_ids[token * kTop] == request.prompt[token + 1], rows.is_greedy[token] == 1);
          EXPECT_EQ(prompt.top_log_probs[token * kTop] == prompt.log_probs[token], rows.is_greedy[token] == 1);
        }
      } else {
        EXPECT_TRUE(prompt.log_probs.empty());
      }
      if (request.hidden != Hidden::kNone)
        EXPECT_EQ(tokens.front().hidden, scored(request, {.hidden = request.hidden}, compute, cache).states);
      else
        EXPECT_TRUE(tokens.front().hidden.empty());
    }
  }
}

TEST(AskedPromptsTest, TheBitsOfAScoringJob) { expect_bits_of_scoring({}); }

TEST(AskedPromptsTest, TheBitsOfAScoringJobWithACacheInFp8) {
  expect_bits_of_scoring(DType::kF8);
  const Request request = requests().at(3);
  const ResultKind all{.positions = Positions::kAll, .score = true};
  EXPECT_NE(scored(request, all, DType::kF32, DType::kF8).log_probs, scored(request, all, DType::kF32, {}).log_probs);
}

TEST(AskedPromptsTest, InAnyCompany) {
  const std::vector<Request> all = requests();
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    const Told alone = told_by(all, {.compute = compute});
    int64_t preemptions = 0, all_preemptions = 0;
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {3, 12})
        for (const int64_t chunk : {1, 5})
          for (const int64_t pages : {14, 100}) {
            SCOPED_TRACE(testing::Message() << stages << " stages, " << slots << " slots, chunks of " << chunk << ", "
                                            << pages << " pages");
            const Told found = told_by(all, {stages, slots, chunk, pages, compute}, &preemptions);
            all_preemptions += preemptions;
            for (const auto& [sample, tokens] : alone) {
              const std::vector<DrawnToken>& own = found.at(sample);
              ASSERT_EQ(own.size(), tokens.size());
              for (size_t i = 0; i < tokens.size(); ++i) {
                EXPECT_EQ(own[i].token, tokens[i].token);
                EXPECT_EQ(own[i].log_prob, tokens[i].log_prob);
                EXPECT_EQ(own[i].top_ids, tokens[i].top_ids);
                EXPECT_EQ(own[i].top_log_probs, tokens[i].top_log_probs);
                EXPECT_EQ(std::ssize(own[i].top_ids), all[static_cast<size_t>(sample)].num_top_logprobs);
                EXPECT_EQ(own[i].prompt.log_probs, tokens[i].prompt.log_probs);
                EXPECT_EQ(own[i].prompt.top_ids, tokens[i].prompt.top_ids);
                EXPECT_EQ(own[i].prompt.top_log_probs, tokens[i].prompt.top_log_probs);
                EXPECT_EQ(own[i].hidden, tokens[i].hidden);
                EXPECT_TRUE(i == 0 || (own[i].hidden.empty() && own[i].prompt.log_probs.empty()));
              }
            }
          }
    EXPECT_GT(all_preemptions, 0);
  }
}

// Nothing is computed that no sequence of the step asks for.
TEST(AskedPromptsTest, OnlyTheStepsOfThoseThatAsk) {
  SequenceTable table({.slots = 3, .pages = 8, .page_size = 8});
  StepArrays arrays;
  const Admission plain{.slot = 0, .prompt = 3, .num_tokens = 3, .request = {.max_new = 9}, .pages = {0}};
  const Admission asks{.slot = 1,
                       .prompt = 5,
                       .num_tokens = 5,
                       .request = {.sample = 1,
                                   .num_top_logprobs = 2,
                                   .prompt = {10, 11, 12, 13, 14},
                                   .max_new = 9,
                                   .prompt_log_probs = true},
                       .pages = {1}};
  const Admission mean{.slot = 2,
                       .prompt = 2,
                       .num_tokens = 2,
                       .request = {.sample = 2, .max_new = 1, .hidden = Hidden::kMean},
                       .pages = {2}};
  table.apply({.admitted = {plain, asks, mean}, .entries = {{0, 3}}}, 4, arrays);
  EXPECT_FALSE(arrays.top || arrays.adjusts);
  EXPECT_TRUE(arrays.scored_rows.empty() && arrays.hidden_rows.empty());
  // The row of a chunk's last token scores the first token of the next chunk.
  table.apply({.entries = {{0, 1}, {1, 2}, {2, 2}}}, 4, arrays);
  EXPECT_TRUE(arrays.top);
  EXPECT_EQ(arrays.scored_rows, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(arrays.targets, (std::vector<int32_t>{11, 12}));
  EXPECT_EQ(arrays.scored_of, (std::vector<StepEntry>{{1, 2}}));
  EXPECT_EQ(arrays.hidden_rows, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(arrays.hidden_of, (std::vector<StepEntry>{{2, 2}}));
  table.apply({.entries = {{0, 1}, {1, 3}}}, 4, arrays);
  EXPECT_EQ(arrays.scored_rows, (std::vector<int32_t>{1, 2}));  // behind the last token one is drawn
  EXPECT_EQ(arrays.targets, (std::vector<int32_t>{13, 14}));
  EXPECT_TRUE(arrays.top);
  table.apply({.entries = {{0, 1}}}, 4, arrays);
  EXPECT_FALSE(arrays.top);
}

TEST(AskedPromptsTest, WhatIsToldGoesThroughAMessage) {
  std::vector<DrawnToken> told(2);
  told[1] = {.token = 4,
             .log_prob = -2,
             .ends = FinishReason::kLength,
             .top_ids = {4, 5},
             .top_log_probs = {-2, -3},
             .prompt = {.log_probs = {-1}, .top_ids = {7, 8}, .top_log_probs = {-4, -5}},
             .hidden = {0.5f}};
  std::vector<int32_t> words = to_words(told);
  const auto back = from_words<std::vector<DrawnToken>>(words);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_FALSE(back[0].ends);
  EXPECT_EQ(back[1].token, 4);
  EXPECT_EQ(back[1].log_prob, -2);
  EXPECT_EQ(back[1].ends, FinishReason::kLength);
  EXPECT_EQ(back[1].top_ids, told[1].top_ids);
  EXPECT_EQ(back[1].top_log_probs, told[1].top_log_probs);
  EXPECT_EQ(back[1].prompt, told[1].prompt);
  EXPECT_EQ(back[1].hidden, told[1].hidden);
  while (!words.empty()) {
    words.pop_back();
    EXPECT_THROW(from_words<std::vector<DrawnToken>>(words), Error);
  }
}

}  // namespace
}  // namespace lfm2::test
