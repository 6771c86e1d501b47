// The scheduler with a prefix cache, without devices: pages and states remember the text that was written to them, and
// every step must find there what computing its sequences from their first tokens would have left.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "stage/generation/scheduler.h"
#include "support/live_requests.h"
#include "support/text_numbers.h"

namespace lfm2::test {
namespace {

// The model: texts that begin alike may go on alike.
int32_t next_cached_token(std::span<const int32_t> tokens) { return static_cast<int32_t>(number_of(tokens) >> 33) % 5; }
bool ends(std::span<const int32_t> tokens) { return (number_of(tokens) >> 40) % 23 == 0; }

Tokens continued(const Request& request) {
  Tokens text = request.prompt;
  do {
    text.push_back(next_cached_token(text));
  } while (std::ssize(text) - std::ssize(request.prompt) < request.max_new && !ends(text));
  return text;
}

constexpr size_t kTableWidth = 1 << 8;

// The caches of a stage, with texts in the place of numbers.
class TextCaches {
 public:
  explicit TextCaches(CacheShape shape)
      : shape_(shape),
        positions_(static_cast<size_t>(shape.pages * shape.page_size)),
        in_windows_(static_cast<size_t>(shape.window_pages * shape.page_size)),
        states_(static_cast<size_t>(shape.first_page_row() + shape.pages)) {}

  // Nothing that a step reads may have been written by the step itself.
  void run(const StepArrays& step, const SequenceTable& table, const std::vector<StepEntry>& entries,
           const std::vector<int32_t>& ids, const PagePool& pool) {
    for (const bool write : {false, true})
      for (size_t s = 0; s < entries.size(); ++s) {
        const std::vector<int32_t>& pages = table.sequence(entries[s].slot).pages;
        const auto first = static_cast<size_t>(step.offsets[s]), end = static_cast<size_t>(step.offsets[s + 1]);
        const int64_t begin = step.positions[first];
        Tokens& text = texts_[entries[s].slot];
        ASSERT_EQ(std::ssize(text), begin);
        if (!write && begin > 0) {
          ASSERT_EQ(states_[static_cast<size_t>(step.states[2 * s])], number_of(text));
        }
        const auto window = std::span(step.window_table).subspan(shape_.window > 0 ? s * kTableWidth : 0);
        for (int64_t position = 0; !write && position < begin; ++position) {
          const uint64_t number = number_of(std::span(text).first(static_cast<size_t>(position) + 1));
          ASSERT_EQ(positions_[place(pages, position)], number);
          if (shape_.window > begin - position) {
            ASSERT_EQ(in_windows_[place(window, position)], number);
          }
        }
        if (!write) continue;
        for (size_t t = first; t < end; ++t) {
          const int64_t position = step.positions[t];
          text.push_back(ids[t]);
          const int32_t page = pages[static_cast<size_t>(position / shape_.page_size)];
          ASSERT_EQ(pool.holders(page), 1) << "a page that others have, too, is written";
          positions_[place(pages, position)] = number_of(text);
          if (shape_.window > 0) in_windows_[place(window, position)] = number_of(text);
          if ((position + 1) % shape_.page_size == 0)
            states_[static_cast<size_t>(shape_.first_page_row() + page)] = number_of(text);
        }
        states_[static_cast<size_t>(step.states[2 * s + 1])] = number_of(text);
      }
  }
  // The text of a sequence slot is what the admission says that the caches have.
  void admit(int32_t slot, Tokens text) { texts_[slot] = std::move(text); }
  const Tokens& text(int32_t slot) { return texts_[slot]; }

 private:
  size_t place(std::span<const int32_t> pages, int64_t position) const {
    return static_cast<size_t>(pages[static_cast<size_t>(position / shape_.page_size)] * shape_.page_size +
                               position % shape_.page_size);
  }
  CacheShape shape_;
  std::vector<uint64_t> positions_, in_windows_, states_;
  std::map<int32_t, Tokens> texts_;  // by sequence slot
};

class NotedRequests : public LiveRequests {
 public:
  using LiveRequests::LiveRequests;
  void begun(int32_t sample, int64_t tokens) override {
    EXPECT_TRUE(cached.emplace(sample, tokens).second) << "begun twice";
  }
  std::map<int32_t, int64_t> cached;
};

struct CacheSimulation {
  CacheSimulation(std::vector<Request> all, ScheduleLimits schedule_limits) : limits(schedule_limits), requests(all) {
    for (Request& request : all) texts[request.sample] = request.prompt;
  }

  void run(NotedRequests& source) {
    SequenceTable table(limits.caches);
    Scheduler scheduler(source, limits, {}, steady_seconds, table.windows());
    TextCaches caches(limits.caches);
    StepArrays arrays;
    struct Flight {
      std::vector<int32_t> slots;
      Tokens drawn;
    };
    std::deque<Flight> in_flight;
    std::set<int32_t> ended;
    while (true) {
      while (auto scheduled = scheduler.next()) {
        table.apply(from_words<Step>(to_words(scheduled->step)), kTableWidth, arrays);
        for (const Admission& one : scheduled->step.admitted) {
          const Tokens& text = texts[one.request.sample];
          ASSERT_LT(one.num_cached, one.num_tokens);
          caches.admit(one.slot, {text.begin(), text.begin() + one.num_cached});
        }
        ASSERT_NO_FATAL_FAILURE(check_counted(scheduled->step, arrays, table));
        for (int32_t& id : scheduled->ids)
          if (id < 0) id = in_flight.back().drawn[static_cast<size_t>(-1 - id)];
        ASSERT_NO_FATAL_FAILURE(caches.run(arrays, table, scheduled->step.entries, scheduled->ids, scheduler.pages()));
        ASSERT_NO_FATAL_FAILURE(check_pages(scheduler.pages(), table));
        if (scheduled->step.entries.empty()) continue;
        ++steps;
        Flight& flight = in_flight.emplace_back(Flight{.slots = arrays.draw_slots, .drawn = {}});
        for (const int32_t slot : flight.slots) flight.drawn.push_back(next_cached_token(caches.text(slot)));
      }
      if (in_flight.empty() && scheduler.finished()) break;
      if (in_flight.empty()) continue;
      std::vector<DrawnToken> tokens;
      const Flight flight = std::move(in_flight.front());
      in_flight.pop_front();
      for (size_t i = 0; i < flight.slots.size(); ++i) {
        const int32_t sample = table.sequence(flight.slots[i]).request.sample;
        DrawnToken& token = tokens.emplace_back(DrawnToken{.token = flight.drawn[i]});
        if (ended.contains(sample)) continue;  // it was fed once too often
        Tokens& text = texts[sample];
        const Tokens& fed = caches.text(flight.slots[i]);
        ASSERT_TRUE(fed.size() >= text.size() && std::equal(text.begin(), text.end(), fed.begin()));
        text.push_back(flight.drawn[i]);
        const Request& request = requests[static_cast<size_t>(sample)];
        if (std::ssize(text) < std::ssize(request.prompt) + request.max_new && !ends(text)) continue;
        token.ends = FinishReason::kStop;
        ended.insert(sample);
      }
      scheduler.on_tokens(tokens);
    }
    EXPECT_EQ(scheduler.pages().available(), limits.caches.pages);
    EXPECT_EQ(table.free_pages(), limits.caches.pages);
    EXPECT_EQ(table.used_slots(), 0);
    if (table.windows() != nullptr) {
      EXPECT_EQ(table.windows()->held(), 0);
    }
    preemptions = scheduler.counts().preemptions;
    for (const Request& request : requests) {
      if (!source.gone.contains(request.sample)) {
        EXPECT_EQ(texts[request.sample], continued(request)) << request.sample;
      }
      cached += source.cached[request.sample];
    }
  }

  // The first stage's pages are those that the sequences of all stages have: none is lost, and none held twice.
  void check_pages(const PagePool& pool, const SequenceTable& table) const {
    std::vector<int64_t> holders(static_cast<size_t>(limits.caches.pages));
    int64_t free = limits.caches.pages;
    for (int32_t slot = 0; slot < limits.caches.slots; ++slot)
      for (const int32_t page : table.sequence(slot).pages) free -= holders[static_cast<size_t>(page)]++ == 0 ? 1 : 0;
    ASSERT_EQ(pool.available(), free);
    ASSERT_EQ(table.free_pages(), free);
    for (int32_t page = 0; page < limits.caches.pages; ++page)
      ASSERT_EQ(pool.holders(page), holders[static_cast<size_t>(page)]) << page;
  }

  // What a rule counts is the whole text, whatever of it was in the cache.
  void check_counted(const Step& step, const StepArrays& arrays, const SequenceTable& table) {
    const std::vector<int32_t>&ids = arrays.prefixes.ids, &positions = arrays.prefixes.positions,
          &offsets = arrays.prefixes.offsets, &keepers = arrays.prefixes.keepers;
    size_t prefix = 0;
    for (const Admission& one : step.admitted) {
      if (one.num_cached == 0 || !one.request.rule.counts()) continue;
      ASSERT_EQ(keepers[2 * prefix], one.slot);
      ASSERT_EQ(keepers[2 * prefix + 1], one.prompt);
      const auto begin = ids.begin() + offsets[prefix], end = ids.begin() + offsets[prefix + 1];
      const Tokens& text = texts[table.sequence(one.slot).request.sample];
      ASSERT_EQ(Tokens(begin, end), Tokens(text.begin(), text.begin() + one.num_cached));
      for (int32_t i = 0; i < one.num_cached; ++i) ASSERT_EQ(positions[static_cast<size_t>(offsets[prefix] + i)], i);
      ++prefix;
      ++counted;
    }
    ASSERT_EQ(keepers.size(), 2 * prefix);
    if (prefix > 1) {
      ASSERT_LE(std::ssize(ids), limits.counted_prefixes);
    }
  }

  ScheduleLimits limits;
  std::vector<Request> requests;
  std::map<int32_t, Tokens> texts;  // by sample
  int64_t steps = 0, preemptions = 0, cached = 0, counted = 0;
};

ScheduleLimits cache_limits_of(int64_t stages, int64_t slots, int64_t page, int64_t pages, int64_t prompt_tokens,
                               int64_t window = 0) {
  CacheShape caches{.slots = slots, .page_size = page, .keeps_prefixes = true, .window = window};
  caches.set_pages(pages, prompt_tokens);
  return {.steps_in_flight = stages,
          .max_sequences = (slots + stages - 1) / stages,
          .prompt_tokens = prompt_tokens,
          .counted_prefixes = 24,
          .caches = caches};
}

Request cache_request_of(int32_t sample, Tokens prompt, int64_t max_new) {
  return {.sample = sample, .prompt = std::move(prompt), .max_new = max_new};
}

// Runs requests that come one after the other, each when the one before has ended.
CacheSimulation one_by_one(const std::vector<Request>& requests, ScheduleLimits limits) {
  std::vector<int64_t> comes, leaves(requests.size(), -1);
  for (size_t i = 0; i < requests.size(); ++i) comes.push_back(static_cast<int64_t>(i) * 1000);
  NotedRequests source(requests, comes, leaves);
  CacheSimulation simulation(requests, limits);
  simulation.run(source);
  return simulation;
}

TEST(PrefixCacheTest, TurnsOfAConversationAreTakenAgain) {
  std::vector<Request> turns{cache_request_of(0, Tokens(10, 3), 9)};
  for (int32_t turn = 1; turn < 5; ++turn) {
    Tokens prompt = continued(turns.back());
    prompt.insert(prompt.end(), {turn, 1, 2});
    turns.push_back(cache_request_of(turn, prompt, 9));
  }
  int64_t cached = 0;
  for (size_t turn = 1; turn < turns.size(); ++turn)  // all but the last token of an answer was fed
    cached += (std::ssize(turns[turn].prompt) - 4) / 4 * 4;
  EXPECT_EQ(one_by_one(turns, cache_limits_of(2, 2, 4, 64, 8)).cached, cached);
}

TEST(PrefixCacheTest, AtLeastOneTokenIsComputed) {
  const Tokens prompt{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(
      one_by_one({cache_request_of(0, prompt, 2), cache_request_of(1, prompt, 2)}, cache_limits_of(1, 2, 4, 16, 8))
          .cached,
      4);
  EXPECT_EQ(
      one_by_one({cache_request_of(0, prompt, 2), cache_request_of(1, prompt, 2)}, cache_limits_of(1, 2, 1, 16, 8))
          .cached,
      7);
}

TEST(PrefixCacheTest, ARequestMayGoWithoutIt) {
  std::vector<Request> requests;
  for (int32_t sample = 0; sample < 3; ++sample) requests.push_back(cache_request_of(sample, Tokens(20, 1), 2));
  requests[1].prompt_log_probs = true;
  EXPECT_EQ(one_by_one(requests, cache_limits_of(1, 2, 4, 16, 8)).cached, 16);
}

// While a prompt is still fed, others that begin with the same tokens take the pages that are full.
TEST(PrefixCacheTest, RunningSequencesShareTheirPrefix) {
  std::vector<Request> requests;
  for (int32_t sample = 0; sample < 4; ++sample) {
    Tokens prompt(40, 2);
    prompt.push_back(sample);
    requests.push_back(cache_request_of(sample, prompt, 4));
  }
  NotedRequests source(requests, {0, 1, 2, 2}, {-1, -1, -1, -1});
  CacheSimulation simulation(requests, cache_limits_of(1, 4, 4, 30, 40));  // too few pages for four without sharing
  simulation.run(source);
  EXPECT_EQ(source.cached[0], 0);
  for (int32_t sample = 1; sample < 4; ++sample) EXPECT_EQ(source.cached[sample], 40) << sample;
  EXPECT_EQ(simulation.preemptions, 0);
}

// Pages that nobody uses give way before a sequence does.
TEST(PrefixCacheTest, KeptPagesGoBeforeSequences) {
  std::vector<Request> requests;
  for (int32_t sample = 0; sample < 12; ++sample) requests.push_back(cache_request_of(sample, Tokens(12, sample), 8));
  for (int32_t sample = 12; sample < 14; ++sample) requests.push_back(cache_request_of(sample, Tokens(12, 11), 8));
  const CacheSimulation simulation =
      one_by_one(requests, cache_limits_of(1, 1, 4, 5, 8));  // a sequence alone takes all of them
  EXPECT_EQ(simulation.preemptions, 0);
  EXPECT_GE(simulation.cached, 2 * 8);
}

// A prefix is found whose window is gone from layers with a window: it is computed again, and then found whole.
TEST(PrefixCacheTest, AWindowThatIsGoneIsComputedAgain) {
  std::vector<Request> requests;
  for (int32_t sample = 0; sample < 8; ++sample)  // the first one's window is reused by the others
    requests.push_back(cache_request_of(sample, Tokens(40, sample), 1));
  for (int32_t sample = 8; sample < 11; ++sample) requests.push_back(cache_request_of(sample, Tokens(40, 0), 1));
  NotedRequests source(requests, {0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000}, std::vector<int64_t>(11, -1));
  ScheduleLimits limits = cache_limits_of(1, 1, 4, 100, 8, 6);
  limits.caches.window_pages = 6;
  CacheSimulation simulation(requests, limits);
  simulation.run(source);
  EXPECT_EQ(source.cached[8], 0);
  EXPECT_EQ(source.cached[9], 36);
  EXPECT_EQ(source.cached[10], 36);
}

// Conversations of many turns and prompts that begin alike come, go and are cancelled, with few pages.
TEST(PrefixCacheTest, RandomConversations) {
  std::mt19937 random(17);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t steps = 0, preemptions = 0, cached = 0, counted = 0, gone = 0;
  for (int job = 0; job < 150; ++job) {
    SCOPED_TRACE(job);
    std::vector<Request> requests;
    std::vector<int64_t> comes, leaves;
    int64_t longest = 0;
    const int64_t count = between(2, 40), page = between(1, 7);
    for (int32_t sample = 0; sample < count; ++sample) {
      Tokens prompt(static_cast<size_t>(between(0, 12)), static_cast<int32_t>(between(0, 1)));
      if (sample > 0 && between(0, 3) > 0) {  // the next turn of a conversation, or another end of one
        prompt = continued(requests[static_cast<size_t>(between(0, sample - 1))]);
        prompt.resize(std::min<size_t>(prompt.size(), static_cast<size_t>(between(1, 80))));
      }
      for (int64_t more = between(1, 6); more > 0; --more) prompt.push_back(static_cast<int32_t>(between(0, 4)));
      Request& request = requests.emplace_back(cache_request_of(sample, prompt, between(1, 20)));
      if (between(0, 3) == 0) request.rule.repetition_penalty = 2;
      if (between(0, 9) == 0) request.prompt_log_probs = true;
      comes.push_back((comes.empty() ? 0 : comes.back()) + between(0, 12));
      leaves.push_back(between(0, 4) == 0 ? comes.back() + between(0, 30) : -1);
      longest = std::max(longest, std::ssize(prompt) + request.max_new);
    }
    const int64_t slots = between(1, 8);
    NotedRequests source(requests, comes, leaves);
    const int64_t stages = between(1, 4), pages = pages_for(longest, page) * between(2, 2 + slots) / 2;
    CacheSimulation simulation(requests, cache_limits_of(stages, slots, page, pages, between(1, 40), job % 3 * 9));
    simulation.run(source);
    if (HasFailure()) return;
    steps += simulation.steps;
    preemptions += simulation.preemptions;
    cached += simulation.cached;
    counted += simulation.counted;
    gone += std::ssize(source.gone);
  }
  EXPECT_GT(steps, 5000);
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(cached, 5000);
  EXPECT_GT(counted, 200);
  EXPECT_GT(gone, 200);
}

}  // namespace
}  // namespace lfm2::test
