// Turns steps into sizes and positions.
#include "stage/pipeline/sequence_table.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

SequenceTable::SequenceTable(CacheShape shape, int64_t tail_length)
    : shape_(shape),
      tail_length_(tail_length),
      sequences_(static_cast<size_t>(shape.slots)),
      holders_(static_cast<size_t>(shape.pages), 0),
      free_pages_(shape.pages) {
  if (shape.window > 0) windows_.emplace(shape);
  expect(tail_length == 0 || !shape.keeps_prefixes, "SequenceTable: tails have no states at the ends of pages");
}

CachedSequence& SequenceTable::used(int32_t slot) {
  expect(slot >= 0 && slot < shape_.slots && sequences_[static_cast<size_t>(slot)].used,
         "SequenceTable: a step names a slot without a sequence");
  return sequences_[static_cast<size_t>(slot)];
}

void SequenceTable::release(int32_t slot) {
  CachedSequence& sequence = used(slot);
  for (int64_t i = sequence.first_window_page; i < sequence.end_window_page; ++i)
    windows_->release(sequence.pages[static_cast<size_t>(i)], WindowPages::After::kEnd);
  for (const int32_t page : sequence.pages)
    if (--holders_[static_cast<size_t>(page)] == 0) ++free_pages_;
  sequence = {};
}

void SequenceTable::admit(const Admission& one) {
  expect(one.slot >= 0 && one.slot < shape_.slots && !sequences_[static_cast<size_t>(one.slot)].used,
         "SequenceTable: a step fills a slot that is taken");
  CachedSequence& sequence = sequences_[static_cast<size_t>(one.slot)];
  sequence = {.used = true,
              .request = one.request,
              .prompt = one.prompt,
              .num_tokens = one.num_tokens,
              .num_computed = one.num_cached,
              .conv_state = static_cast<int32_t>(shape_.state_rows()) * one.slot,
              .drafts = 0,
              .pages = {}};
  sequence.request.rule = rule_of(one.request);
  expect(!one.request.prompt_log_probs || std::ssize(one.request.prompt) == one.prompt,
         "SequenceTable: a prompt is scored, and its tokens are not known");
  const auto prefix = static_cast<size_t>(one.num_cached / shape_.page_size);
  expect(one.num_cached == 0 || (shape_.keeps_prefixes && one.num_cached % shape_.page_size == 0 &&
                                 one.num_cached < one.num_tokens && prefix <= one.pages.size()),
         "SequenceTable: a prefix that is not whole pages");
  for (size_t i = 0; i < one.pages.size(); ++i) give_page(sequence, one.pages[i], i < prefix);
  if (windows_) {
    sequence.first_window_page = sequence.end_window_page = shape_.first_window_page(one.num_cached);
    expect(std::all_of(sequence.pages.begin() + sequence.first_window_page,
                       sequence.pages.begin() + static_cast<std::ptrdiff_t>(prefix),
                       [this](int32_t page) { return windows_->has(page); }),
           "SequenceTable: a prefix whose window is gone");
    hold_window(sequence, static_cast<int64_t>(prefix));
  }
  if (prefix > 0) sequence.conv_state = static_cast<int32_t>(shape_.first_page_row()) + sequence.pages[prefix - 1];
}

// Sequences may share only pages of their common prefix.
void SequenceTable::give_page(CachedSequence& sequence, int32_t page, bool has_prefix) {
  expect(page >= 0 && page < shape_.pages, "SequenceTable: a step names a page that does not exist");
  int32_t& holders = holders_[static_cast<size_t>(page)];
  expect(has_prefix || holders == 0, "SequenceTable: a step gives a page that another sequence has");
  if (holders++ == 0) --free_pages_;
  if (windows_ && !has_prefix) windows_->forget(page);
  sequence.pages.push_back(page);
}

// Holds the window's pages up to this one of the sequence.
void SequenceTable::hold_window(CachedSequence& sequence, int64_t end) {
  for (int64_t& i = sequence.end_window_page; i < end; ++i) windows_->hold(sequence.pages[static_cast<size_t>(i)]);
}

// Releases the pages that no token from here on reads, also if drafts turn out to be wrong.
void SequenceTable::move_window(CachedSequence& sequence) {
  const int64_t position = sequence.num_computed - std::min<int64_t>(sequence.drafts, shape_.max_drafts),
                first = std::min(shape_.first_window_page(position), sequence.end_window_page);
  for (int64_t& i = sequence.first_window_page; i < first; ++i)
    windows_->release(sequence.pages[static_cast<size_t>(i)], WindowPages::After::kPassed);
}

// Adds a row of the window's page table.
void SequenceTable::add_window(const CachedSequence& sequence, StepArrays& arrays) const {
  const auto row = static_cast<std::ptrdiff_t>(arrays.window_table.size());
  arrays.window_table.resize(arrays.page_table.size(), 0);
  for (int64_t i = sequence.first_window_page; i < sequence.end_window_page; ++i)
    arrays.window_table[static_cast<size_t>(row + i)] = windows_->of(sequence.pages[static_cast<size_t>(i)]);
}

// Reads the counted tokens of prefixes, and returns where the tokens of the step's entries begin.
SequenceTable::Counted SequenceTable::count_prefixes(const Step& step, StepArrays& arrays) const {
  StepArrays::Prefixes& prefixes = arrays.prefixes;
  auto counted = step.counted.begin();
  for (const Admission& one : step.admitted) {
    if (one.num_cached == 0 || !one.request.rule.counts()) continue;
    expect(step.counted.end() - counted >= one.num_cached, "SequenceTable: a step without the tokens that are counted");
    prefixes.ids.insert(prefixes.ids.end(), counted, counted + one.num_cached);
    counted += one.num_cached;
    prefixes.add(0, one.num_cached);
    prefixes.keepers.insert(prefixes.keepers.end(), {one.slot, one.prompt});
  }
  return counted;
}

int64_t SequenceTable::used_slots() const {
  return std::count_if(sequences_.begin(), sequences_.end(), [](const CachedSequence& one) { return one.used; });
}

void StepArrays::clear() {
  BatchArrays::clear();
  prefixes.clear();
  prefixes.ids.clear();
  counted.clear();
  edits.clear();
  next_drafts.clear();
  streamed.clear();
  scored_of.clear();
  hidden_of.clear();
  top = adjusts = constrained = false;
  drawing = 0;
  wanted_drafts.clear();
}

// If the entry feeds prompt tokens, adds the rows whose results the request asks for.
void SequenceTable::ask_prompt(const CachedSequence& sequence, const StepEntry& entry, StepArrays& arrays) {
  const int64_t first = sequence.num_computed, end = std::min(first + entry.count, sequence.prompt);
  const auto row_of = [&](int64_t position) { return static_cast<int32_t>(arrays.tokens + position - first); };
  // The row of a token gives the log-probability of the next token; after the last prompt token a token is drawn.
  if (sequence.request.prompt_log_probs && std::min(end, sequence.prompt - 1) > first) {
    const int64_t scored = std::min(end, sequence.prompt - 1) - first;
    for (int64_t position = first; position < first + scored; ++position) {
      arrays.scored_rows.push_back(row_of(position));
      arrays.targets.push_back(sequence.request.prompt[static_cast<size_t>(position) + 1]);
    }
    arrays.scored_of.push_back({entry.slot, static_cast<int32_t>(scored)});
    arrays.top |= sequence.request.num_top_logprobs > 0;
  }
  if (sequence.request.hidden == Hidden::kNone) return;
  const int64_t from = sequence.request.hidden == Hidden::kMean ? first : std::max(first, sequence.prompt - 1);
  for (int64_t position = from; position < end; ++position) arrays.hidden_rows.push_back(row_of(position));
  if (from < end) arrays.hidden_of.push_back({entry.slot, static_cast<int32_t>(end - from)});
}

// If rows of prompts are results, all tokens are kept. A sequence with only its tail in this step continues from its
// states. A tail that follows other tokens of this step begins like a sample, because the cached states belong to
// earlier tokens.
void SequenceTable::prune_tokens(StepArrays& arrays) const {
  if (tail_length_ == 0 || !arrays.scored_rows.empty() || !arrays.hidden_rows.empty()) return;
  const auto length = [&](size_t sequence) { return arrays.offsets[sequence + 1] - arrays.offsets[sequence]; };
  const auto sequences = static_cast<size_t>(arrays.sequences());
  int64_t longest = 0;
  for (size_t i = 0; i < sequences; ++i) longest = std::max<int64_t>(longest, length(i));
  if (longest <= tail_length_) return;
  StepArrays::Tails& tails = arrays.tails;
  for (size_t i = 0; i < sequences; ++i) {
    const int64_t kept = std::min<int64_t>(length(i), tail_length_);
    const int32_t first = kept < length(i) ? 0 : arrays.positions[static_cast<size_t>(arrays.offsets[i])];
    arrays.keep_tail(static_cast<int64_t>(i), kept, first);
    tails.sequence_of.resize(tails.rows.size(), static_cast<int32_t>(i));
  }
  for (int32_t& row : arrays.last_rows) {  // each is the last one of its sequence
    const int32_t sequence = arrays.sequence_of[static_cast<size_t>(row)];
    row = tails.offsets[static_cast<size_t>(sequence) + 1] - 1;
  }
}

// The row of a sequence slot's ring that lies `forward` rows after this one. After the row of a page, the first
// follows.
int32_t SequenceTable::state_row(int32_t slot, int32_t row, int64_t forward) const {
  const int64_t rows = shape_.state_rows(), first = rows * slot;
  const int64_t at = row >= first && row < first + rows ? row - first : rows - 1;
  return static_cast<int32_t>(first + (at + forward + rows) % rows);
}

// Forgets the rejected tokens of the sequence's newest block. The others become text, which a rule counts. Returns
// where the tokens that the entry counts begin.
SequenceTable::Counted SequenceTable::go_back(const StepEntry& entry, Counted counted, Counted end,
                                              StepArrays& arrays) {
  CachedSequence& sequence = used(entry.slot);
  const int32_t right = sequence.drafts - entry.rejected;
  expect(entry.rejected >= 0 && right >= 0 && entry.rejected <= shape_.max_drafts &&
             (!entry.streamed() || entry.rejected == 0),
         "SequenceTable: a step rejects more tokens than were drafts");
  if (entry.streamed()) return counted;
  if (entry.rejected > 0) sequence.conv_state = state_row(entry.slot, sequence.conv_state, -entry.rejected);
  sequence.num_computed -= entry.rejected;
  sequence.drafts = 0;
  if (right == 0 || !sequence.request.rule.counts()) return counted;
  expect(end - counted >= right, "SequenceTable: a step without the tokens that are counted");
  StepArrays::Prefixes& prefixes = arrays.prefixes;
  prefixes.ids.insert(prefixes.ids.end(), counted, counted + right);
  prefixes.add(sequence.num_computed - right, right);
  prefixes.keepers.insert(prefixes.keepers.end(), {entry.slot, static_cast<int32_t>(sequence.prompt)});
  return counted + right;
}

// The draw after the token that is then the sequence's newest of `computed` ones.
void SequenceTable::add_draw(const CachedSequence& sequence, int32_t slot, int64_t computed, StepArrays& arrays) {
  const auto place = static_cast<int32_t>(computed - sequence.prompt);
  const SamplingRule& rule = sequence.request.rule;
  arrays.last_rows.push_back(static_cast<int32_t>(arrays.tokens - 1));
  arrays.draws.insert(arrays.draws.end(), {sequence.request.rng_stream, place});
  arrays.draw_slots.push_back(slot);
  arrays.draw_rules.push_back(rule);
  arrays.top |= sequence.request.num_top_logprobs > 0;
  arrays.adjusts |= rule.adjusts(place);
  arrays.constrained |= rule.constrained != 0;
}

// Adds the entry's tokens: as one sequence of the batch or, of a block, each row as a sequence with one token.
void SequenceTable::add_rows(const CachedSequence& sequence, const StepEntry& entry, std::span<const int32_t> drafts,
                             StepArrays& arrays) const {
  const int64_t rows = entry.rows(), of_row = std::max(1, entry.own()), first = arrays.tokens;
  const int32_t slot = sequence.request.rule.counts() ? entry.slot : -1;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t past = sequence.num_computed + row;
    // A draft is counted persistently only once it is known to be right.
    arrays.keepers.insert(arrays.keepers.end(), {row == 0 ? slot : -1, static_cast<int32_t>(sequence.prompt)});
    arrays.add_cached(past, of_row, sequence.pages, sequence.conv_state,
                      state_row(entry.slot, sequence.conv_state, row + 1),
                      shape_.max_drafts > 0 ? std::optional(static_cast<int32_t>(row)) : std::nullopt);
    if (windows_) add_window(sequence, arrays);
    if (past + of_row < sequence.num_tokens) continue;
    add_draw(sequence, entry.slot, past + of_row, arrays);
    arrays.next_drafts.push_back(row + 1 < rows ? drafts[static_cast<size_t>(row)] : -1);
    arrays.streamed.push_back(entry.streamed() ? drafts.front() : -1);
    if (shape_.max_drafts > 0)
      arrays.drafted.insert(arrays.drafted.end(),
                            {static_cast<int32_t>(first + of_row), static_cast<int32_t>(first + of_row + row)});
  }
}

void SequenceTable::apply(const Step& step, int64_t table_width, StepArrays& arrays) {
  for (const int32_t slot : step.released) release(slot);
  for (const Admission& one : step.admitted) admit(one);
  for (const AddedPage& one : step.added) give_page(used(one.slot), one.page, false);
  arrays.clear();
  arrays.table_width = table_width;
  for (const Admission& one : step.admitted)
    if (std::vector<LogitEdit> edits = edits_of(one.request); !edits.empty())
      arrays.edits.emplace_back(one.slot, std::move(edits));
  Counted counted = count_prefixes(step, arrays);
  std::span<const int32_t> drafts = step.drafts;
  arrays.page_table.reserve((step.entries.size() + drafts.size()) * static_cast<size_t>(table_width));
  for (const StepEntry& entry : step.entries) {
    CachedSequence& sequence = used(entry.slot);
    counted = go_back(entry, counted, step.counted.end(), arrays);
    const int64_t end = sequence.num_computed + entry.count;
    const int32_t own = entry.own();
    expect(entry.count > 0, "SequenceTable: an entry without tokens");
    expect(entry.drafts >= 0 && entry.drafts <= std::min<int64_t>(shape_.max_drafts, std::ssize(drafts)) &&
               (entry.drafts == 0 || (own <= 1 && own >= 0 && sequence.draws())) &&
               (!entry.streamed() || (entry.drafts == 1 && !sequence.request.rule.counts())),
           "SequenceTable: drafts that do not follow a sequence's newest token");
    const auto pages = static_cast<int64_t>(sequence.pages.size());
    expect(pages >= pages_for(end, shape_.page_size), "SequenceTable: a sequence without the pages that it needs");
    expect(pages <= table_width, "SequenceTable: a sequence grows beyond the longest one");
    if (windows_) {
      move_window(sequence);
      hold_window(sequence, pages_for(end, shape_.page_size));
    }
    const std::span<const int32_t> guessed = drafts.first(static_cast<size_t>(entry.drafts));
    drafts = drafts.subspan(guessed.size());
    if (sequence.request.rule.counts()) {
      expect(step.counted.end() - counted >= own, "SequenceTable: a step without the tokens that are counted");
      arrays.counted.resize(static_cast<size_t>(arrays.tokens), 0);
      arrays.counted.insert(arrays.counted.end(), counted, counted + own);
      arrays.counted.insert(arrays.counted.end(), guessed.begin(), guessed.end());
      counted += own;
    }
    ask_prompt(sequence, entry, arrays);
    const size_t draws = arrays.draw_slots.size();
    add_rows(sequence, entry, guessed, arrays);
    if (arrays.draw_slots.size() > draws) {
      const int64_t position = sequence.num_computed + std::max(1, own);
      if (entry.wants_drafts) arrays.wanted_drafts.push_back({arrays.drawing, entry.slot, position});
      ++arrays.drawing;
    }
    sequence.conv_state = arrays.states.back();
    sequence.num_computed = end;
    sequence.drafts = entry.streamed() ? sequence.drafts + 1 : entry.drafts;
  }
  // Only now: all tokens of the step find their pages.
  if (windows_)
    for (const StepEntry& entry : step.entries) move_window(used(entry.slot));
  expect(counted == step.counted.end() && drafts.empty(),
         "SequenceTable: a step with more counted tokens or drafts than its entries have");
  if (!arrays.counted.empty()) arrays.counted.resize(static_cast<size_t>(arrays.tokens), 0);
  prune_tokens(arrays);
}

}  // namespace lfm2
