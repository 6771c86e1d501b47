// The scheduler with drafts, without devices: pages and states remember the text that was written to them. Whatever the
// drafters guess, every row must find there the text before it, count its tokens, and the texts must be those of plain
// decoding.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "stage/generation/ngram_drafter.h"
#include "stage/generation/scheduler.h"
#include "support/live_requests.h"
#include "support/text_numbers.h"

namespace lfm2::test {

inline constexpr int32_t kLetters = 5;
// The model. The newest three tokens decide most of its draws, so that texts repeat themselves.
inline int32_t drawn_after(std::span<const int32_t> tokens) {
  const uint64_t all = number_of(tokens);
  const uint64_t some = number_of(tokens.last(std::min<size_t>(3, tokens.size())));
  return static_cast<int32_t>(((all >> 50) % 6 == 0 ? all : some) >> 33) % kLetters;
}
inline bool ends_text(std::span<const int32_t> tokens) { return (number_of(tokens) >> 40) % 41 == 0; }

inline Tokens plain_text(const Request& request) {
  Tokens text = request.prompt;
  do {
    text.push_back(drawn_after(text));
  } while (std::ssize(text) - std::ssize(request.prompt) < request.max_new && !ends_text(text));
  return text;
}

enum class Guess { kRight, kWrong, kWrongLater, kLate, kRandom, kNone };

// Makes the drafts of its kind, from the model itself.
class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Guess kind, uint32_t seed) : kind_(kind), random_(seed) {}
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) override {
    Tokens text(tokens.begin(), tokens.end()), drafts;
    const auto below = [&](int64_t end) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(end)); };
    const int64_t count = kind_ == Guess::kNone ? 0 : kind_ == Guess::kRandom ? below(most + 1) : most;
    const int64_t wrong_from = kind_ == Guess::kWrong ? 0 : kind_ == Guess::kWrongLater ? below(most + 1) : most;
    while (std::ssize(drafts) < count) {
      const int32_t last = text.back();
      text.push_back(drawn_after(text));
      const bool wrong = std::ssize(drafts) >= wrong_from;
      drafts.push_back(kind_ == Guess::kLate ? last : wrong ? (text.back() + 1) % kLetters : text.back());
      if (kind_ == Guess::kRandom && below(3) == 0) drafts.back() = below(kLetters + 2) - 1;  // -1 and kLetters, too
    }
    return drafts;
  }

 private:
  Guess kind_;
  std::mt19937 random_;
};

inline DrafterFactory drafters_of(std::vector<Guess> kinds) {
  return [kinds](const Request& request, int64_t) -> std::unique_ptr<Drafter> {
    const auto sample = static_cast<size_t>(request.sample);
    if (sample % 4 == 3) return std::make_unique<NgramDrafter>();
    return std::make_unique<ModelDrafter>(kinds[sample % kinds.size()], static_cast<uint32_t>(request.sample));
  };
}

// The caches of a stage, with texts in the place of numbers.
class DraftCaches {
 public:
  explicit DraftCaches(CacheShape shape)
      : shape_(shape),
        positions_(static_cast<size_t>(shape.pages * shape.page_size)),
        states_(static_cast<size_t>(shape.first_page_row() + shape.pages)) {}

  void admit(int32_t slot, Tokens text) {
    texts_[slot] = std::move(text);
    counted_[slot].clear();
  }
  // The texts before each row that draws, after the step's rows were checked and written. Rows read what rows before
  // them in the same block write, as keys and values are appended before attention reads them.
  std::vector<Tokens> run(const ScheduledStep& scheduled, const StepArrays& step, const SequenceTable& table,
                          const PagePool& pool) {
    std::vector<Tokens> drawing;
    size_t row = 0;
    for (size_t i = 0; i < step.prefixes.keepers.size() / 2; ++i) {
      const auto begin = step.prefixes.ids.begin();
      Tokens& counted = counted_[step.prefixes.keepers[2 * i]];
      if (step.prefixes.positions[static_cast<size_t>(step.prefixes.offsets[i])] == 0) counted.clear();
      counted.insert(counted.end(), begin + step.prefixes.offsets[i], begin + step.prefixes.offsets[i + 1]);
    }
    for (const StepEntry& entry : scheduled.step.entries) {
      Tokens& text = texts_[entry.slot];
      text.resize(text.size() - static_cast<size_t>(entry.rejected));
      const uint64_t before = number_of(text);
      const auto begin = std::ssize(text);
      for (int64_t block_row = 0; block_row < entry.rows(); ++block_row, ++row) {
        const auto first = static_cast<size_t>(step.offsets[row]), end = static_cast<size_t>(step.offsets[row + 1]);
        EXPECT_EQ(step.positions[first], std::ssize(text));
        if (!step.here.empty()) {
          EXPECT_EQ(step.here[row], block_row);
        }
        if (begin > 0) {
          EXPECT_EQ(states_[static_cast<size_t>(step.states[2 * row])], before);
        }
        EXPECT_TRUE(table.sequence(entry.slot).pages.size() * static_cast<size_t>(shape_.page_size) >= text.size());
        write(step, row, entry.slot, std::span(scheduled.ids).subspan(first, end - first), table, pool);
        count(step, row, scheduled.ids, text);
        if (std::ranges::count(step.last_rows, static_cast<int32_t>(end) - 1) > 0) {
          check_counts(scheduled.ids, step, drawing.size(), table.sequence(entry.slot), entry.slot);
          drawing.push_back(text);
        }
      }
    }
    return drawing;
  }

 private:
  uint64_t& place(const std::vector<int32_t>& pages, int64_t position) {
    return positions_[static_cast<size_t>(pages[static_cast<size_t>(position / shape_.page_size)] * shape_.page_size +
                                          position % shape_.page_size)];
  }
  void write(const StepArrays& step, size_t row, int32_t slot, std::span<const int32_t> ids, const SequenceTable& table,
             const PagePool& pool) {
    const std::vector<int32_t>& pages = table.sequence(slot).pages;
    Tokens& text = texts_[slot];
    for (int64_t position = 0; position < std::ssize(text); ++position)
      EXPECT_EQ(place(pages, position), number_of(std::span(text).first(static_cast<size_t>(position) + 1)));
    for (const int32_t id : ids) {
      const auto position = std::ssize(text);
      text.push_back(id);
      const int32_t page = pages[static_cast<size_t>(position / shape_.page_size)];
      EXPECT_EQ(pool.holders(page), 1) << "a page that others have, too, is written";
      place(pages, position) = number_of(text);
      if ((position + 1) % shape_.page_size == 0 && shape_.keeps_prefixes)
        states_[static_cast<size_t>(shape_.first_page_row() + page)] = number_of(text);
    }
    EXPECT_NE(step.states[2 * row], step.states[2 * row + 1]);
    states_[static_cast<size_t>(step.states[2 * row + 1])] = number_of(text);
  }
  // The first stage counts the ids themselves, of which some are drawn by the step before.
  void count(const StepArrays& step, size_t row, const Tokens& ids, const Tokens& text) {
    const int32_t keeper = step.keepers[2 * row];
    if (keeper < 0) return;
    const int32_t first = step.offsets[row], end = step.offsets[row + 1];
    Tokens& counted = counted_[keeper];
    if (step.positions[static_cast<size_t>(first)] == 0) counted.clear();
    for (int32_t token = first; token < end; ++token) {
      const int32_t sent = step.counted[static_cast<size_t>(token)], id = ids[static_cast<size_t>(token)];
      EXPECT_TRUE(sent == id || sent < 0);
      counted.push_back(id);
    }
    EXPECT_EQ(counted, text);
  }
  // What a rule counts before a draw: the counts of its slot and the drafts of its row.
  void check_counts(const Tokens& ids, const StepArrays& step, size_t draw, const CachedSequence& sequence,
                    int32_t slot) {
    if (!sequence.request.rule.counts() || step.drafted.empty()) return;
    Tokens counted = counted_[slot];
    const int32_t first = step.drafted[2 * draw], end = step.drafted[2 * draw + 1];
    counted.insert(counted.end(), step.counted.begin() + first, step.counted.begin() + end);
    EXPECT_TRUE(std::equal(step.counted.begin() + first, step.counted.begin() + end, ids.begin() + first));
    EXPECT_EQ(counted, texts_[slot]);
  }

  CacheShape shape_;
  std::vector<uint64_t> positions_, states_;
  std::map<int32_t, Tokens> texts_, counted_;  // by sequence slot: what was fed, and what was counted
};

struct DraftSimulation {
  struct Flight {
    std::vector<int32_t> slots, next_drafts, streamed, draws;
    Tokens drawn;
  };

  // What the last stage returns of a step: see OpenCompletions.
  std::vector<DrawnToken> told_by(const Flight& flight, const SequenceTable& table) {
    std::vector<DrawnToken> tokens;
    for (size_t row = 0, end = 0; row < flight.slots.size(); row = end) {
      end = row + 1;
      while (flight.next_drafts[end - 1] >= 0) ++end;
      const int32_t sample = table.sequence(flight.slots[row]).request.sample;
      const Request& request = requests[static_cast<size_t>(sample)];
      Tokens& text = texts[sample];
      for (; row < end; ++row) {
        DrawnToken& token = tokens.emplace_back(DrawnToken{.token = flight.drawn[row]});
        const auto place = std::ssize(text) - std::ssize(request.prompt);
        const bool follows =
            flight.streamed[row] < 0 || (flight.draws[2 * row + 1] == place && text.back() == flight.streamed[row]);
        if (ended.contains(sample) || !follows) break;  // it was fed once too often, or after a wrong draft
        text.push_back(token.token);
        token.drafted = token.token == flight.next_drafts[row];
        if (place + 1 == request.max_new || ends_text(text)) {
          token.ends = FinishReason::kStop;
          ended.insert(sample);
        }
        if (token.ends || !token.drafted) break;
      }
    }
    return tokens;
  }

  void run(LiveRequests& source) {
    // Steps take any times, so all numbers of drafts are chosen.
    std::mt19937 random(3);
    double now = 0;
    Scheduler scheduler(source, limits, drafters, [&] { return now += 1e-3 * static_cast<double>(1 + random() % 4); });
    SequenceTable table(limits.caches);
    DraftCaches caches(limits.caches);
    StepArrays arrays;
    std::deque<Flight> in_flight;
    for (const Request& request : requests) texts[request.sample] = request.prompt;
    while (!testing::Test::HasFailure()) {
      while (auto scheduled = scheduler.next()) {
        ASSERT_EQ(from_words<Step>(to_words(scheduled->step)), scheduled->step);
        ASSERT_LE(std::ssize(scheduled->step.drafts), limits.draft_rows);
        table.apply(scheduled->step, 1 << 8, arrays);
        for (const Admission& one : scheduled->step.admitted) {
          const Tokens& text = texts[one.request.sample];
          caches.admit(one.slot, {text.begin(), text.begin() + one.num_cached});
        }
        if (scheduled->step.entries.empty()) continue;
        for (int32_t& id : scheduled->ids)
          if (id < 0) {
            ASSERT_TRUE(in_flight.back().next_drafts.size() == in_flight.back().drawn.size());
            id = in_flight.back().drawn[static_cast<size_t>(-1 - id)];
            ++ahead;
          }
        const std::vector<Tokens> drawing = caches.run(*scheduled, arrays, table, scheduler.pages());
        if (testing::Test::HasFailure()) return;
        ASSERT_EQ(drawing.size(), arrays.draw_slots.size());
        ++steps;
        for (const int32_t draft : arrays.streamed) streamed += draft >= 0 ? 1 : 0;
        Flight& flight =
            in_flight.emplace_back(Flight{arrays.draw_slots, arrays.next_drafts, arrays.streamed, arrays.draws, {}});
        for (size_t row = 0; row < drawing.size(); ++row) {
          flight.drawn.push_back(drawn_after(drawing[row]));
          ASSERT_EQ(arrays.draws[2 * row + 1],
                    std::ssize(drawing[row]) - table.sequence(arrays.draw_slots[row]).prompt);
        }
      }
      if (in_flight.empty() && scheduler.finished()) break;
      if (in_flight.empty()) continue;
      const Flight flight = std::move(in_flight.front());
      in_flight.pop_front();
      scheduler.on_tokens(told_by(flight, table));
    }
    EXPECT_EQ(scheduler.pages().available(), limits.caches.pages);
    EXPECT_EQ(table.free_pages(), limits.caches.pages);
    EXPECT_EQ(table.used_slots(), 0);
    counts = scheduler.counts();
    for (const Request& request : requests)
      if (!source.gone.contains(request.sample)) {
        EXPECT_EQ(texts[request.sample], plain_text(request)) << request.sample;
      }
  }

  ScheduleLimits limits;
  std::vector<Request> requests;
  DrafterFactory drafters;
  std::map<int32_t, Tokens> texts = {};  // by sample
  std::set<int32_t> ended = {};
  int64_t steps = 0, ahead = 0, streamed = 0;
  SchedulerCounts counts = {};
};

ScheduleLimits draft_limits(int64_t stages, int64_t slots, int64_t page, int64_t pages, int64_t drafts) {
  return {.steps_in_flight = stages,
          .max_sequences = (slots + stages - 1) / stages,
          .draft_rows = drafts * ((slots + stages - 1) / stages),
          .vocab = kLetters,
          .prompt_tokens = 16,
          .counted_prefixes = 24,
          .caches = {.slots = slots, .pages = pages, .page_size = page, .keeps_prefixes = true, .max_drafts = drafts}};
}

Request draft_request(int32_t sample, Tokens prompt, int64_t max_new) {
  return {.sample = sample, .prompt = std::move(prompt), .max_new = max_new};
}

DraftSimulation one_text(Guess kind, int64_t drafts, int64_t stages) {
  DraftSimulation simulation{draft_limits(stages, 1, 4, 30, drafts), {}, drafters_of({kind})};
  Tokens prompt{1, 2};
  while (std::ssize(plain_text(draft_request(0, prompt, 40))) < 42) prompt.push_back(3);  // nothing ends it
  simulation.requests.push_back(draft_request(0, prompt, 40));
  LiveRequests source(simulation.requests, {0}, {-1});
  simulation.run(source);
  return simulation;
}

}  // namespace lfm2::test
