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
  expect(tail_length == 0 || !shape.keeps_prefixes, "SequenceTable: tails have no states at the ends of pages");
}

CachedSequence& SequenceTable::used(int32_t slot) {
  expect(slot >= 0 && slot < shape_.slots && sequences_[static_cast<size_t>(slot)].used,
         "SequenceTable: a step names a slot without a sequence");
  return sequences_[static_cast<size_t>(slot)];
}

void SequenceTable::release(int32_t slot) {
  CachedSequence& sequence = used(slot);
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
              .conv_state = 2 * one.slot,
              .pages = {}};
  sequence.request.rule = rule_of(one.request);
  expect(!one.request.prompt_log_probs || std::ssize(one.request.prompt) == one.prompt,
         "SequenceTable: a prompt is scored, and its tokens are not known");
  const auto prefix = static_cast<size_t>(one.num_cached / shape_.page_size);
  expect(one.num_cached == 0 || (shape_.keeps_prefixes && one.num_cached % shape_.page_size == 0 &&
                                 one.num_cached < one.num_tokens && prefix <= one.pages.size()),
         "SequenceTable: a prefix that is not whole pages");
  for (size_t i = 0; i < one.pages.size(); ++i) give_page(sequence, one.pages[i], i < prefix);
  if (prefix > 0) sequence.conv_state = static_cast<int32_t>(shape_.first_page_row()) + sequence.pages[prefix - 1];
}

// Sequences may share only pages of their common prefix.
void SequenceTable::give_page(CachedSequence& sequence, int32_t page, bool has_prefix) {
  expect(page >= 0 && page < shape_.pages, "SequenceTable: a step names a page that does not exist");
  int32_t& holders = holders_[static_cast<size_t>(page)];
  expect(has_prefix || holders == 0, "SequenceTable: a step gives a page that another sequence has");
  if (holders++ == 0) --free_pages_;
  sequence.pages.push_back(page);
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
  scored_of.clear();
  hidden_of.clear();
  top = adjusts = constrained = false;
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
  arrays.page_table.reserve(step.entries.size() * static_cast<size_t>(table_width));
  for (const StepEntry& entry : step.entries) {
    CachedSequence& sequence = used(entry.slot);
    expect(entry.count > 0, "SequenceTable: an entry without tokens");
    const int64_t end = sequence.num_computed + entry.count;
    const auto pages = static_cast<int64_t>(sequence.pages.size());
    expect(pages >= pages_for(end, shape_.page_size), "SequenceTable: a sequence without the pages that it needs");
    expect(pages <= table_width, "SequenceTable: a sequence grows beyond the longest one");
    arrays.keepers.insert(arrays.keepers.end(),
                          {sequence.request.rule.counts() ? entry.slot : -1, static_cast<int32_t>(sequence.prompt)});
    if (sequence.request.rule.counts()) {
      expect(step.counted.end() - counted >= entry.count, "SequenceTable: a step without the tokens that are counted");
      arrays.counted.resize(static_cast<size_t>(arrays.tokens), 0);
      arrays.counted.insert(arrays.counted.end(), counted, counted + entry.count);
      counted += entry.count;
    }
    ask_prompt(sequence, entry, arrays);
    const int32_t after = sequence.conv_state == 2 * entry.slot ? 2 * entry.slot + 1 : 2 * entry.slot;
    arrays.add_cached(sequence.num_computed, entry.count, sequence.pages, sequence.conv_state, after);
    sequence.conv_state = after;
    sequence.num_computed = end;
    if (!sequence.draws()) continue;
    arrays.last_rows.push_back(static_cast<int32_t>(arrays.tokens - 1));
    arrays.draws.insert(arrays.draws.end(), {sequence.request.rng_stream, static_cast<int32_t>(sequence.drawn())});
    arrays.draw_slots.push_back(entry.slot);
    arrays.draw_rules.push_back(sequence.request.rule);
    arrays.top |= sequence.request.num_top_logprobs > 0;
    arrays.adjusts |= sequence.request.rule.adjusts(static_cast<int32_t>(sequence.drawn()));
    arrays.constrained |= sequence.request.rule.constrained != 0;
  }
  expect(counted == step.counted.end(), "SequenceTable: a step with more counted tokens than its entries have");
  if (!arrays.counted.empty()) arrays.counted.resize(static_cast<size_t>(arrays.tokens), 0);
  prune_tokens(arrays);
}

}  // namespace lfm2
