// The first stage's part of a generation: decides which tokens of which sequences make up the next step. This is
// continuous batching for a pipeline: one step is in flight for each stage, and each step has its share of the
// sequences. A sequence that ends or is cancelled frees its sequence slot and pages, while the other sequences
// continue. A single stage runs ahead with one more step in flight. That step reads on the device the tokens that the
// previous step draws, so the device never waits for the host between two steps. If a sequence turns out to have ended,
// its extra token is dropped. A sequence whose drafter may have drafts after a token waits for it (drafter.h), and a
// step with drafts returns before the next one is made. Sequences allocate pages of the caches as they grow, and begin
// after the tokens found in the prefix cache. When no page is left, the youngest sequence is preempted: it frees all
// its pages and is computed again when there is room. The scheduler uses neither MPI nor a device, so tests run it
// alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "stage/generation/draft_length.h"
#include "stage/generation/drafter.h"
#include "stage/generation/page_pool.h"
#include "stage/pipeline/request_source.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2 {

struct ScheduleLimits {
  int64_t steps_in_flight = 1;  // the number of stages
  int64_t max_sequences = 1;    // in one step
  int64_t draft_rows = 0;       // drafts of all sequences in one step; see also CacheShape::max_drafts
  // Whether the drafts of sequences that are fewer than the stages follow their tokens in steps of their own, through
  // stages that would idle.
  bool streams_drafts = false;
  bool asks_for_drafts = false;  // the last stage makes the drafts, where a step asks for them
  bool fixed_drafts = true;      // every sequence gets max_drafts, rather than a number chosen for it
  int64_t vocab = INT32_MAX;     // drafts are below it
  // Tokens of all prompts in one step. The limit keeps a long prompt from delaying other sequences much.
  int64_t prompt_tokens = 1024;
  // Tokens of cached prefixes that rules count in one step, in all sequences; a single sequence may have more.
  int64_t counted_prefixes = 1024;
  CacheShape caches;  // at least large enough for the longest sequence
  // Whether steps use tokens that have not returned to the host yet.
  bool runs_ahead() const { return steps_in_flight == 1; }
  int64_t max_rows() const { return max_sequences + draft_rows; }  // rows that decode in one step
};

// A placeholder in ScheduledStep::ids for a token that has not returned yet: token number `draw` of those that the
// previous step draws. See Ops::insert_drawn.
constexpr int32_t awaited_id(int32_t draw) { return -1 - draw; }

struct SchedulerCounts {
  int64_t requests = 0, prompt_tokens = 0;     // requests that were read, and the tokens of their prompts
  int64_t preemptions = 0;                     // how often a sequence returned its pages
  int64_t draft_rounds = 0, draft_tokens = 0;  // steps of a sequence with drafts, and these drafts
  std::vector<int64_t> accepted = {};          // [most drafts]: how often the first, second ... draft was right
  int64_t accepted_tokens() const { return std::accumulate(accepted.begin(), accepted.end(), int64_t{0}); }
  void add(const SchedulerCounts& more);
};

struct ScheduledStep {
  Step step;
  std::vector<int32_t> ids;  // the step's token ids, or placeholders (awaited_id())
};

class Scheduler {
 public:
  // `source` must outlive this. Without `drafters` no sequence drafts. `clock` returns seconds. `windows`: those of the
  // stage's table, to which every step was applied before the next one is made; only the prefix cache needs them.
  Scheduler(RequestSource& source, ScheduleLimits limits, DrafterFactory drafters = {},
            std::function<double()> clock = steady_seconds, const WindowPages* windows = nullptr);

  // The next step; empty while the pipeline is full or there is nothing to send. A step without entries only names
  // freed sequence slots and dropped samples.
  std::optional<ScheduledStep> next();
  struct Arrival {
    int32_t slot = 0;
    bool first = false;  // whether the token is the first one of its sequence
  };
  // Adds the tokens of the oldest step in flight, in the order of its sequences that draw (StepArrays::draw_slots): one
  // for each or, of a block, those up to the first that is not `drafted` or ends the sequence.
  // Returns the sequences that got a token: not those that had ended, or that end without one.
  std::vector<Arrival> on_tokens(std::vector<DrawnToken> tokens);
  // Whether no sequence runs or waits and no request will come; next() may still return a step that frees slots.
  bool finished() const;
  bool in_flight() const { return !in_flight_.empty(); }  // whether any step has not returned its tokens
  const SchedulerCounts& counts() const { return counts_; }
  const PagePool& pages() const { return pages_; }

 private:
  enum class State : uint8_t {
    kFree,       // the sequence slot is unused
    kWaiting,    // arrived and found no room
    kPreempted,  // waits, keeps the tokens drawn so far, and has no pages
    kRunning,    // has pages, and is scheduled from prompts_ or ready_
    // The victim chosen for preemption, at most one sequence. It is preempted once its steps in flight have returned,
    // unless pages are free by then.
    kVictim,
    kCancelled,  // cancelled or ended: leaves once its steps in flight have returned
    kEnded,
  };
  struct Sequence {
    State state = State::kFree;
    Request request;              // without its prompt
    std::vector<int32_t> tokens;  // the prompt and the tokens drawn so far
    int64_t prompt = 0;           // tokens of the prompt
    int64_t number = 0;           // order of arrival: the youngest sequence has the largest number
    int64_t num_tokens = 0;       // tokens to compute before the next one is drawn
    int64_t num_computed = 0;     // tokens computed so far, or found in the prefix cache
    std::vector<int32_t> pages;   // the pages that it holds, in order
    int64_t full = 0;             // how many of them are full and kept; `prefix` identifies their chain
    KeptPrefix prefix;
    int64_t in_flight = 0;             // how many steps in flight it is part of
    int64_t awaited = 0;               // how many tokens these steps draw for it, a block counting as one
    int32_t draw = 0;                  // the newest one's index among the tokens that its step draws
    std::unique_ptr<Drafter> drafter;  // null: it does not draft
    DraftSuccess draft_success;
    int32_t accepted = 0, rejected = 0;  // drafts of its newest block, since it returned, until its next step
    // Streamed drafts after its newest known token, in the order of their steps in flight; and how many earlier steps
    // in flight followed a wrong one.
    std::vector<int32_t> streamed;
    int64_t voided = 0;
    bool runs() const { return state == State::kRunning || state == State::kVictim; }
    bool goes_on() const { return runs() && std::ssize(tokens) + awaited < prompt + request.max_new; }
  };
  // A step in flight: the sequence slots of all its sequences, and those that draw, with the numbers of their drafts.
  struct Drawing {
    int32_t slot = 0, drafts = 0;
  };
  struct Flight {
    std::vector<int32_t> slots;
    std::vector<Drawing> drawing;
    int32_t draws = 0;      // rows that draw
    bool streamed = false;  // has streamed drafts
    bool timed = false;     // its time depends on its rows alone: no prompts, and no streamed drafts in it or before it
    bool drafts() const { return draws > std::ssize(drawing); }
  };

  // What decides about drafts.
  struct Drafting {
    DrafterFactory drafters;
    std::function<double()> clock;
    DraftLengths lengths;
    std::optional<double> returned = {};  // when the newest tokens returned, unless nothing was to do since
  };

  Sequence& at(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  int64_t active() const { return limits_.caches.slots - std::ssize(free_slots_); }  // sequences that have a slot
  void choose_ready(size_t share);
  void choose_prompts(size_t share);
  bool admit();
  std::optional<Sequence> next_waiting();
  bool give_pages(Sequence& sequence);
  int64_t growing() const;
  bool make_room_for_next(int32_t slot);
  int32_t youngest() const;
  bool waits_for_drafts();
  int64_t places_for_drafts(const Sequence& sequence, int64_t later = 0) const;
  std::vector<int32_t> propose(Sequence& sequence);
  void add_drafts();
  void ask_for_drafts();
  void measure(const Flight& flight);
  int64_t room_for_drafts(int32_t slot, int64_t wanted);
  static void read_ahead(Sequence& sequence);
  bool streams(const Sequence& sequence) const;
  void stream_draft();
  bool on_streamed(Sequence& sequence, DrawnToken& drawn);
  void on_verified(Sequence& sequence, int32_t drafts, std::span<const DrawnToken> drawn);
  ScheduledStep compose();
  static void append_ids(const Sequence& sequence, int32_t count, std::vector<int32_t>& ids);
  void keep_full_pages(Sequence& sequence);
  void release_cancelled();
  void release_unwanted(int32_t slot);
  void preempt(int32_t slot);
  Sequence release(int32_t slot);
  void stop_feeding(int32_t slot, State state);
  void choose_victim(int32_t slot);

  RequestSource& source_;
  ScheduleLimits limits_;
  Drafting drafting_;
  std::vector<Sequence> sequences_;  // [slots]
  std::deque<Sequence> waiting_;     // preempted or without room, the oldest first
  std::vector<int32_t> free_slots_;
  Step next_;  // under construction; sequence slots and samples that are released between two steps are added to it
  PagePool pages_;
  SchedulerCounts counts_;
  // Sequence slots: in ready_ of sequences that decode next, in prompts_ of sequences with tokens still to prefill.
  std::deque<int32_t> ready_, prompts_;
  std::deque<Flight> in_flight_;
};

}  // namespace lfm2
