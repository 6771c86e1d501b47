// The sequences of a generation: their sequence slots, pages and lengths. Every rank keeps a table and applies every
// step to it in the same order, so the tables of all ranks agree without being compared.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "stage/model/caches.h"
#include "stage/pipeline/step.h"

namespace lfm2 {

// The number of pages that hold `positions` positions.
constexpr int64_t pages_for(int64_t positions, int64_t page) { return (positions + page - 1) / page; }
// The number of positions that a sequence has in the caches at its end: its last token is drawn and not fed back.
constexpr int64_t cached_positions(int64_t prompt, int64_t max_new) { return prompt + max_new - 1; }

struct Sequence {
  bool used = false;   // whether the sequence slot has one
  Request request;     // as its admission has it, but with the whole rule: see rule_of()
  int64_t prompt = 0;  // tokens of the prompt
  int64_t known = 0;   // tokens that are fed before the next one is drawn: see Admission
  int64_t cached = 0;  // tokens whose keys, values and states are cached
  // The row of convolution states that its newest step wrote, or of the page from which it goes on. Each step reads it
  // and writes one of the sequence's own two rows.
  int32_t conv_state = 0;
  std::vector<int32_t> pages;  // enough for its known tokens at first, then one more whenever the last one is full
  // Whether a token is drawn after the newest one that was fed, and how many were drawn before it.
  bool draws() const { return cached >= known; }
  int64_t drawn() const { return cached - prompt; }
};

// The arrays of one step on the host, in the layout of Batch.
struct StepArrays {
  int64_t tokens = 0, singles = 0, max_length = 0;
  std::vector<int32_t> positions, offsets, sequence_of, states;
  std::vector<int32_t> page_table;  // [sequences, table_width]
  // Of each sequence that draws a token after this step: the row of its newest token, (Request::draw, number of tokens
  // drawn before), sequence slot and sampling rule.
  std::vector<int32_t> draw_rows, draws, draw_slots;
  std::vector<SamplingRule> draw_rules;
  // For rules that adjust logits: the tokens of sequences that count them, [tokens], empty where none does, 0 for those
  // of others; [sequences, 2], see Ops::count_tokens; and the edits of sequences that begin, by their sequence slots.
  std::vector<int32_t> counted, keepers;
  std::vector<std::pair<int32_t, std::vector<LogitEdit>>> edits;
  // The tokens that sequences begin with from the prefix cache and that their rules count, as a batch of their own.
  struct Prefixes {
    std::vector<int32_t> ids, positions, offsets, keepers;
  } prefixes;
  // What is asked about prompts: the rows in front of the tokens that are scored, and these tokens; the rows whose
  // hidden states are wanted; and whose each of them are, so many rows for each sequence.
  std::vector<int32_t> scored_rows, targets, hidden_rows;
  std::vector<StepEntry> scored_of, hidden_of;
  bool top = false;      // whether a sequence with rows here asks for the likeliest tokens
  bool adjusts = false;  // whether a token is drawn from adjusted logits
  // The tokens that go on behind the last attention layer, as a batch of their own with the same sequences: see Tail of
  // model/stage.h. `rows` are theirs in the whole step; draw_rows count among these. Empty where all tokens go on.
  struct Tails {
    std::vector<int32_t> rows, positions, offsets, sequence_of;
    int64_t tokens() const { return static_cast<int64_t>(rows.size()); }
  } tails;
  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
  bool cut() const { return tails.tokens() > 0; }
  // The tokens behind the last attention layer.
  int64_t tokens_left() const { return cut() ? tails.tokens() : tokens; }
  void clear();
};

class SequenceTable {
 public:
  // Of each sequence's part of a step, the last `tail_length` tokens go on behind the last attention layer; 0: all.
  // Only where no states at the ends of pages are kept.
  explicit SequenceTable(CacheShape shape, int64_t tail_length = 0);

  // Applies a step and fills `arrays` for it. Error(kSoftware) for a step that contradicts the table, because the
  // tables of the ranks would no longer agree.
  void apply(const Step& step, int64_t table_width, StepArrays& arrays);
  const Sequence& sequence(int32_t slot) const { return sequences_[static_cast<size_t>(slot)]; }
  int64_t free_pages() const { return free_pages_; }  // pages that no sequence has
  int64_t used_slots() const;

 private:
  using Counted = std::vector<int32_t>::const_iterator;  // a place in Step::counted
  Sequence& used(int32_t slot);
  void give_page(Sequence& sequence, int32_t page, bool has_prefix);
  static void ask_prompt(const Sequence& sequence, const StepEntry& entry, StepArrays& arrays);
  void release(int32_t slot);
  void admit(const Admission& one);
  Counted count_prefixes(const Step& step, StepArrays& arrays) const;
  void cut_tails(StepArrays& arrays) const;

  CacheShape shape_;
  int64_t tail_length_;
  std::vector<Sequence> sequences_;  // [slots]
  std::vector<int32_t> holders_;     // [pages]: how many sequences have each page
  int64_t free_pages_;
};

}  // namespace lfm2
