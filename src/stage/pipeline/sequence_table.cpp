// Turns steps into sizes, positions and pages.
#include "stage/pipeline/sequence_table.h"

#include <algorithm>

#include "kernels/error.h"

namespace lfm2 {

SequenceTable::SequenceTable(CacheShape shape) : shape_(shape), sequences_(static_cast<size_t>(shape.slots)) {
  for (int64_t page = shape.pages; page-- > 0;) free_pages_.push_back(static_cast<int32_t>(page));
}

Sequence& SequenceTable::used(int32_t slot) {
  expect(slot >= 0 && slot < shape_.slots && sequences_[static_cast<size_t>(slot)].sample >= 0,
         "SequenceTable: a step names a slot without a sequence");
  return sequences_[static_cast<size_t>(slot)];
}

void SequenceTable::release(int32_t slot) {
  Sequence& sequence = used(slot);
  free_pages_.insert(free_pages_.end(), sequence.pages.rbegin(), sequence.pages.rend());
  sequence = {};
}

void SequenceTable::admit(const Admission& one) {
  expect(one.slot >= 0 && one.slot < shape_.slots && sequences_[static_cast<size_t>(one.slot)].sample < 0,
         "SequenceTable: a step fills a slot that is taken");
  Sequence& sequence = sequences_[static_cast<size_t>(one.slot)];
  sequence = {.draw = one.draw,
              .sample = one.sample,
              .prompt = one.prompt,
              .known = one.known,
              .rule = one.rule,
              .likeliest = one.likeliest,
              .prompt_log_probs = one.prompt_log_probs,
              .hidden = one.hidden,
              .prompt_ids = one.prompt_ids,
              .pages = {}};
  expect(!one.prompt_log_probs || std::ssize(one.prompt_ids) == one.prompt,
         "SequenceTable: a prompt is scored, and its tokens are not known");
  take_pages(sequence, one.known);
}

// Gives the sequence as many pages as `positions` positions need in all.
void SequenceTable::take_pages(Sequence& sequence, int64_t positions) {
  while (static_cast<int64_t>(sequence.pages.size()) < pages_for(positions, shape_.page)) {
    expect(!free_pages_.empty(), "SequenceTable: a step takes more pages than there are");
    sequence.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
}

int64_t SequenceTable::used_slots() const {
  return std::count_if(sequences_.begin(), sequences_.end(), [](const Sequence& one) { return one.sample >= 0; });
}

void StepArrays::clear() {
  tokens = singles = max_length = 0;
  top = adjusts = false;
  for (auto* list : {&positions, &offsets, &sequence_of, &states, &page_table, &draw_rows, &draws, &draw_slots,
                     &counted, &keepers, &scored_rows, &targets, &hidden_rows})
    list->clear();
  for (auto* list : {&scored_of, &hidden_of}) list->clear();
  draw_rules.clear();
  edits.clear();
}

// Adds the rows of the entry that are asked for, where it feeds tokens of a prompt.
void SequenceTable::ask_prompt(const Sequence& sequence, const StepEntry& entry, StepArrays& arrays) {
  const int64_t first = sequence.cached, end = std::min(first + entry.count, sequence.prompt);
  const auto row_of = [&](int64_t position) { return static_cast<int32_t>(arrays.tokens + position - first); };
  // The row of a token says how likely the next one is; behind the last one of the prompt a token is drawn.
  if (sequence.prompt_log_probs && std::min(end, sequence.prompt - 1) > first) {
    const int64_t scored = std::min(end, sequence.prompt - 1) - first;
    for (int64_t position = first; position < first + scored; ++position) {
      arrays.scored_rows.push_back(row_of(position));
      arrays.targets.push_back(sequence.prompt_ids[static_cast<size_t>(position) + 1]);
    }
    arrays.scored_of.push_back({entry.slot, static_cast<int32_t>(scored)});
    arrays.top |= sequence.likeliest > 0;
  }
  if (sequence.hidden == Hidden::kNone) return;
  const int64_t from = sequence.hidden == Hidden::kMean ? first : std::max(first, sequence.prompt - 1);
  for (int64_t position = from; position < end; ++position) arrays.hidden_rows.push_back(row_of(position));
  if (from < end) arrays.hidden_of.push_back({entry.slot, static_cast<int32_t>(end - from)});
}

void SequenceTable::apply(const Step& step, int64_t table_width, StepArrays& arrays) {
  for (const int32_t slot : step.released) release(slot);
  for (const Admission& one : step.admitted) admit(one);
  arrays.clear();
  for (const Admission& one : step.admitted)
    if (!one.edits.empty()) arrays.edits.emplace_back(one.slot, one.edits);
  auto counted = step.counted.begin();
  arrays.offsets.push_back(0);
  arrays.page_table.reserve(step.entries.size() * static_cast<size_t>(table_width));
  for (const StepEntry& entry : step.entries) {
    Sequence& sequence = used(entry.slot);
    expect(entry.count > 0, "SequenceTable: an entry without tokens");
    const int64_t end = sequence.cached + entry.count;
    take_pages(sequence, end);
    const auto pages = static_cast<int64_t>(sequence.pages.size());
    expect(pages <= table_width, "SequenceTable: a sequence grows beyond the longest one");
    const auto index = static_cast<int32_t>(arrays.sequences());
    if (entry.count == 1 && arrays.singles == index) ++arrays.singles;
    for (int64_t position = sequence.cached; position < end; ++position) {
      arrays.positions.push_back(static_cast<int32_t>(position));
      arrays.sequence_of.push_back(index);
    }
    arrays.page_table.insert(arrays.page_table.end(), sequence.pages.begin(), sequence.pages.end());
    arrays.page_table.resize(arrays.page_table.size() + static_cast<size_t>(table_width - pages), 0);
    arrays.keepers.insert(arrays.keepers.end(),
                          {sequence.rule.counts() ? entry.slot : -1, static_cast<int32_t>(sequence.prompt)});
    if (sequence.rule.counts()) {
      expect(step.counted.end() - counted >= entry.count, "SequenceTable: a step without the tokens that are counted");
      arrays.counted.resize(static_cast<size_t>(arrays.tokens), 0);
      arrays.counted.insert(arrays.counted.end(), counted, counted + entry.count);
      counted += entry.count;
    }
    ask_prompt(sequence, entry, arrays);
    const auto even = static_cast<int32_t>(sequence.steps % 2);
    arrays.states.insert(arrays.states.end(), {2 * entry.slot + even, 2 * entry.slot + 1 - even});
    ++sequence.steps;
    sequence.cached = end;
    arrays.tokens += entry.count;
    arrays.offsets.push_back(static_cast<int32_t>(arrays.tokens));
    arrays.max_length = std::max(arrays.max_length, end);
    if (!sequence.draws()) continue;
    arrays.draw_rows.push_back(static_cast<int32_t>(arrays.tokens - 1));
    arrays.draws.insert(arrays.draws.end(), {sequence.draw, static_cast<int32_t>(sequence.drawn())});
    arrays.draw_slots.push_back(entry.slot);
    arrays.draw_rules.push_back(sequence.rule);
    arrays.top |= sequence.likeliest > 0;
    arrays.adjusts |= sequence.rule.adjusts(static_cast<int32_t>(sequence.drawn()));
  }
  expect(counted == step.counted.end(), "SequenceTable: a step with more counted tokens than its entries have");
}

}  // namespace lfm2
