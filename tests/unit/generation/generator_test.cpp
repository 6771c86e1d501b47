// Generation over threads: transformers' greedy texts, and the same texts however the sequences are cut into stages,
// steps, chunks and pages, alone and among others.
#include "stage/generation/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <thread>

#include "comm/local_channel.h"
#include "comm/local_control_link.h"
#include "stage/generation/sample_requests.h"
#include "stage/io/input_file.h"
#include "stage/support/json.h"
#include "support/golden.h"
#include "support/loaded_stage.h"
#include "support/local_watchdogs.h"

namespace lfm2::test {
namespace {

class Collected : public CompletionConsumer {
 public:
  void take(const Completion& completion) override {
    EXPECT_TRUE(all.emplace(completion.sample, completion).second) << "a sample twice";
  }
  std::map<int64_t, Completion> all;
};

// Remembers what it is told of the stages and the caches.
class ToldRequests : public SampleRequests {
 public:
  using SampleRequests::SampleRequests;
  void stage_seconds(int64_t stage, double busy, double total) override {
    EXPECT_LE(busy, total);
    busy_of[stage] = busy;
  }
  void caches(int64_t used_slots, int64_t used_pages) override {
    most_slots = std::max(most_slots, used_slots);
    most_pages = std::max(most_pages, used_pages);
  }
  void begun(int32_t, int64_t tokens) override { cached += tokens; }  // that the prefix cache had
  std::map<int64_t, double> busy_of;
  int64_t most_slots = 0, most_pages = 0, cached = 0;
};

struct Settings {
  int64_t stages = 1, slots = 4, page = 16, prompt_tokens = 64, max_new = 12;
  SamplingRule rule{};
  std::vector<int32_t> eos_tokens{};
  int64_t top_k = 0;
  DType compute = DType::kF32;
  int64_t pages = 0;  // 0: as many as all slots can fill
  std::vector<std::string> stop{};
  TokenText token_text{};
  bool keeps_prefixes = false;
  double times_interval = 0;
};

std::map<int64_t, Completion> generate(const std::string& golden_case, const Samples& samples, const Settings& settings,
                                       int64_t* preemptions = nullptr, int64_t* cached = nullptr) {
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const std::vector<LayerRange> ranges = equal_partition(config.layers, settings.stages);
  const Request each{
      .max_new = settings.max_new, .rule = settings.rule, .eos_tokens = settings.eos_tokens, .stop = settings.stop};
  const RequestDefaults defaults{.of_ids = each, .of_text = each};
  GenerationPlan plan{.top_k = settings.top_k, .limits = {}, .times_interval = settings.times_interval};
  const auto note = [&](const Request& request) {
    plan.counts |= request.rule.counts();
    plan.edits = std::max(plan.edits, static_cast<int64_t>(edits_of(request).size()));
  };
  note(each);
  for (const SampleRules& rules : samples.rules.distinct()) note(request_by_rules(defaults, rules, 0));
  for (int64_t i = 0; i < samples.count(); ++i)
    plan.longest =
        std::max(plan.longest, cached_positions(samples.offsets[i + 1] - samples.offsets[i], settings.max_new));
  const int64_t slots = std::min(settings.slots, samples.count());
  plan.limits = {
      .steps_in_flight = settings.stages,
      .max_sequences = (slots + settings.stages - 1) / settings.stages,
      .prompt_tokens = settings.prompt_tokens,
      .caches = {.slots = slots,
                 .pages = settings.pages > 0 ? settings.pages : slots * pages_for(plan.longest, settings.page),
                 .page = settings.page,
                 .keeps_prefixes = settings.keeps_prefixes}};
  plan.limits.counted_prefixes = plan.longest;
  std::vector<LocalLink> links(ranges.size());
  LocalControlHub hub(ranges.size());
  Collected collected;
  LocalBoard board(ranges.size());
  std::vector<std::thread> ranks;
  std::vector<std::exception_ptr> errors(ranges.size());
  for (size_t rank = 0; rank < ranges.size(); ++rank)
    ranks.emplace_back([&, rank] {
      try {
        LoadedStage loaded(golden_case, ranges[rank], settings.compute);
        LocalChannel channel(rank == 0 ? nullptr : &links[rank - 1],
                             rank + 1 == ranges.size() ? nullptr : &links[rank]);
        LocalControlLink control(hub, rank);
        Watchdog watchdog = board.watchdog(rank);
        Generator generator({.backend = loaded.backend,
                             .stage = loaded.stage,
                             .channel = &channel,
                             .control = &control,
                             .index = static_cast<int64_t>(rank),
                             .stages = settings.stages,
                             .watchdog = watchdog},
                            plan, settings.compute);
        ToldRequests requests(samples, {0, samples.count()}, defaults, config.max_positions);
        generator.run(
            rank == 0 ? &requests : nullptr, {&collected}, [](int64_t) {}, {}, settings.token_text);
        EXPECT_EQ(generator.used_slots(), 0);
        EXPECT_EQ(generator.free_pages(), plan.limits.caches.pages);
        if (rank == 0 && plan.times_interval > 0) {
          EXPECT_EQ(std::ssize(requests.busy_of), settings.stages);
          for (const auto& [stage, busy] : requests.busy_of) EXPECT_GT(busy, 0) << stage;
          EXPECT_EQ(requests.most_slots, slots);
          EXPECT_GE(requests.most_pages, slots);
        }
        if (rank == 0 && preemptions != nullptr) *preemptions = generator.counts().preemptions;
        if (rank == 0 && cached != nullptr) *cached = requests.cached;
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  EXPECT_EQ(static_cast<int64_t>(collected.all.size()), samples.count());
  return collected.all;
}

Samples golden_prompts(const std::string& golden_case) {
  return read_samples(golden_dir() / golden_case / "golden.h5", {1 << 20, 1 << 20, 0});
}

std::vector<int32_t> tokens_of(const std::map<int64_t, Completion>& completions, int64_t sample) {
  return completions.at(sample).token_ids;
}

TEST(GeneratorTimesTest, AreToldToTheSourceOfRequests) {
  const Samples prompts = golden_prompts("tiny-moe");
  for (const int64_t stages : {1, 4})
    generate("tiny-moe", prompts, {.stages = stages, .slots = 2, .max_new = 20, .times_interval = 1e-6});
}

class GeneratorTest : public testing::TestWithParam<std::string> {};

TEST_P(GeneratorTest, GreedyIsTransformersGreedy) {
  const Samples prompts = golden_prompts(GetParam());
  const Array greedy = read_array(golden_dir() / GetParam() / "golden.h5", "greedy");
  const int64_t length = prompts.offsets[1], whole = greedy.dim(1);
  for (const int64_t stages : {1, 2, 4})
    for (const int64_t page : {1, 16, 256})
      for (const int64_t slots : {1, 3, 64}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, pages of " << page << ", " << slots << " at a time");
        const auto found = generate(GetParam(), prompts,
                                    {.stages = stages,
                                     .slots = slots,
                                     .page = page,
                                     .prompt_tokens = slots == 3 ? 5 : 64,
                                     .max_new = whole - length});
        for (int64_t sample = 0; sample < prompts.count(); ++sample) {
          const auto first = greedy.values.begin() + sample * whole + length;
          EXPECT_TRUE(std::equal(first, first + (whole - length), tokens_of(found, sample).begin())) << sample;
          EXPECT_EQ(found.at(sample).reason, FinishReason::kLength);
        }
      }
}

TEST_P(GeneratorTest, GreedyWithRepetitionPenaltyIsThatOfTransformers) {
  const Samples prompts = golden_prompts(GetParam());
  const Json document = Json::parse(std::ifstream(golden_dir() / "penalties.json"));
  int64_t checked = 0;
  for (const Json& one : document["cases"]) {
    if (one["case"] != GetParam()) continue;
    const auto expected = one["tokens"].get<std::vector<std::vector<int32_t>>>();
    const auto penalty = one["penalty"].get<float>();
    ASSERT_EQ(static_cast<int64_t>(expected.size()), prompts.count());
    for (const int64_t stages : {1, 3}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, penalty " << penalty);
      const auto found = generate(GetParam(), prompts,
                                  {.stages = stages,
                                   .slots = 3,
                                   .prompt_tokens = stages == 3 ? 5 : 64,
                                   .max_new = static_cast<int64_t>(expected[0].size()),
                                   .rule = {.repetition_penalty = penalty}});
      for (int64_t sample = 0; sample < prompts.count(); ++sample)
        EXPECT_EQ(tokens_of(found, sample), expected[static_cast<size_t>(sample)]) << "sample " << sample;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

// The log-probability of every token is the one that scoring the whole text gives: the same bits.
TEST_P(GeneratorTest, CachedStepsHaveTheBitsOfTheFullForward) {
  const Samples prompts = golden_prompts(GetParam());
  const Settings settings{.stages = 2, .slots = 3, .page = 4, .prompt_tokens = 7, .max_new = 9, .top_k = 3};
  const auto found = generate(GetParam(), prompts, settings);
  for (int64_t sample = 0; sample < std::min<int64_t>(3, prompts.count()); ++sample) {
    Samples text{.ids = {}, .offsets = {0}};
    const auto at = static_cast<size_t>(sample);
    text.ids = TokenIds(prompts.ids.begin() + prompts.offsets[at], prompts.ids.begin() + prompts.offsets[at + 1]);
    const Completion& completion = found.at(sample);
    for (size_t token = 0; token < completion.token_ids.size(); ++token) {
      // The full forward over all that is known so far, as one prompt.
      text.offsets = {0, static_cast<int64_t>(text.ids.size())};
      const auto whole = generate(GetParam(), text, {.slots = 1, .prompt_tokens = 4096, .max_new = 1, .top_k = 3});
      EXPECT_EQ(whole.at(0).token_ids[0], completion.token_ids[token]);
      EXPECT_EQ(whole.at(0).log_probs[0], completion.log_probs[token]) << "sample " << sample << ", token " << token;
      EXPECT_TRUE(std::equal(whole.at(0).top_log_probs.begin(), whole.at(0).top_log_probs.end(),
                             completion.top_log_probs.begin() + static_cast<std::ptrdiff_t>(3 * token)));
      text.ids.push_back(completion.token_ids[token]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GeneratorTest, testing::ValuesIn(kGoldenCases), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Each sample has the completion of `expected`, bit for bit.
void expect_same(const std::map<int64_t, Completion>& found, const std::map<int64_t, Completion>& expected) {
  for (const auto& [sample, completion] : expected) {
    EXPECT_EQ(found.at(sample).token_ids, completion.token_ids) << "sample " << sample;
    EXPECT_EQ(found.at(sample).log_probs, completion.log_probs);
    EXPECT_EQ(found.at(sample).top_log_probs, completion.top_log_probs);
    EXPECT_EQ(found.at(sample).reason, completion.reason);
  }
}

Samples ragged_prompts(int64_t vocab) {
  Samples all{.ids = {}, .offsets = {0}};
  for (const int64_t length : {1, 7, 2, 40, 1, 3, 12, 5, 1}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab);
    all.ids.append(one.ids);
    all.offsets.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

// Drawn texts depend on the seed and the sample alone, in bf16 too, and with sequences that end early and more of them
// than slots.
TEST(GenerationTest, ASampleDependsOnItselfAlone) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Settings settings{.slots = 1,
                      .max_new = 20,
                      .rule = {.temperature = 1.5f, .top_k = 20, .top_p = 0.9f, .seed = 5},
                      .eos_tokens = {3, 9, 17},
                      .compute = compute};
    const auto alone = generate("tiny-moe", prompts, settings);
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [](const auto& one) { return one.second.reason == FinishReason::kStop; }));
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [](const auto& one) { return one.second.reason == FinishReason::kLength; }));
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {2, 4, 9})
        for (const int64_t chunk : {1, 4, 100}) {
          settings.stages = stages;
          settings.slots = slots;
          settings.prompt_tokens = chunk;
          settings.page = slots == 4 ? 1 : 8;
          const auto found = generate("tiny-moe", prompts, settings);
          expect_same(found, alone);
        }
    settings.rule.seed = 6;
    const auto other = generate("tiny-moe", prompts, settings);
    EXPECT_TRUE(std::any_of(alone.begin(), alone.end(),
                            [&](const auto& one) { return other.at(one.first).token_ids != one.second.token_ids; }));
  }
}

// Samples with rules of all kinds side by side: the same bits alone, among others, however they are cut into stages,
// chunks and pages, and where some give their pages back and are fed again.
TEST(GenerationTest, AdjustedDrawsHaveTheSameBitsInAnyCompany) {
  Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample) {
    SampleRules rules{.temperature = sample % 4 == 3 ? 0.0f : 1.5f, .top_p = 0.95f, .min_p = 0.02f};
    if (sample % 3 != 0) rules.repetition_penalty = 1.3f;
    if (sample % 3 == 2) rules.presence_penalty = rules.frequency_penalty = 0.5f;
    if (sample % 2 == 0) rules.logit_bias = {{static_cast<int32_t>(sample), 4.0f}, {20, -100.0f}};
    if (sample > 4) rules.min_tokens = 10;
    prompts.rules.push_back(rules);
  }
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Settings settings{.slots = 1, .page = 4, .max_new = 20, .eos_tokens = {3, 9, 17}, .top_k = 2, .compute = compute};
    const auto alone = generate("tiny-moe", prompts, settings);
    for (const auto& [sample, completion] : alone) {
      if (sample > 4) {
        EXPECT_GT(completion.token_ids.size(), 9u);
      }
      if (sample % 2 == 0) {
        EXPECT_EQ(std::count(completion.token_ids.begin(), completion.token_ids.end(), 20), 0);
      }
    }
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {4, 9})
        for (const int64_t pages : {0, 18}) {
          if (slots == 4 && pages > 0) continue;  // enough for four
          settings.stages = stages;
          settings.slots = slots;
          settings.prompt_tokens = slots == 4 ? 3 : 64;
          settings.pages = pages;
          int64_t preemptions = 0;
          const auto found = generate("tiny-moe", prompts, settings, &preemptions);
          EXPECT_EQ(preemptions > 0, pages > 0);
          expect_same(found, alone);
        }
  }
}

// Prompts that begin alike, some of them as a whole prompt before them with a part of its text: what of them is taken
// from the prefix cache gives the bits of computing it.
TEST(GenerationTest, PrefixesChangeNothing) {
  const int64_t vocab = ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab;
  for (const auto& [compute, penalty] :
       {std::pair(DType::kF32, 1.0f), {DType::kBf16, 1.0f}, {DType::kF32, 1.5f}, {DType::kBf16, 1.5f}}) {
    Settings settings{.page = 4,
                      .max_new = 20,
                      .rule = {.temperature = 1.2f, .seed = 5, .repetition_penalty = penalty},
                      .top_k = 2,
                      .compute = compute};
    Samples prompts{.ids = {}, .offsets = {0}};
    const Samples words = random_samples(1, 64, 3, vocab);
    for (int64_t sample = 0; sample < 24; ++sample) {
      for (int64_t i = 0; i < 8 + sample % 3 * 13; ++i) prompts.ids.push_back(words.ids[i]);
      for (int64_t i = 0; i < sample % 5; ++i) prompts.ids.push_back(words.ids[63 - sample]);
      prompts.offsets.push_back(std::ssize(prompts.ids));
    }
    const auto computed = generate("tiny-moe", prompts, settings);
    for (const int64_t stages : {1, 3})
      for (const int64_t slots : {1, 5})
        for (const int64_t pages : {15, 30}) {  // the longest sequence alone takes 15
          SCOPED_TRACE(testing::Message() << stages << " stages, " << slots << " at a time, " << pages << " pages");
          settings.stages = stages;
          settings.slots = slots;
          settings.pages = pages;
          settings.prompt_tokens = slots == 1 ? 7 : 64;
          settings.keeps_prefixes = true;
          int64_t preemptions = 0, cached = 0;
          const auto found = generate("tiny-moe", prompts, settings, &preemptions, &cached);
          EXPECT_GT(cached, 100);
          for (const auto& [sample, completion] : computed) {
            EXPECT_EQ(found.at(sample).token_ids, completion.token_ids) << "sample " << sample;
            EXPECT_EQ(found.at(sample).log_probs, completion.log_probs);
            EXPECT_EQ(found.at(sample).top_log_probs, completion.top_log_probs);
          }
        }
  }
}

// Texts end before a stop text, and with the token that completes it: no token comes behind. In each sequence by
// itself, whatever goes on beside it.
TEST(GenerationTest, StopTextsEndSequences) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  std::vector<std::string> texts;
  for (int id = 0; id < 4096; ++id) texts.push_back("<" + std::to_string(id) + ">");
  const auto text_of = [&](int32_t token) -> std::string_view { return texts.at(static_cast<size_t>(token)); };
  Settings settings{
      .slots = 9, .max_new = 20, .rule = {.temperature = 1.5f, .seed = 5}, .stop = {}, .token_text = text_of};
  const auto free = generate("tiny-moe", prompts, settings);
  const auto text = [&](int64_t sample, size_t place) { return std::string(text_of(tokens_of(free, sample)[place])); };
  // Across two tokens of sample 3, inside a token of sample 5, a whole token of sample 8, and what no text has.
  settings.stop = {text(3, 6).substr(text(3, 6).size() - 2) + text(3, 7).substr(0, 3), text(5, 2).substr(1, 2),
                   text(8, 11), "<<"};
  // By the definition, token by token: the first stop text that ends in the newest one.
  const auto expected = [&](std::vector<int32_t> tokens) {
    std::string all;
    for (size_t length = 1; length <= tokens.size(); ++length) {
      const size_t before = all.size();
      all += text_of(tokens[length - 1]);
      if (static_cast<int32_t>(length) <= settings.rule.min_tokens) continue;
      size_t first = std::string::npos;
      for (const std::string& stop : settings.stop)
        for (size_t at = all.find(stop); at != std::string::npos; at = all.find(stop, at + 1))
          if (at + stop.size() > before) first = std::min(first, at);
      if (first == std::string::npos) continue;
      tokens.resize(length);
      return std::pair(tokens, std::optional(static_cast<int64_t>(first)));
    }
    return std::pair(tokens, std::optional<int64_t>());
  };
  for (const int64_t stages : {1, 3})
    for (const int64_t pages : {0, 18})
      for (const int32_t min_tokens : {0, 5}) {
        settings.stages = stages;
        settings.page = 4;
        settings.pages = pages;
        settings.rule.min_tokens = min_tokens;
        int64_t stopped = 0;
        for (const auto& [sample, own] : generate("tiny-moe", prompts, settings)) {
          SCOPED_TRACE(testing::Message() << "sample " << sample << ", " << stages << " stages, " << pages << " pages");
          const auto [tokens, text_bytes] = expected(tokens_of(free, sample));
          EXPECT_EQ(own.token_ids, tokens);
          EXPECT_EQ(own.text_bytes, text_bytes);
          EXPECT_EQ(own.reason, text_bytes ? FinishReason::kStop : FinishReason::kLength);
          stopped += text_bytes ? 1 : 0;
        }
        EXPECT_GE(stopped, min_tokens == 0 ? 3 : 2);
      }
}

// Several draws from one prompt: one completion, whose choices are those of their seeds alone.
TEST(GenerationTest, ChoicesAreOneCompletion) {
  const int64_t vocab = ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab;
  Samples prompts = ragged_prompts(vocab);
  for (int64_t sample = 0; sample < prompts.count(); ++sample)
    prompts.rules.push_back({.form = LineForm::kPrompt, .choices = static_cast<int32_t>(1 + sample % 4)});
  Settings settings{.slots = 9,
                    .page = 4,
                    .max_new = 20,
                    .rule = {.temperature = 1.5f, .seed = 5, .frequency_penalty = 0.5f},
                    .eos_tokens = {3, 9, 17}};
  std::vector<std::map<int64_t, Completion>> alone;  // by choice
  for (int32_t choice = 0; choice < 4; ++choice) {
    Samples single = ragged_prompts(vocab);
    for (int64_t sample = 0; sample < single.count(); ++sample)
      single.rules.push_back({.form = LineForm::kPrompt, .seed = seed_of_choice(5, choice)});
    alone.push_back(generate("tiny-moe", single, settings));
  }
  for (const int64_t stages : {1, 3})
    for (const int64_t pages : {0, 18}) {
      settings.stages = stages;
      settings.pages = pages;
      for (const auto& [sample, completion] : generate("tiny-moe", prompts, settings)) {
        std::vector<Completion> choices = completion.others;
        choices.insert(choices.begin(), completion);
        ASSERT_EQ(static_cast<int64_t>(choices.size()), 1 + sample % 4);
        for (size_t choice = 0; choice < choices.size(); ++choice) {
          EXPECT_EQ(choices[choice].sample, sample);
          EXPECT_EQ(choices[choice].choice, static_cast<int32_t>(choice));
          EXPECT_EQ(choices[choice].token_ids, tokens_of(alone[choice], sample)) << sample << ", " << choice;
          EXPECT_EQ(choices[choice].log_probs, alone[choice].at(sample).log_probs);
        }
      }
    }
  EXPECT_NE(tokens_of(alone[0], 3), tokens_of(alone[1], 3));
}

// With fewer pages than the sequences come to need, some give theirs back and are computed again.
TEST(GenerationTest, ASequenceThatGaveItsPagesBackHasTheSameBits) {
  const Samples prompts = ragged_prompts(ShardSet::open(golden_shards("tiny-moe", 4)).config().vocab);
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    Settings settings{.slots = 9,
                      .page = 4,
                      .max_new = 20,
                      .rule = {.temperature = 1.5f, .top_k = 20, .top_p = 0.9f, .seed = 5},
                      .eos_tokens = {3, 9},
                      .top_k = 2,
                      .compute = compute};
    const auto roomy = generate("tiny-moe", prompts, settings);
    for (const int64_t stages : {1, 3})
      for (const int64_t pages : {15, 18, 25}) {  // the longest sequence alone takes 15
        SCOPED_TRACE(testing::Message() << stages << " stages, " << pages << " pages");
        settings.stages = stages;
        settings.pages = pages;
        int64_t preemptions = 0;
        const auto found = generate("tiny-moe", prompts, settings, &preemptions);
        EXPECT_GT(preemptions, 0);
        expect_same(found, roomy);
      }
  }
}

TEST(GenerationTest, AStageThatNeverHearsEndsWithItsName) {
  LoadedStage loaded("tiny-moe", {4, 4}, DType::kF32);
  LocalLink silent;
  LocalChannel channel(&silent, nullptr);
  LocalControlHub hub(2);
  LocalControlLink control(hub, 1);
  const GenerationPlan plan{.longest = 8,
                            .limits = {.steps_in_flight = 2,
                                       .max_sequences = 1,
                                       .prompt_tokens = 8,
                                       .caches = {.slots = 1, .pages = 1, .page = 16}}};
  LocalBoard board(2);
  Watchdog silent_one = board.watchdog(0, 0.4), watchdog = board.watchdog(1, 0.4);
  Generator generator({loaded.backend, loaded.stage, &channel, &control, 1, 2, watchdog}, plan, DType::kF32);
  try {
    generator.run(nullptr, {}, [](int64_t) {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kLost);
    EXPECT_NE(std::string(error.what())
                  .find("rank 0 starts and does not come out of it; rank 1 waits for rank 0 to announce step 0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lfm2::test
