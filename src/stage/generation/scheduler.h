// The first stage's part of a generation: it decides which tokens of which sequences make up the next step.
// This is continuous batching for a pipeline: one step is in flight for each stage, and each step has its share of the
// sequences. A sequence that ends or is cancelled frees its sequence slot and pages for another one, while the other
// sequences continue. A single stage runs ahead with one more step in flight. That step reads the tokens that the step
// before draws on the device, so the device need not wait for the host between two steps. If a sequence turns out to
// have ended, it was fed once too often, and that token is dropped.
// Sequences allocate pages of the caches as they grow, and begin after the tokens that the prefix cache has of them.
// When no page is left, the youngest sequence is preempted: it frees all its pages and is fed again when there is room.
// The scheduler uses neither MPI nor a device, so tests run it alone.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "stage/generation/page_pool.h"
#include "stage/pipeline/request_source.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2 {

struct ScheduleLimits {
  int64_t steps_in_flight = 1;  // the number of stages
  int64_t max_sequences = 1;    // sequences in one step
  // Tokens of prompts in one step, all together; a long prompt then delays no other sequence much.
  int64_t prompt_tokens = 1024;
  // Tokens of the prefix cache that rules count in one step, all together, unless a single sequence has more.
  int64_t counted_prefixes = 1024;
  CacheShape caches;  // big enough for the longest sequence by itself
  // Whether sequences are fed tokens that have not come back yet.
  bool runs_ahead() const { return steps_in_flight == 1; }
};

// Stands in ScheduledStep::ids for a token that has not come back: number `draw` of the tokens that the step before
// draws. See Ops::insert_drawn.
constexpr int32_t awaited_id(int32_t draw) { return -1 - draw; }

struct ScheduledStep {
  Step step;
  std::vector<int32_t> ids;  // the ids of the step's tokens, or awaited_id()
};

class Scheduler {
 public:
  // `source` must outlive this.
  Scheduler(RequestSource& source, ScheduleLimits limits);

  // The next step; empty while the pipeline is full or there is nothing to tell the stages. A step without entries only
  // says which sequence slots are free and which samples were dropped.
  std::optional<ScheduledStep> next();
  // Adds the tokens of the oldest step in flight: one for each of its sequences that drew (StepArrays::draw_slots).
  void on_tokens(std::vector<DrawnToken> tokens);
  // Whether no sequence runs or waits and no request will come; next() may still have slots to release.
  bool finished() const;
  bool in_flight() const { return !in_flight_.empty(); }  // whether the tokens of any step are still to come
  int64_t preemptions() const { return preemptions_; }    // how often a sequence gave its pages back
  const PagePool& pages() const { return pages_; }

  // The tokens of the last on_tokens(): the sequence slot of each, and whether it is the first one of its sequence.
  struct Arrival {
    int32_t slot = 0;
    bool first = false;
  };
  const std::vector<Arrival>& arrivals() const { return arrivals_; }

 private:
  enum class State : uint8_t {
    kFree,       // of a sequence slot: no sequence has it
    kWaiting,    // came and found no room
    kPreempted,  // waits as well, with the tokens drawn so far; its pages are others'
    kRunning,    // has pages, and is fed whenever it is its turn in prompts_ or ready_
    // The victim chosen for preemption, at most one sequence: it is preempted once the steps that have it are back. If
    // pages are free at its turn, it runs again instead.
    kVictim,
    kCancelled,  // leaves when the steps that have it are back, as does one that has ended
    kEnded,
  };
  struct Sequence {
    State state = State::kFree;
    Request request;              // without its prompt
    std::vector<int32_t> tokens;  // the prompt and the tokens drawn so far
    int64_t prompt = 0;           // tokens of the prompt
    int64_t number = 0;           // counts requests in the order in which they came, so the youngest has the largest
    int64_t num_tokens = 0;       // tokens to compute before the next one is drawn
    int64_t num_computed = 0;     // tokens computed so far, or found in the prefix cache
    std::vector<int32_t> pages;   // those that it holds, in order
    int64_t full = 0;             // how many of them are full, and kept as the end of `prefix`
    KeptPrefix prefix;
    int64_t in_flight = 0;  // how many steps in flight it is part of
    int64_t awaited = 0;    // how many of its tokens these steps draw
    int32_t draw = 0;       // the place of the newest one among those that its step draws
    bool runs() const { return state == State::kRunning || state == State::kVictim; }
    bool goes_on() const { return runs() && std::ssize(tokens) + awaited < prompt + request.max_new; }
  };
  // The sequence slots of one step: of all its sequences, and of those that draw a token.
  struct Flight {
    std::vector<int32_t> slots, drawing;
  };

  Sequence& at(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  void enter(int32_t slot, State state);
  void release_cancelled();
  void choose_ready(Step& step, std::vector<StepEntry>& singles, size_t share);
  void choose_prompts(Step& step, std::vector<StepEntry>& singles, std::vector<StepEntry>& chunks, size_t share);
  bool admit(Step& step);
  std::optional<Sequence> next_waiting();
  int64_t growing() const;
  bool give_pages(Sequence& sequence, Step& step);
  void keep_full_pages(Sequence& sequence);
  int32_t youngest() const;
  bool has_page_for_next(Step& step, int32_t slot);
  void preempt(int32_t slot);
  Sequence release(int32_t slot);
  void release_unwanted(int32_t slot);
  static void append_ids(const Sequence& sequence, int32_t count, std::vector<int32_t>& ids);
  ScheduledStep compose(Step step, std::vector<StepEntry> singles, const std::vector<StepEntry>& chunks);

  RequestSource& source_;
  ScheduleLimits limits_;
  std::vector<Sequence> sequences_;  // [slots]
  std::deque<Sequence> waiting_;     // those that are preempted or found no room, the oldest first
  std::vector<int32_t> free_slots_;
  struct {
    std::vector<int32_t> released, dropped;
  } left_;  // sequence slots and samples for the next step to name
  PagePool pages_;
  int64_t admitted_ = 0, active_ = 0, preemptions_ = 0;
  // Sequence slots: of sequences whose newest token can be fed, and of those with known tokens that were not fed yet.
  std::deque<int32_t> ready_, prompts_;
  std::deque<Flight> in_flight_;
  std::vector<Arrival> arrivals_;
};

}  // namespace lfm2
