// Decoding sequences enter a step before prompts, and prompts enter in the order of their requests.
#include "stage/generation/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

Scheduler::Scheduler(RequestSource& source, ScheduleLimits limits, DrafterFactory drafters,
                     std::function<double()> clock, const WindowPages* windows)
    : source_(source),
      limits_(limits),
      drafting_{std::move(drafters), std::move(clock), DraftLengths(limits.fixed_drafts)},
      sequences_(static_cast<size_t>(limits.caches.slots)),
      pages_(limits.caches.pages, limits.caches.page_size, limits.caches.keeps_prefixes, PagePool::content_hash,
             windows) {
  expect(limits.steps_in_flight > 0 && limits.max_sequences > 0 && limits.prompt_tokens > 0 && limits.caches.slots > 0,
         "Scheduler: limits");
  expect(windows != nullptr || limits.caches.window == 0 || !limits.caches.keeps_prefixes, "Scheduler: no windows");
  for (int64_t slot = limits.caches.slots; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
}

bool Scheduler::finished() const { return active() == 0 && waiting_.empty() && source_.ended(); }

std::optional<ScheduledStep> Scheduler::next() {
  const int64_t max_in_flight = limits_.steps_in_flight + (limits_.runs_ahead() ? 1 : 0);
  if (std::ssize(in_flight_) >= max_in_flight || waits_for_drafts()) return std::nullopt;
  release_cancelled();
  const int64_t waiting = static_cast<int64_t>(waiting_.size()) + source_.waiting();
  // Every step in flight gets an equal share of the sequences, so that no stage waits for a step.
  const int64_t could_run = active() + std::min(waiting, static_cast<int64_t>(free_slots_.size()));
  const auto share = static_cast<size_t>(
      std::min(limits_.max_sequences, (could_run + limits_.steps_in_flight - 1) / limits_.steps_in_flight));
  const int64_t before = counts_.preemptions;
  choose_ready(share);
  add_drafts();
  // Pages that a preemption has just freed are for the sequences that run, not for new ones.
  if (counts_.preemptions == before || (next_.entries.empty() && active() == 0)) choose_prompts(share);
  if (next_.entries.empty()) stream_draft();
  if (limits_.asks_for_drafts) ask_for_drafts();
  if (!next_.entries.empty() || !next_.released.empty() || !next_.dropped.empty()) return compose();
  if (in_flight_.empty()) drafting_.returned.reset();
  return std::nullopt;
}

void Scheduler::choose_ready(size_t share) {
  std::vector<int32_t> without_page;
  while (!ready_.empty() && next_.entries.size() < share) {
    const int32_t slot = ready_.front();
    ready_.pop_front();
    if (make_room_for_next(slot)) {
      ++at(slot).in_flight;
      next_.entries.push_back({.slot = slot, .count = 1, .rejected = at(slot).rejected});
    } else if (at(slot).state != State::kFree) {
      without_page.push_back(slot);
    }
  }
  ready_.insert(ready_.begin(), without_page.begin(), without_page.end());
}

void Scheduler::choose_prompts(size_t share) {
  int64_t budget = limits_.prompt_tokens;
  while (budget > 0 && next_.entries.size() < share && (!prompts_.empty() || admit())) {
    const int32_t slot = prompts_.front();
    prompts_.pop_front();
    Sequence& sequence = at(slot);
    const int64_t count = std::min(budget, sequence.num_tokens - sequence.num_computed);
    ++sequence.in_flight;
    next_.entries.push_back({slot, static_cast<int32_t>(count)});
    budget -= count;
    // What is left of the prompt goes first in the next step, too.
    if (sequence.num_computed + count < sequence.num_tokens) prompts_.push_front(slot);
  }
}

// Admits the sequence that has waited longest, if there is room.
bool Scheduler::admit() {
  if (free_slots_.empty()) return false;
  std::optional<Sequence> sequence = next_waiting();
  if (!sequence) return false;
  sequence->num_tokens = std::ssize(sequence->tokens);
  if (!give_pages(*sequence)) {
    waiting_.push_front(std::move(*sequence));
    return false;
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence->state == State::kWaiting) source_.begun(sequence->request.sample, sequence->num_computed);
  Admission& one = next_.admitted.emplace_back(Admission{.slot = slot,
                                                         .prompt = static_cast<int32_t>(sequence->prompt),
                                                         .num_tokens = static_cast<int32_t>(sequence->num_tokens),
                                                         .num_cached = static_cast<int32_t>(sequence->num_computed),
                                                         .request = sequence->request,
                                                         .pages = sequence->pages});
  if (sequence->num_tokens > sequence->prompt) {  // results of the prompt were returned with the first token
    one.request.prompt_log_probs = false;
    one.request.hidden = Hidden::kNone;
  } else if (one.request.prompt_log_probs || one.request.echo) {
    one.request.prompt.assign(sequence->tokens.begin(), sequence->tokens.begin() + sequence->prompt);
  }
  at(slot) = std::move(*sequence);
  at(slot).state = State::kRunning;
  prompts_.push_back(slot);
  return true;
}

std::optional<Scheduler::Sequence> Scheduler::next_waiting() {
  if (!waiting_.empty()) {
    Sequence sequence = std::move(waiting_.front());
    waiting_.pop_front();
    return sequence;
  }
  std::optional<Request> request = source_.next();
  if (!request) return {};
  expect(!request->prompt.empty() && request->max_new > 0, "Scheduler: a request without tokens");
  Sequence sequence;
  sequence.state = State::kWaiting;
  sequence.tokens = std::exchange(request->prompt, {});
  sequence.prompt = std::ssize(sequence.tokens);
  sequence.request = std::move(*request);
  if (drafting_.drafters && sequence.request.draft)
    sequence.drafter = drafting_.drafters(sequence.request, sequence.prompt);
  sequence.number = counts_.requests++;
  counts_.prompt_tokens += sequence.prompt;
  return sequence;
}

// Allocates pages for all known tokens of a sequence that is to be admitted. The prefix cache provides the first pages,
// but never that of the last token, from which the next one is drawn. One page must be left for each running sequence
// that may still need one, so that admitting a sequence causes no preemption in the next steps.
bool Scheduler::give_pages(Sequence& sequence) {
  const std::span<const int32_t> tokens(sequence.tokens);
  const int64_t needed = pages_for(sequence.num_tokens, limits_.caches.page_size);
  expect(needed <= limits_.caches.pages, "Scheduler: a sequence that never fits");
  std::vector<int32_t> prefix;
  if (sequence.request.may_use_prefix()) prefix = pages_.find(tokens.first(tokens.size() - 1));
  const auto held = std::count_if(prefix.begin(), prefix.end(), [&](int32_t page) { return pages_.holders(page) > 0; });
  if (active() > 0 && needed - held + growing() > pages_.available()) return false;
  const int64_t cached = std::ssize(prefix) * limits_.caches.page_size;
  if (sequence.request.rule.counts()) {
    if (cached > 0 && !next_.counted.empty() && std::ssize(next_.counted) + cached > limits_.counted_prefixes)
      return false;
    next_.counted.insert(next_.counted.end(), tokens.begin(), tokens.begin() + cached);
  }
  sequence.prefix = {};
  for (const int32_t page : prefix) sequence.prefix = pages_.hold(page);
  sequence.full = std::ssize(prefix);
  sequence.num_computed = cached;
  sequence.pages = std::move(prefix);
  while (std::ssize(sequence.pages) < needed) sequence.pages.push_back(pages_.allocate());
  return true;
}

// The number of running sequences that may still need another page.
int64_t Scheduler::growing() const {
  return std::count_if(sequences_.begin(), sequences_.end(), [this](const Sequence& one) {
    return one.state != State::kFree && pages_for(cached_positions(one.prompt, one.request.max_new),
                                                  limits_.caches.page_size) > std::ssize(one.pages);
  });
}

ScheduledStep Scheduler::compose() {
  // Sequences with one token and blocks come first: see Batch::singles.
  std::ranges::stable_partition(next_.entries, [](const StepEntry& one) { return one.own() <= 1; });
  ScheduledStep scheduled{.step = std::exchange(next_, {}), .ids = {}};
  Step& step = scheduled.step;
  Flight flight;
  flight.timed = std::ranges::none_of(in_flight_, &Flight::streamed);
  auto drafts = step.drafts.begin();
  for (const StepEntry& entry : step.entries) {
    Sequence& sequence = at(entry.slot);
    if (entry.own() > 0) append_ids(sequence, entry.own(), scheduled.ids);
    if (sequence.request.rule.counts()) {
      const auto next = sequence.tokens.begin() + std::min(sequence.num_computed, std::ssize(sequence.tokens));
      step.counted.insert(step.counted.end(), next - sequence.accepted, next);
      append_ids(sequence, entry.own(), step.counted);
    }
    scheduled.ids.insert(scheduled.ids.end(), drafts, drafts + entry.drafts);
    if (entry.streamed()) sequence.streamed.push_back(*drafts);
    drafts += entry.drafts;
    sequence.accepted = sequence.rejected = 0;
    sequence.num_computed += entry.count;
    keep_full_pages(sequence);
    if (sequence.drafter && entry.drafts == 0) read_ahead(sequence);
    flight.slots.push_back(entry.slot);
    if (entry.own() != 1) flight.timed = false;
    if (entry.streamed()) flight.streamed = true;
    if (sequence.num_computed < sequence.num_tokens) continue;
    ++sequence.awaited;
    sequence.draw = flight.draws;
    flight.draws += entry.rows();
    flight.drawing.push_back({entry.slot, entry.rows() - 1});
    if (entry.drafts == 0 && limits_.runs_ahead() && sequence.goes_on()) ready_.push_back(entry.slot);
  }
  // A step with drafts costs the time of those that it asks for, too: others of these two kinds are not compared.
  const bool asks = std::ranges::any_of(step.entries, &StepEntry::wants_drafts);
  if (limits_.asks_for_drafts && asks != flight.drafts()) flight.timed = false;
  if (!step.entries.empty()) in_flight_.push_back(std::move(flight));
  return scheduled;
}

// Appends the next `count` tokens of a sequence. The newest one may not have returned yet.
void Scheduler::append_ids(const Sequence& sequence, int32_t count, std::vector<int32_t>& ids) {
  if (sequence.num_computed == std::ssize(sequence.tokens)) {
    expect(count == 1 && sequence.awaited == 1, "Scheduler: a token is fed that nobody draws");
    ids.push_back(awaited_id(sequence.draw));
    return;
  }
  const auto begin = sequence.tokens.begin() + sequence.num_computed;
  ids.insert(ids.end(), begin, begin + count);
}

// Keeps the pages that are full by this step: all later steps may read them, no earlier step may.
void Scheduler::keep_full_pages(Sequence& sequence) {
  const int64_t page = limits_.caches.page_size, known = std::min(sequence.num_computed, std::ssize(sequence.tokens));
  for (; (sequence.full + 1) * page <= known; ++sequence.full) {
    const auto first = static_cast<size_t>(sequence.full * page);
    sequence.prefix = pages_.keep(sequence.pages[static_cast<size_t>(sequence.full)], sequence.prefix,
                                  std::span(sequence.tokens).subspan(first, static_cast<size_t>(page)));
  }
}

std::vector<Scheduler::Arrival> Scheduler::on_tokens(std::vector<DrawnToken> tokens) {
  expect(!in_flight_.empty(), "Scheduler: tokens of no step");
  const Flight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  measure(flight);
  for (const int32_t slot : flight.slots) --at(slot).in_flight;
  std::vector<Arrival> arrivals;
  std::vector<SampleToken> drawn;
  drawn.reserve(tokens.size());
  std::span<DrawnToken> left(tokens);
  for (const auto& [slot, drafts] : flight.drawing) {
    Sequence& sequence = at(slot);
    const std::span<DrawnToken> own = pop_entry(left, drafts);
    if (sequence.voided > 0) {  // its step followed a wrong draft
      --sequence.voided;
      continue;
    }
    --sequence.awaited;
    if (sequence.state == State::kEnded) continue;  // it was fed once too often
    if (drafts > 0) on_verified(sequence, drafts, own);
    const bool is_fed = !sequence.streamed.empty() && on_streamed(sequence, own.front());
    const bool is_wanted = sequence.runs();
    for (const DrawnToken& token : own) {
      sequence.tokens.push_back(token.token);
      if (token.ends != FinishReason::kError)
        arrivals.push_back({.slot = slot, .first = std::ssize(sequence.tokens) == sequence.prompt + 1});
    }
    if (sequence.drafter && !own.back().proposed.empty())
      sequence.drafter->on_proposed(std::exchange(own.back().proposed, {}), std::ssize(sequence.tokens));
    keep_full_pages(sequence);
    if (own.back().ends)
      stop_feeding(slot, State::kEnded);
    else if (!is_fed && (drafts > 0 || !limits_.runs_ahead()) && sequence.goes_on())
      ready_.push_back(slot);
    if (!is_wanted) continue;
    for (DrawnToken& token : own) drawn.push_back({sequence.request.sample, std::move(token)});
  }
  expect(left.empty(), "Scheduler: tokens of another step");
  source_.drawn(std::move(drawn));
  for (const int32_t slot : flight.slots) release_unwanted(slot);
  return arrivals;
}

// Releases cancelled sequences. If a step in flight has one, on_tokens() releases it when that step returns.
void Scheduler::release_cancelled() {
  for (const int32_t sample : source_.cancelled()) {
    const auto is_it = [&](const Sequence& one) { return one.request.sample == sample; };
    if (std::erase_if(waiting_, is_it) > 0) {
      next_.dropped.push_back(sample);
      continue;
    }
    const auto found = std::find_if(sequences_.begin(), sequences_.end(),
                                    [&](const Sequence& one) { return one.state != State::kFree && is_it(one); });
    if (found == sequences_.end()) continue;
    const auto slot = static_cast<int32_t>(found - sequences_.begin());
    if (found->runs()) stop_feeding(slot, State::kCancelled);
    release_unwanted(slot);
  }
}

// Releases an ended or cancelled sequence, unless it is in a step in flight.
void Scheduler::release_unwanted(int32_t slot) {
  const State state = at(slot).state;
  if (at(slot).in_flight > 0 || (state != State::kEnded && state != State::kCancelled)) return;
  const int32_t sample = release(slot).request.sample;
  if (state == State::kCancelled) next_.dropped.push_back(sample);
}

// Frees the sequence slot and the pages of a sequence, and returns the sequence.
Scheduler::Sequence Scheduler::release(int32_t slot) {
  Sequence sequence = std::exchange(at(slot), {});
  expect(sequence.state != State::kFree && sequence.in_flight == 0, "Scheduler: a sequence in flight is released");
  pages_.release(sequence.pages);
  free_slots_.push_back(slot);
  next_.released.push_back(slot);
  return sequence;
}

// Keeps the sequence out of further steps: it leaves once its steps in flight have returned.
void Scheduler::stop_feeding(int32_t slot, State state) {
  at(slot).state = state;
  std::erase(prompts_, slot);
  std::erase(ready_, slot);
}

}  // namespace lfm2
