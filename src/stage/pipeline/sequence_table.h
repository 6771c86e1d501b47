// The sequences of a generation: their slots, pages and lengths. Every rank keeps a table and applies every step to it
// in the same order, so the tables of all ranks agree without being compared.
#pragma once

#include <cstdint>
#include <vector>

#include "stage/model/caches.h"
#include "stage/pipeline/step.h"

namespace lfm2 {

// Pages that `positions` positions take.
constexpr int64_t pages_for(int64_t positions, int64_t page) { return (positions + page - 1) / page; }
// Positions that are ever cached of a sequence: its last token is drawn and not fed back.
constexpr int64_t cached_positions(int64_t prompt, int64_t max_new) { return prompt + max_new - 1; }

struct Sequence {
  int32_t sample = -1;  // -1: the slot is free
  int64_t prompt = 0;   // tokens
  int64_t known = 0;    // tokens that are fed before the next one is drawn: see Admission
  int64_t cached = 0;   // tokens whose keys, values and states are cached
  int64_t steps = 0;    // that the sequence was part of: its conv states change places each time
  SamplingRule rule;
  std::vector<int32_t> pages;  // for the known tokens at first, then one whenever the last one is full
  // Whether the sequence's newest token decides the next one, and the place of that one behind the prompt.
  bool draws() const { return cached >= known; }
  int64_t drawn() const { return cached - prompt; }
};

// One step as a stage computes it: host arrays, in the layout of Batch.
struct StepArrays {
  int64_t tokens = 0, singles = 0, max_length = 0;
  std::vector<int32_t> positions, offsets, sequence_of, states;
  std::vector<int32_t> page_table;  // [sequences, table_width]
  // Sequences that draw a token after this step: the row of each one's newest token, (sample, place), slot and rule.
  std::vector<int32_t> draw_rows, draws, draw_slots;
  std::vector<SamplingRule> draw_rules;
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

class SequenceTable {
 public:
  explicit SequenceTable(CacheShape shape);

  // Error(kSoftware) for a step that does not fit: the ranks would no longer agree.
  void apply(const Step& step, int64_t table_width, StepArrays& arrays);
  const Sequence& sequence(int32_t slot) const { return sequences_[static_cast<size_t>(slot)]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t used_slots() const;

 private:
  Sequence& used(int32_t slot);
  void take_pages(Sequence& sequence, int64_t positions);
  void release(int32_t slot);
  void admit(const Admission& one);

  CacheShape shape_;
  std::vector<Sequence> sequences_;  // [slots]
  std::vector<int32_t> free_pages_;  // taken from the back
};

}  // namespace lfm2
