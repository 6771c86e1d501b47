// The schedule of a generation without devices: a model that answers by rule stands for the pipeline.
#include "stage/generation/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "stage/pipeline/step.h"

namespace lfm2::test {
namespace {

Samples prompts_of(const std::vector<int64_t>& lengths) {
  Samples samples{.ids = {}, .offsets = {0}, .names = {}};
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) samples.ids.push_back(static_cast<int32_t>(samples.ids.size()));
    samples.offsets.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  return samples;
}

// The token that follows `text` of sample `sample`, and whether it ends the sample.
int32_t next_token(int64_t sample, int64_t place) { return static_cast<int32_t>(1000000 + sample * 1000 + place); }

// Runs a whole job; checks every step on the way; returns the tokens of each sample.
struct Simulation {
  Simulation(const Samples& job, int64_t most_new, ScheduleLimits schedule_limits,
             std::function<bool(int64_t sample, int64_t place)> stops)
      : samples(job), limits(schedule_limits), ends_early(std::move(stops)), new_tokens(most_new) {}

  void run() {
    Scheduler scheduler(samples, {0, samples.count()}, new_tokens, 1 << 20, limits);
    SequenceTable table(limits.caches);
    StepArrays arrays;
    std::deque<StepArrays> in_flight;
    while (true) {
      while (auto scheduled = scheduler.next()) {
        ASSERT_EQ(step_from_words(to_words(scheduled->step)), scheduled->step);
        table.apply(scheduled->step, 1 << 12, arrays);
        check(*scheduled, arrays, table);
        in_flight.push_back(arrays);
        ++steps;
        ASSERT_LE(static_cast<int64_t>(in_flight.size()), limits.steps_in_flight);
      }
      if (in_flight.empty()) break;
      std::vector<DrawnToken> tokens;
      const StepArrays& oldest = in_flight.front();
      for (size_t i = 0; i < oldest.draw_slots.size(); ++i) {
        const int64_t sample = oldest.draws[2 * i], place = oldest.draws[2 * i + 1];
        std::vector<int32_t>& text = texts[sample];
        ASSERT_EQ(place, static_cast<int64_t>(text.size()));
        text.push_back(next_token(sample, place));
        tokens.push_back({text.back(), place + 1 == new_tokens || ends_early(sample, place)});
      }
      in_flight.pop_front();
      scheduler.take(tokens);
    }
    EXPECT_TRUE(scheduler.finished());
    for (int64_t sample = 0; sample < samples.count(); ++sample) {
      const auto length = static_cast<int64_t>(texts[sample].size());
      ASSERT_GT(length, 0) << sample;
      EXPECT_TRUE(length == new_tokens || ends_early(sample, length - 1)) << sample;
    }
  }

  void check(const ScheduledStep& scheduled, const StepArrays& step, const SequenceTable& table) {
    ASSERT_LE(step.sequences(), limits.most_sequences);
    ASSERT_EQ(static_cast<int64_t>(scheduled.ids.size()), step.tokens);
    int64_t of_prompts = 0;
    std::set<int32_t> slots, pages;
    for (int64_t s = 0; s < step.sequences(); ++s) {
      const StepEntry& entry = scheduled.step.entries[static_cast<size_t>(s)];
      ASSERT_TRUE(slots.insert(entry.slot).second) << "a sequence twice in a step";
      const Sequence& sequence = table.sequence(entry.slot);
      for (const int32_t page : sequence.pages) ASSERT_TRUE(pages.insert(page).second) << "a page twice";
      if (s < step.singles) {
        ASSERT_EQ(entry.count, 1);
      }
      for (int64_t t = step.offsets[static_cast<size_t>(s)]; t < step.offsets[static_cast<size_t>(s) + 1]; ++t) {
        const int64_t position = step.positions[static_cast<size_t>(t)];
        const int32_t id = scheduled.ids[static_cast<size_t>(t)];
        ASSERT_EQ(position, next_position[sequence.sample]++);
        ASSERT_EQ(step.sequence_of[static_cast<size_t>(t)], s);
        if (position < sequence.prompt) {
          ++of_prompts;
          ASSERT_EQ(id, samples.offsets[sequence.sample] + position);
        } else {
          ASSERT_EQ(id, next_token(sequence.sample, position - sequence.prompt));
        }
      }
      // What the step before wrote, this one reads.
      const int32_t reads = step.states[2 * static_cast<size_t>(s)],
                    writes = step.states[2 * static_cast<size_t>(s) + 1];
      ASSERT_NE(reads, writes);
      if (state_row.contains(sequence.sample)) {
        ASSERT_EQ(state_row[sequence.sample], reads);
      }
      state_row[sequence.sample] = writes;
    }
    ASSERT_LE(of_prompts, limits.prompt_tokens);
    largest = std::max(largest, step.sequences());
  }

  const Samples& samples;
  ScheduleLimits limits;
  std::function<bool(int64_t, int64_t)> ends_early;
  int64_t new_tokens;
  std::map<int64_t, std::vector<int32_t>> texts;
  std::map<int64_t, int64_t> next_position;
  std::map<int64_t, int32_t> state_row;
  int64_t steps = 0, largest = 0;
};

ScheduleLimits limits_of(int64_t stages, int64_t slots, int64_t page, int64_t pages, int64_t prompt_tokens) {
  return {.steps_in_flight = stages,
          .most_sequences = (slots + stages - 1) / stages,
          .prompt_tokens = prompt_tokens,
          .caches = {.slots = slots, .pages = pages, .page = page}};
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
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int job = 0; job < 200; ++job) {
    SCOPED_TRACE(job);
    std::vector<int64_t> lengths(static_cast<size_t>(between(1, 40)));
    int64_t longest = 0;
    for (int64_t& length : lengths) longest = std::max(longest, length = between(1, 50));
    const int64_t page = between(1, 20), most_new = between(1, 30), slots = between(1, 12);
    const int64_t pages = pages_for(longest + most_new, page) * between(1, slots);
    const Samples samples = prompts_of(lengths);
    const auto salt = between(1, 1000);
    Simulation simulation(samples, most_new, limits_of(between(1, 5), slots, page, pages, between(1, 60)),
                          [salt](int64_t sample, int64_t place) { return (sample * 31 + place * salt) % 17 == 0; });
    simulation.run();
    if (HasFatalFailure()) return;
  }
}

TEST(StepTest, MessagesThatAreNone) {
  EXPECT_THROW(step_from_words({}), Error);
  EXPECT_THROW(step_from_words({0, 0, 1, 5}), Error);
  EXPECT_THROW(step_from_words({0, 0, 0, 5}), Error);
  EXPECT_TRUE(step_from_words({0, 0, 0}).last());
}

TEST(SequenceTableTest, RefusesStepsThatDoNotFit) {
  SequenceTable table({.slots = 2, .pages = 2, .page = 4});
  StepArrays arrays;
  EXPECT_THROW(table.apply({.released = {0}, .admitted = {}, .entries = {}}, 8, arrays), Error);
  EXPECT_THROW(table.apply({.released = {}, .admitted = {{0, 0, 9, 1}}, .entries = {}}, 8, arrays), Error);
  table.apply({.released = {}, .admitted = {{0, 0, 4, 1}}, .entries = {{0, 4}}}, 8, arrays);
  EXPECT_THROW(table.apply({.released = {}, .admitted = {}, .entries = {{0, 1}}}, 8, arrays), Error);
  EXPECT_THROW(table.apply({.released = {}, .admitted = {{0, 1, 1, 1}}, .entries = {}}, 8, arrays), Error);
}

}  // namespace
}  // namespace lfm2::test
