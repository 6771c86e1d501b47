// A generation on a device whose steps take the times of a table, to see how fast it is with drafts that are right with
// a known chance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/split_mix.h"
#include "stage/generation/proposed_drafts.h"
#include "stage/generation/scheduler.h"
#include "stage/generation/test_drafter.h"
#include "support/live_requests.h"

namespace lfm2::test {

// Rows and the milliseconds of a step; between two of them time is linear.
using StepTable = std::vector<std::pair<double, double>>;

inline double step_seconds(const StepTable& table, int64_t rows) {
  const auto number = static_cast<double>(rows);
  const auto above = std::ranges::find_if(table, [&](const auto& one) { return one.first >= number; });
  EXPECT_NE(above, table.end());
  if (above->first == number) return above->second * 1e-3;
  const auto [low_rows, low] = *(above - 1);
  return (low + (above->second - low) * (number - low_rows) / (above->first - low_rows)) * 1e-3;
}

struct TimedDrafts {
  static constexpr int32_t kVocab = 1000;
  // Drafts after a prompt of one token.
  class Turning : public Drafter {
   public:
    Turning(const std::vector<int32_t>& text, double share, int64_t right_from, uint64_t seed)
        : wrong_({.share = 0, .vocab = kVocab}, text, 1, seed),
          right_({.share = share, .vocab = kVocab}, text, 1, seed),
          right_from_(right_from) {}
    std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) override {
      return (std::ssize(tokens) > right_from_ ? right_ : wrong_).propose(tokens, most);
    }

   private:
    TestDrafter wrong_, right_;
    int64_t right_from_;
  };

  const StepTable& table;
  int64_t sequences = 1;
  std::vector<double> shares = {};  // of right drafts, for each sequence in turn; empty: no drafts
  int64_t right_from = 0;           // the place of a text before which all drafts are wrong
  int64_t tokens = 960;             // of each sequence
  // Seconds that the last stage takes to make the drafts that a step asks for; none: the first stage makes drafts.
  std::optional<double> drafter = {};
  double host = 0;  // seconds from the return of a step to the next one, unless that was sent before
  SchedulerCounts counts = {};
  std::vector<int64_t> accepted = {};  // of each sequence

  struct Flight {
    double end = 0;
    std::vector<int32_t> samples, next_drafts;  // of the rows that draw
    std::vector<StepArrays::WantedDrafts> wanted;
  };
  // Adds the last stage's drafts to the last token of each entry that wants them; `lasts` are those of all entries.
  void propose(const Flight& flight, const std::vector<std::vector<int32_t>>& texts,
               const std::vector<std::pair<size_t, size_t>>& lasts, const std::vector<int64_t>& drawn,
               std::vector<DrawnToken>& told) const {
    for (const auto& [drawing, slot, position] : flight.wanted) {
      const auto& [sample, token] = lasts[static_cast<size_t>(drawing)];
      std::vector<int32_t> known{1};
      known.insert(known.end(), texts[sample].begin(), texts[sample].begin() + drawn[sample]);
      if (!told[token].ends)
        told[token].proposed =
            Turning(texts[sample], shares[sample % shares.size()], right_from, sample + 1000 * known.size())
                .propose(known, 8);
    }
  }

  // Tokens in a second.
  double speed() {
    constexpr int64_t kDrafts = 8, kPage = 64;
    const ScheduleLimits limits{.max_sequences = sequences,
                                .draft_rows = std::min<int64_t>(256, kDrafts * sequences),
                                .asks_for_drafts = drafter.has_value(),
                                .fixed_drafts = false,
                                .vocab = kVocab,
                                .caches = {.slots = sequences,
                                           .pages = sequences * pages_for(tokens + 1, kPage),
                                           .page_size = kPage,
                                           .max_drafts = kDrafts}};
    std::vector<Request> requests;
    std::vector<std::vector<int32_t>> texts;
    for (int32_t sample = 0; std::cmp_less(sample, sequences); ++sample) {
      requests.push_back({.sample = sample, .prompt = {1}, .max_new = tokens});
      std::vector<int32_t>& text = texts.emplace_back();
      for (int64_t place = 0; place < tokens; ++place)
        text.push_back(static_cast<int32_t>(split_mix(static_cast<uint64_t>(sample), static_cast<uint64_t>(place)) %
                                            static_cast<uint64_t>(kVocab)));
    }
    DrafterFactory drafters;
    if (!shares.empty())
      drafters = [&](const Request& request, int64_t) -> std::unique_ptr<Drafter> {
        if (drafter) return std::make_unique<ProposedDrafts>();
        const auto sample = static_cast<size_t>(request.sample);
        return std::make_unique<Turning>(texts[sample], shares[sample % shares.size()], right_from, sample);
      };
    LiveRequests source(requests, std::vector<int64_t>(requests.size()), std::vector<int64_t>(requests.size(), -1));
    double now = 0, idle_from = 0;  // the host's time, and when the device has computed all steps
    Scheduler scheduler(source, limits, drafters, [&] { return now; });
    SequenceTable slots(limits.caches);
    StepArrays arrays;
    std::deque<Flight> in_flight;
    std::vector<int64_t> drawn(requests.size());
    accepted.assign(requests.size(), 0);
    while (true) {
      while (auto scheduled = scheduler.next()) {
        slots.apply(scheduled->step, pages_for(tokens + 1, kPage), arrays);
        if (scheduled->step.entries.empty()) continue;
        idle_from = std::max(idle_from, now) + step_seconds(table, arrays.tokens) +
                    (arrays.wanted_drafts.empty() ? 0 : drafter.value_or(0));
        Flight& flight = in_flight.emplace_back(Flight{idle_from, {}, arrays.next_drafts, arrays.wanted_drafts});
        for (const int32_t slot : arrays.draw_slots) flight.samples.push_back(slots.sequence(slot).request.sample);
      }
      if (in_flight.empty()) break;
      const Flight flight = std::move(in_flight.front());
      in_flight.pop_front();
      now = std::max(now, flight.end);
      std::vector<DrawnToken> told;
      std::vector<std::pair<size_t, size_t>> lasts;
      for (size_t row = 0, end = 0; row < flight.samples.size(); row = end) {
        end = row + 1;
        while (flight.next_drafts[end - 1] >= 0) ++end;
        const auto sample = static_cast<size_t>(flight.samples[row]);
        for (; row < end; ++row) {
          DrawnToken& token = told.emplace_back();
          if (drawn[sample] == tokens) break;  // it was fed once too often
          token.token = texts[sample][static_cast<size_t>(drawn[sample]++)];
          if (drawn[sample] == tokens) token.ends = FinishReason::kLength;
          token.drafted = token.token == flight.next_drafts[row];
          accepted[sample] += token.drafted ? 1 : 0;
          if (token.ends || !token.drafted) break;
        }
        lasts.emplace_back(sample, told.size() - 1);
      }
      propose(flight, texts, lasts, drawn, told);
      scheduler.on_tokens(std::move(told));
      now += host;
    }
    EXPECT_EQ(std::ranges::count(drawn, tokens), sequences);
    counts = scheduler.counts();
    return static_cast<double>(sequences * tokens) / now;
  }
};

}  // namespace lfm2::test
