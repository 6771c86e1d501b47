// The schedule of a generation without devices: a model that answers by rule stands for the pipeline.
#include "stage/generation/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "stage/io/sample_requests.h"
#include "stage/pipeline/step.h"
#include "support/live_requests.h"

namespace lfm2::test {
namespace {

Samples prompts_of(const std::vector<int64_t>& lengths) {
  Samples samples{.ids = {}, .offsets = {0}};
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) samples.ids.push_back(static_cast<int32_t>(samples.ids.size()));
    samples.offsets.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  return samples;
}

// The token that follows `text` of sample `sample`, and whether it ends the sample.
int32_t next_token(int64_t sample, int64_t place) { return static_cast<int32_t>(1000000 + sample * 1000 + place); }

// Every third request has a rule that counts its tokens.
struct SomeCount : SampleRequests {
  using SampleRequests::SampleRequests;
  std::optional<Request> next() override {
    std::optional<Request> request = SampleRequests::next();
    if (request && request->sample % 3 == 2) request->rule.presence_penalty = 1;
    return request;
  }
};

// Runs a whole job; checks every step on the way; returns the tokens of each sample.
struct Simulation {
  Simulation(const Samples& job, int64_t max_new, ScheduleLimits schedule_limits,
             std::function<bool(int64_t sample, int64_t place)> stops)
      : samples(job), limits(schedule_limits), ends_early(std::move(stops)), new_tokens(max_new) {}

  void run() {
    SomeCount requests(samples, {0, samples.count()}, Request{.max_new = new_tokens}, 1 << 20);
    run(requests);
    if (testing::Test::HasFatalFailure()) return;
    for (int64_t sample = 0; sample < samples.count(); ++sample) {
      const auto length = static_cast<int64_t>(texts[sample].size());
      ASSERT_GT(length, 0) << sample;
      EXPECT_TRUE(length == new_tokens || ends_early(sample, length - 1)) << sample;
    }
  }

  void run(RequestSource& requests) {
    Scheduler scheduler(requests, limits);
    SequenceTable table(limits.caches);
    StepArrays arrays;
    std::deque<StepArrays> in_flight;
    while (true) {
      while (auto scheduled = scheduler.next()) {
        ASSERT_EQ(from_words<Step>(to_words(scheduled->step)), scheduled->step);
        table.apply(scheduled->step, 1 << 12, arrays);
        if (scheduled->step.entries.empty()) continue;
        ASSERT_NO_FATAL_FAILURE(check(*scheduled, arrays, table, in_flight.empty() ? nullptr : &in_flight.back()));
        in_flight.push_back(arrays);
        ++steps;
        ASSERT_LE(std::ssize(in_flight), limits.steps_in_flight + (limits.runs_ahead() ? 1 : 0));
      }
      if (in_flight.empty() && scheduler.finished()) break;
      if (in_flight.empty()) continue;  // nothing to do until requests come
      std::vector<DrawnToken> tokens;
      const StepArrays& oldest = in_flight.front();
      for (size_t i = 0; i < oldest.draw_slots.size(); ++i) {
        const int64_t sample = oldest.draws[2 * i], place = oldest.draws[2 * i + 1];
        std::vector<int32_t>& text = texts[sample];
        if (ended.contains(sample)) {  // fed once too often
          ++dropped;
          tokens.emplace_back();
          continue;
        }
        ASSERT_EQ(place, static_cast<int64_t>(text.size()));
        text.push_back(next_token(sample, place));
        DrawnToken& token = tokens.emplace_back(DrawnToken{.token = text.back()});
        if (place + 1 < new_tokens && !ends_early(sample, place)) continue;
        token.ends = FinishReason::kStop;
        ended.insert(sample);
      }
      in_flight.pop_front();
      scheduler.on_tokens(std::move(tokens));
    }
    preemptions = scheduler.counts().preemptions;
    EXPECT_EQ(table.used_slots(), 0);
    EXPECT_EQ(table.free_pages(), limits.caches.pages);
    EXPECT_EQ(scheduler.pages().available(), limits.caches.pages);
  }

  // `before`: the step in flight before this one.
  void check(const ScheduledStep& scheduled, const StepArrays& step, const SequenceTable& table,
             const StepArrays* before) {
    ASSERT_LE(step.sequences(), limits.max_sequences);
    ASSERT_EQ(static_cast<int64_t>(scheduled.ids.size()), step.tokens);
    int64_t of_prompts = 0;
    std::set<int32_t> slots, pages;
    for (const Admission& one : scheduled.step.admitted) {  // for the first time, or from its start again
      next_position[one.request.sample] = 0;
      state_row.erase(one.request.sample);
      ASSERT_EQ(one.num_tokens, one.prompt + static_cast<int64_t>(texts[one.request.sample].size()));
    }
    for (int64_t s = 0; s < step.sequences(); ++s) {
      const StepEntry& entry = scheduled.step.entries[static_cast<size_t>(s)];
      ASSERT_TRUE(slots.insert(entry.slot).second) << "a sequence twice in a step";
      const CachedSequence& sequence = table.sequence(entry.slot);
      for (const int32_t page : sequence.pages) ASSERT_TRUE(pages.insert(page).second) << "a page twice";
      if (s < step.singles) {
        ASSERT_EQ(entry.count, 1);
      }
      for (int64_t t = step.offsets[static_cast<size_t>(s)]; t < step.offsets[static_cast<size_t>(s) + 1]; ++t) {
        const int64_t position = step.positions[static_cast<size_t>(t)];
        const int32_t id = scheduled.ids[static_cast<size_t>(t)];
        ASSERT_EQ(position, next_position[sequence.request.sample]++);
        ASSERT_EQ(step.sequence_of[static_cast<size_t>(t)], s);
        if (position < sequence.num_tokens) ++of_prompts;
        if (position < sequence.prompt) {
          ASSERT_EQ(id, samples.offsets[sequence.request.sample] + position);
        } else if (id < 0) {
          ASSERT_TRUE(limits.runs_ahead() && before != nullptr);
          const size_t draw = 2 * static_cast<size_t>(-1 - id);
          ASSERT_LT(draw, before->draws.size());
          ASSERT_EQ(before->draws[draw], sequence.request.sample);
          ASSERT_EQ(before->draws[draw + 1], position - sequence.prompt);
          ++ahead;
        } else {
          ASSERT_EQ(id, next_token(sequence.request.sample, position - sequence.prompt));
        }
      }
      // What the step before wrote, this one reads.
      const int32_t reads = step.states[2 * static_cast<size_t>(s)],
                    writes = step.states[2 * static_cast<size_t>(s) + 1];
      ASSERT_NE(reads, writes);
      if (state_row.contains(sequence.request.sample)) {
        ASSERT_EQ(state_row[sequence.request.sample], reads);
      }
      state_row[sequence.request.sample] = writes;
    }
    ASSERT_LE(of_prompts, limits.prompt_tokens);
    ASSERT_NO_FATAL_FAILURE(check_counted(scheduled, step, table));
    largest = std::max(largest, step.sequences());
  }

  // The tokens of sequences whose rules count them come with the step, whoever holds the first stage.
  static void check_counted(const ScheduledStep& scheduled, const StepArrays& step, const SequenceTable& table) {
    ASSERT_EQ(static_cast<int64_t>(step.keepers.size()), 2 * step.sequences());
    for (size_t s = 0; s < scheduled.step.entries.size(); ++s) {
      const int32_t slot = scheduled.step.entries[s].slot;
      const CachedSequence& sequence = table.sequence(slot);
      ASSERT_EQ(step.keepers[2 * s], sequence.request.rule.counts() ? slot : -1);
      ASSERT_EQ(step.keepers[2 * s + 1], sequence.prompt);
      if (!sequence.request.rule.counts()) continue;
      for (auto t = static_cast<size_t>(step.offsets[s]); t < static_cast<size_t>(step.offsets[s + 1]); ++t)
        ASSERT_EQ(step.counted[t], scheduled.ids[t]);
    }
  }

  const Samples& samples;
  ScheduleLimits limits;
  std::function<bool(int64_t, int64_t)> ends_early;
  int64_t new_tokens;
  std::map<int64_t, std::vector<int32_t>> texts;
  std::map<int64_t, int64_t> next_position;
  std::map<int64_t, int32_t> state_row;
  std::set<int64_t> ended;
  int64_t steps = 0, largest = 0, preemptions = 0;
  int64_t ahead = 0, dropped = 0;  // tokens fed before they came back, and tokens drawn behind an end
};

ScheduleLimits limits_of(int64_t stages, int64_t slots, int64_t page, int64_t pages, int64_t prompt_tokens) {
  return {.steps_in_flight = stages,
          .max_sequences = (slots + stages - 1) / stages,
          .prompt_tokens = prompt_tokens,
          .caches = {.slots = slots, .pages = pages, .page_size = page}};
}

const auto kNever = [](int64_t, int64_t) { return false; };

TEST(SchedulerTest, OneSequenceIsOneTokenAStep) {
  const Samples samples = prompts_of({5});
  Simulation simulation(samples, 7, limits_of(4, 1, 16, 1, 1024), kNever);
  simulation.run();
  EXPECT_EQ(simulation.steps, 7);
}

TEST(SchedulerTest, FullStepsShareTheSequencesEqually) {
  const Samples samples = prompts_of(std::vector<int64_t>(64, 8));
  Simulation simulation(samples, 10, limits_of(4, 64, 16, 128, 1024), kNever);
  simulation.run();
  EXPECT_EQ(simulation.largest, 16);
  EXPECT_EQ(simulation.steps, 4 * 10);
}

// Where there are just enough pages for all sequences, none waits for those that others will not need.
TEST(SchedulerTest, PagesForAllLetAllRun) {
  const Samples samples = prompts_of(std::vector<int64_t>(64, 8));
  for (const auto& [page, pages] : {std::pair(17, 64), std::pair(32, 64), std::pair(8, 64 * 3)}) {
    Simulation simulation(samples, 10, limits_of(4, 64, page, pages, 1024), kNever);
    simulation.run();
    EXPECT_EQ(simulation.largest, 16) << page;
    EXPECT_EQ(simulation.steps, 4 * 10) << page;
    EXPECT_EQ(simulation.preemptions, 0) << page;
  }
}

TEST(SchedulerTest, ALongPromptFollowsItselfThroughThePipeline) {
  const Samples samples = prompts_of({1000});
  Simulation simulation(samples, 2, limits_of(4, 1, 16, 63, 100), kNever);
  simulation.run();
  EXPECT_EQ(simulation.steps, 10 + 1);
}

TEST(SchedulerTest, EndedSequencesMakeRoomForWaitingOnes) {
  const Samples samples = prompts_of(std::vector<int64_t>(100, 3));
  const auto early = [](int64_t sample, int64_t place) { return place == sample % 5; };
  Simulation simulation(samples, 20, limits_of(3, 6, 4, 6 * 6, 8), early);
  simulation.run();
  EXPECT_EQ(simulation.largest, 2);
}

TEST(SchedulerTest, PagesAreTheLimitToo) {
  const Samples samples = prompts_of({30, 30, 30, 1, 1});
  Simulation simulation(samples, 2, limits_of(2, 8, 1, 40, 64), kNever);  // one of the long ones at a time
  simulation.run();
}

TEST(SchedulerTest, RandomJobs) {
  std::mt19937 random(7);
  int64_t preemptions = 0, ahead = 0, dropped = 0;
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int job = 0; job < 200; ++job) {
    SCOPED_TRACE(job);
    std::vector<int64_t> lengths(static_cast<size_t>(between(1, 40)));
    int64_t longest = 0;
    for (int64_t& length : lengths) longest = std::max(longest, length = between(1, 50));
    const int64_t page = between(1, 20), max_new = between(1, 30), slots = between(1, 12);
    const int64_t pages = pages_for(longest + max_new, page) * between(1, slots);
    const Samples samples = prompts_of(lengths);
    const auto salt = between(1, 1000);
    Simulation simulation(samples, max_new, limits_of(between(1, 5), slots, page, pages, between(1, 60)),
                          [salt](int64_t sample, int64_t place) { return (sample * 31 + place * salt) % 17 == 0; });
    simulation.run();
    if (HasFatalFailure()) return;
    preemptions += simulation.preemptions;
    ahead += simulation.ahead;
    dropped += simulation.dropped;
  }
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(ahead, 1000);
  EXPECT_GT(dropped, 20);
}

TEST(SchedulerTest, TheYoungestSequenceGivesItsPagesBack) {
  const Samples samples = prompts_of({4, 4, 4});
  Simulation simulation(samples, 9, limits_of(1, 3, 4, 5, 64), kNever);  // the longest takes three pages
  simulation.run();
  EXPECT_GE(simulation.preemptions, 1);
}

TEST(SchedulerTest, RequestsComeAndAreCancelled) {
  std::mt19937 random(11);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t gone = 0, whole = 0;
  for (int job = 0; job < 200; ++job) {
    SCOPED_TRACE(job);
    std::vector<int64_t> lengths(static_cast<size_t>(between(1, 30))), comes(lengths.size()), leaves(lengths.size());
    for (int64_t& length : lengths) length = between(1, 30);
    for (int64_t& look : comes) look = between(0, 60);
    std::sort(comes.begin(), comes.end());
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i] = between(0, 2) == 0 ? comes[i] + between(0, 30) : -1;
    const int64_t page = between(1, 8), max_new = between(1, 30), slots = between(1, 10), stages = between(1, 4);
    const Samples samples = prompts_of(lengths);
    std::vector<Request> each;
    SampleRequests all(samples, {0, samples.count()}, Request{.max_new = max_new}, 1 << 20);
    while (auto request = all.next()) each.push_back(*request);
    LiveRequests requests(each, comes, leaves);
    Simulation simulation(
        samples, max_new,
        limits_of(stages, slots, page, pages_for(30 + max_new, page) * between(1, slots), between(1, 60)), kNever);
    simulation.run(requests);
    if (HasFatalFailure()) return;
    for (int32_t sample = 0; sample < samples.count(); ++sample) {
      const std::vector<int32_t>& text = simulation.texts[sample];
      const bool cancelled = requests.gone.contains(sample);
      if (!cancelled) {
        EXPECT_EQ(static_cast<int64_t>(text.size()), max_new) << sample;
        std::vector<int32_t> told;
        for (const DrawnToken& token : requests.told[sample]) told.push_back(token.token);
        EXPECT_EQ(told, text);
      }
      (cancelled && static_cast<int64_t>(text.size()) < max_new ? gone : whole) += 1;
    }
  }
  EXPECT_GT(gone, 100);
  EXPECT_GT(whole, 1000);
}

}  // namespace
}  // namespace lfm2::test
