// The scheduler with drafts, without devices: pages and states remember the text that was written to them. Whatever the
// drafters guess, every row must find there the text before it, count its tokens, and the texts must be those of plain
// decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "stage/generation/ngram_drafter.h"
#include "stage/generation/scheduler.h"
#include "support/live_requests.h"

namespace lfm2::test {
namespace {

using Tokens = std::vector<int32_t>;

// A number for a text, from that of the text without its last token. No text has 0, which is what was never written.
uint64_t with_token(uint64_t text, int32_t token) {
  return (text ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
}
uint64_t number_of(std::span<const int32_t> tokens) {
  uint64_t text = 1;
  for (const int32_t token : tokens) text = with_token(text, token);
  return text;
}
constexpr int32_t kLetters = 5;
// The model. The newest three tokens decide most of its draws, so that texts repeat themselves.
int32_t drawn_after(std::span<const int32_t> tokens) {
  const uint64_t all = number_of(tokens);
  const uint64_t some = number_of(tokens.last(std::min<size_t>(3, tokens.size())));
  return static_cast<int32_t>(((all >> 50) % 6 == 0 ? all : some) >> 33) % kLetters;
}
bool ends_text(std::span<const int32_t> tokens) { return (number_of(tokens) >> 40) % 41 == 0; }

Tokens plain_text(const Request& request) {
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

DrafterFactory drafters_of(std::vector<Guess> kinds) {
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
    Scheduler scheduler(source, limits, drafters);
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

TEST(DraftScheduleTest, RightDraftsAreAllAccepted) {
  for (const int64_t stages : {1, 3})
    for (const int64_t drafts : {1, 2, 4, 9}) {
      const DraftSimulation simulation = one_text(Guess::kRight, drafts, stages);
      // The first token follows the prompt; then each step brings one token more than its drafts.
      EXPECT_EQ(simulation.steps, 1 + (39 + drafts) / (drafts + 1)) << drafts;
      EXPECT_EQ(std::reduce(simulation.counts.accepted.begin(), simulation.counts.accepted.end()),
                simulation.counts.draft_tokens);
      EXPECT_EQ(simulation.counts.draft_tokens, 40 - simulation.steps);
    }
}

TEST(DraftScheduleTest, WrongDraftsCostNoToken) {
  for (const Guess kind : {Guess::kWrong, Guess::kLate, Guess::kRandom, Guess::kWrongLater})
    for (const int64_t drafts : {1, 2, 4, 9}) one_text(kind, drafts, 1);
  const DraftSimulation wrong = one_text(Guess::kWrong, 4, 1);
  EXPECT_EQ(wrong.steps, 40);
  EXPECT_EQ(wrong.counts.draft_rounds, 38);  // neither the step of the prompt nor the last one has drafts
  EXPECT_EQ(std::reduce(wrong.counts.accepted.begin(), wrong.counts.accepted.end()), 0);
}

// A text without repetitions is not held up: its sequence runs ahead.
TEST(DraftScheduleTest, NoMatchRunsAhead) {
  DraftSimulation simulation{draft_limits(1, 1, 4, 30, 4), {}, [](const Request&, int64_t) {
                               struct Silent : Drafter {
                                 Tokens propose(std::span<const int32_t>, int64_t) override { return {}; }
                                 bool may_propose(std::span<const int32_t>, int64_t) override { return false; }
                               };
                               return std::make_unique<Silent>();
                             }};
  simulation.requests.push_back(draft_request(0, {1, 2}, 20));
  LiveRequests source(simulation.requests, {0}, {-1});
  simulation.run(source);
  EXPECT_GT(simulation.ahead, 0);
}

// With fewer sequences than stages, drafts follow their tokens through the stages that would idle.
TEST(DraftScheduleTest, DraftsAreStreamedThroughIdleStages) {
  for (const int64_t stages : {2, 3, 4})
    for (const Guess guess : {Guess::kRight, Guess::kWrong, Guess::kLate, Guess::kRandom, Guess::kWrongLater}) {
      DraftSimulation simulation{draft_limits(stages, 1, 4, 30, 3), {}, drafters_of({guess})};
      simulation.limits.streams_drafts = true;
      simulation.requests.push_back(draft_request(0, {1, 2}, 40));
      LiveRequests source(simulation.requests, {0}, {-1});
      simulation.run(source);
      EXPECT_GT(simulation.streamed, 0);
      const auto tokens = std::ssize(simulation.texts[0]) - 2;
      if (guess == Guess::kRight) {  // each step draws a token, and its draft follows it, unless the text has ended
        EXPECT_EQ(simulation.counts.accepted_tokens(), tokens - 1);
        EXPECT_LE(simulation.steps, tokens + stages - 1);
      }
      if (guess == Guess::kWrong) {
        EXPECT_EQ(simulation.counts.accepted_tokens(), 0);
      }
    }
}

// Drafts take no page that another sequence needs.
TEST(DraftScheduleTest, DraftsPreemptNothing) {
  for (const bool drafts : {false, true}) {
    DraftSimulation simulation{draft_limits(1, 3, 2, 3 * 12, 5), {}, {}};
    if (drafts) simulation.drafters = drafters_of({Guess::kWrong});
    for (int32_t sample = 0; sample < 3; ++sample)
      simulation.requests.push_back(draft_request(sample, {sample, 1}, 22));
    LiveRequests source(simulation.requests, {0, 0, 0}, {-1, -1, -1});
    simulation.run(source);
    EXPECT_EQ(simulation.counts.preemptions, 0);
  }
}

// Conversations and prompts that begin alike come, go and are cancelled, with few pages and drafters of all kinds.
TEST(DraftScheduleTest, RandomConversations) {
  std::mt19937 random(17);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  SchedulerCounts sum;
  int64_t ahead = 0, streamed = 0, accepted = 0, gone = 0;
  for (int job = 0; job < 150; ++job) {
    SCOPED_TRACE(job);
    DraftSimulation simulation{{}, {}, drafters_of({Guess::kRandom, Guess::kRight, Guess::kWrongLater, Guess::kLate})};
    if (job % 3 == 0) simulation.drafters = drafters_of({Guess::kRandom, Guess::kNone, Guess::kWrong});
    std::vector<Request>& requests = simulation.requests;
    std::vector<int64_t> comes, leaves;
    int64_t longest = 0;
    const int64_t count = between(2, 30), page = between(1, 7);
    for (int32_t sample = 0; sample < count; ++sample) {
      Tokens prompt(static_cast<size_t>(between(0, 12)), static_cast<int32_t>(between(0, 1)));
      if (sample > 0 && between(0, 3) > 0) {  // the next turn of a conversation, or another end of one
        prompt = plain_text(requests[static_cast<size_t>(between(0, sample - 1))]);
        prompt.resize(std::min<size_t>(prompt.size(), static_cast<size_t>(between(1, 80))));
      }
      for (int64_t more = between(1, 6); more > 0; --more) prompt.push_back(static_cast<int32_t>(between(0, 4)));
      Request& request = requests.emplace_back(draft_request(sample, prompt, between(1, 30)));
      if (between(0, 2) == 0) request.rule.repetition_penalty = 2;
      if (between(0, 9) == 0) request.prompt_log_probs = true;
      if (between(0, 9) == 0) request.draft = false;
      comes.push_back((comes.empty() ? 0 : comes.back()) + between(0, 12));
      leaves.push_back(between(0, 4) == 0 ? comes.back() + between(0, 30) : -1);
      longest = std::max(longest, std::ssize(prompt) + request.max_new);
    }
    const int64_t slots = between(1, 8), drafts = between(1, 9);
    LiveRequests source(requests, comes, leaves);
    simulation.limits =
        draft_limits(between(1, 4), slots, page, pages_for(longest, page) * between(2, 2 + slots) / 2, drafts);
    simulation.limits.draft_rows = between(1, simulation.limits.draft_rows);
    simulation.limits.fixed_drafts = job % 2 == 0;
    simulation.limits.streams_drafts = job % 4 < 3;
    simulation.limits.caches.keeps_prefixes = job % 5 != 4;
    simulation.run(source);
    if (HasFailure()) return;
    sum.preemptions += simulation.counts.preemptions;
    sum.draft_rounds += simulation.counts.draft_rounds;
    sum.draft_tokens += simulation.counts.draft_tokens;
    accepted += std::reduce(simulation.counts.accepted.begin(), simulation.counts.accepted.end());
    ahead += simulation.ahead;
    streamed += simulation.streamed;
    gone += std::ssize(source.gone);
  }
  EXPECT_GT(sum.preemptions, 50);
  EXPECT_GT(sum.draft_rounds, 3000);
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(sum.draft_tokens - accepted, 2000);
  EXPECT_GT(ahead, 100);
  EXPECT_GT(streamed, 500);
  EXPECT_GT(gone, 100);
}

// A chosen number of drafts follows their success, and drafts that do not pay stop, but for a try now and then.
TEST(DraftScheduleTest, TheNumberOfDraftsIsChosenBySuccess) {
  DraftLength length(9, false);
  for (int i = 0; i < 40; ++i) length.on_verified(length.limit(), length.limit());
  EXPECT_EQ(length.limit(), 9);
  for (int i = 0; i < 40; ++i) length.on_verified(std::max<int64_t>(1, length.limit()), 0);
  EXPECT_EQ(length.limit(), 0);
  int64_t tries = 0;
  for (int i = 0; i < 640; ++i) {
    length.on_step();
    if (length.limit() == 0) continue;
    EXPECT_EQ(length.limit(), 1);
    length.on_verified(1, 0);
    ++tries;
  }
  EXPECT_EQ(tries, 10);
  for (int i = 0; i < 200; ++i) length.on_verified(2, 1);  // half of them
  EXPECT_EQ(length.limit(), 1);
  EXPECT_EQ(DraftLength(5, true).limit(), 5);
}

// The longest suffix that ends earlier, as a search finds it; drafts are what followed there.
TEST(NgramDrafterTest, FindsTheLongestMatch) {
  std::mt19937 random(3);
  for (int text = 0; text < 60; ++text) {
    const auto letters = static_cast<uint32_t>(1 + text % 6);
    NgramDrafter drafter;
    Tokens tokens;
    for (int length = 1; length < 120; ++length) {
      const bool copies = tokens.size() > 20 && random() % 3 == 0;
      tokens.push_back(copies ? tokens[tokens.size() - 17] : static_cast<int32_t>(random() % letters));
      const auto ends_at = [&](size_t end, size_t match) {
        return match <= end && std::equal(tokens.end() - static_cast<std::ptrdiff_t>(match), tokens.end(),
                                          tokens.begin() + static_cast<std::ptrdiff_t>(end - match));
      };
      size_t longest = 0;
      for (size_t end = 0; end < tokens.size(); ++end)
        while (ends_at(end, longest + 1)) ++longest;
      const Tokens drafts = drafter.propose(tokens, 6);
      ASSERT_EQ(drafter.match(), std::ssize(Tokens(longest)));
      EXPECT_EQ(drafter.may_propose(tokens, 1), longest + 1 >= 3);
      if (longest < 3) {
        EXPECT_TRUE(drafts.empty());
        continue;
      }
      bool found = false;
      for (size_t end = longest; end < tokens.size() && !found; ++end) {
        if (!ends_at(end, longest)) continue;
        Tokens follows = tokens;
        for (size_t i = 0; i < 6; ++i) follows.push_back(follows[end + i]);
        found = Tokens(follows.end() - 6, follows.end()) == drafts;
      }
      EXPECT_TRUE(found) << "drafts that followed no such match";
    }
  }
}

}  // namespace
}  // namespace lfm2::test
