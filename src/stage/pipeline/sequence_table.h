// The sequences that a generation has in flight: slots, pages and lengths. Every rank keeps one and applies every step
// to it in the same order, so all of them agree without being told.
#pragma once

#include <cstdint>
#include <vector>

#include "stage/model/caches.h"
#include "stage/pipeline/step.h"

namespace lfm2 {

// Pages that `positions` positions take.
constexpr int64_t pages_for(int64_t positions, int64_t page) { return (positions + page - 1) / page; }
// Positions that are ever cached of a sequence: its last token is drawn and not fed back.
constexpr int64_t cached_positions(int64_t prompt, int64_t most_new) { return prompt + most_new - 1; }

struct Sequence {
  int32_t sample = -1;         // -1: the slot is free
  int64_t prompt = 0;          // tokens
  int64_t cached = 0;          // tokens whose keys, values and states are cached
  int64_t batches = 0;         // that it was part of: its conv states change places each time
  std::vector<int32_t> pages;  // for as long as it may become
  // Whether its newest token decides the next one, and the place of that one among the drawn ones.
  bool draws() const { return cached >= prompt; }
  int64_t drawn() const { return cached - prompt; }
};

// One step as a stage computes it: host arrays, in the layout of Batch.
struct StepArrays {
  int64_t tokens = 0, singles = 0, max_length = 0;
  std::vector<int32_t> positions, offsets, sequence_of, states;
  std::vector<int32_t> page_table;  // [sequences, table_width]
  // Sequences that draw a token after this step: the row of each one's newest token, (sample, place) and slot.
  std::vector<int32_t> draw_rows, draws, draw_slots;
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

class SequenceTable {
 public:
  explicit SequenceTable(CacheShape shape);

  // Error(kSoftware) for a step that does not fit: the ranks would no longer agree.
  void apply(const Step& step, int64_t table_width, StepArrays& arrays);
  const Sequence& sequence(int32_t slot) const { return sequences_[static_cast<size_t>(slot)]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }

 private:
  Sequence& used(int32_t slot);
  void release(int32_t slot);
  void admit(const Admission& one);

  CacheShape shape_;
  std::vector<Sequence> sequences_;  // [slots]
  std::vector<int32_t> free_pages_;  // taken from the back
};

}  // namespace lfm2
