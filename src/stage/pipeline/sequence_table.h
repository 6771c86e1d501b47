// The sequences of a generation: their sequence slots, pages and lengths. Every rank keeps a table and applies every
// step to it in the same order, so the tables of all ranks agree without being compared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "stage/model/caches.h"
#include "stage/pipeline/batch_arrays.h"
#include "stage/pipeline/step.h"
#include "stage/pipeline/window_pages.h"

namespace lfm2 {

// The number of positions that a sequence has in the caches at its end: its last token is drawn and never fed.
constexpr int64_t cached_positions(int64_t prompt, int64_t max_new) { return prompt + max_new - 1; }

struct CachedSequence {
  bool used = false;         // whether the sequence slot is in use
  Request request;           // from its admission, with the complete rule: see rule_of()
  int64_t prompt = 0;        // tokens of the prompt
  int64_t num_tokens = 0;    // tokens to compute before the next one is drawn: see Admission
  int64_t num_computed = 0;  // tokens whose keys, values and states are cached
  // The row of convolution states after its newest computed token, or of the page from which it continues. Each step
  // reads this row and writes following rows of the sequence's own ring.
  int32_t conv_state = 0;
  int32_t drafts = 0;          // the number of the newest computed tokens that may be wrong drafts
  std::vector<int32_t> pages;  // at first enough for num_tokens, then one more whenever the last one is full
  int64_t first_window_page = 0, end_window_page = 0;  // those of `pages` that layers with a window hold
  // Whether the newest computed token draws the next one, and how many were drawn before that.
  bool draws() const { return num_computed >= num_tokens; }
  int64_t drawn() const { return num_computed - prompt; }
};

// The arrays of one step on the host, and further facts about it.
struct StepArrays : BatchArrays {
  // For rules that adjust logits: the tokens to count, [tokens], 0 for sequences that do not count, empty if none
  // counts; and the edits of new sequences, by sequence slot.
  std::vector<int32_t> counted;
  std::vector<std::pair<int32_t, std::vector<LogitEdit>>> edits;
  // For each of last_rows: the draft that the next row of the same block feeds, -1: none follows; and the draft that
  // the row itself feeds if it is streamed, else -1.
  std::vector<int32_t> next_drafts, streamed;
  // The sequences that draw, a block counting as one, and those of them that want drafts: their index among these, and
  // the position of the token that they draw first.
  int32_t drawing = 0;
  struct WantedDrafts {
    int32_t drawing = 0, slot = 0;
    int64_t position = 0;
  };
  std::vector<WantedDrafts> wanted_drafts;
  // Tokens that sequences count before those of the step, as a separate batch: cached prefixes of new sequences, and
  // drafts of earlier steps that were right.
  struct Prefixes : BatchArrays {
    std::vector<int32_t> ids;
  } prefixes;
  // The sequences of scored_rows and hidden_rows, each with its number of rows.
  std::vector<StepEntry> scored_of, hidden_of;
  bool top = false;          // whether any sequence with rows here asks for top logprobs
  bool adjusts = false;      // whether any token is drawn from adjusted logits
  bool constrained = false;  // whether a token is drawn under a mask
  void clear();
};

class SequenceTable {
 public:
  // The last `tail_length` tokens of each sequence in a step continue after the last attention layer; 0: all. Only
  // without a prefix cache, which needs the states at ends of pages.
  explicit SequenceTable(CacheShape shape, int64_t tail_length = 0);

  // Applies a step and fills `arrays` for it. Error(kSoftware) for a step that contradicts the table.
  void apply(const Step& step, int64_t table_width, StepArrays& arrays);
  const CachedSequence& sequence(int32_t slot) const { return sequences_[static_cast<size_t>(slot)]; }
  int64_t free_pages() const { return free_pages_; }  // pages that no sequence holds
  int64_t used_slots() const;
  const WindowPages* windows() const { return windows_ ? &*windows_ : nullptr; }  // null: no layer gives pages back

 private:
  using Counted = std::vector<int32_t>::const_iterator;  // a place in Step::counted
  CachedSequence& used(int32_t slot);
  void give_page(CachedSequence& sequence, int32_t page, bool has_prefix);
  void hold_window(CachedSequence& sequence, int64_t end);
  void move_window(CachedSequence& sequence);
  void add_window(const CachedSequence& sequence, StepArrays& arrays) const;
  static void ask_prompt(const CachedSequence& sequence, const StepEntry& entry, StepArrays& arrays);
  void release(int32_t slot);
  void admit(const Admission& one);
  int32_t state_row(int32_t slot, int32_t row, int64_t forward) const;
  Counted count_prefixes(const Step& step, StepArrays& arrays) const;
  Counted go_back(const StepEntry& entry, Counted counted, Counted end, StepArrays& arrays);
  void add_rows(const CachedSequence& sequence, const StepEntry& entry, std::span<const int32_t> drafts,
                StepArrays& arrays) const;
  static void add_draw(const CachedSequence& sequence, int32_t slot, int64_t computed, StepArrays& arrays);
  void prune_tokens(StepArrays& arrays) const;

  CacheShape shape_;
  int64_t tail_length_;
  std::vector<CachedSequence> sequences_;  // [slots]
  std::vector<int32_t> holders_;           // [pages]: how many sequences hold each page
  int64_t free_pages_;
  std::optional<WindowPages> windows_;
};

}  // namespace lfm2
