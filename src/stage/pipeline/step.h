// The message that the first stage sends to every stage before each step of a generation: which sequences join and
// leave, how many tokens of each come next, and which cache pages they get. Sizes and positions follow from it
// (SequenceTable). Only the first stage has the tokens themselves, except those that a rule counts.
#pragma once

#include <cstdint>
#include <vector>

#include "stage/pipeline/request.h"

namespace lfm2 {

// A sequence enters the sequence slot `slot`. `num_tokens` tokens are computed before the next one is drawn: the prompt
// and, after a preemption, the tokens drawn so far. The first `num_cached` of them are already in the prefix cache, as
// whole pages.
struct Admission {
  int32_t slot = 0, prompt = 0, num_tokens = 0, num_cached = 0;  // `prompt`: its number of tokens
  // Contains the prompt only if its log-probabilities are results or the completion repeats it. After a preemption that
  // follows the first token, it no longer asks for results of the prompt.
  Request request = {};
  std::vector<int32_t> pages = {};  // enough for num_tokens; pages of the prefix cache come first
  bool operator==(const Admission&) const = default;
};

// The step computes the next `count` tokens of the sequence in the sequence slot `slot`. The last `drafts` of them are
// drafts: guesses of the tokens that follow the first one. With drafts the entry is a block of 1 + drafts rows, each of
// which draws a token. An entry of one draft alone is streamed: it follows a token, or another draft, of an earlier
// step that has not returned. Before an entry that is not streamed, the sequence goes back by its last `rejected`
// tokens, which were wrong drafts.
struct StepEntry {
  int32_t slot = 0, count = 0, drafts = 0, rejected = 0;
  bool wants_drafts = false;  // whether the last stage shall make drafts after the token that the entry draws
  int32_t own() const { return count - drafts; }  // tokens that are no drafts
  bool streamed() const { return own() == 0; }
  int32_t rows() const { return streamed() ? 1 : 1 + drafts; }  // sequences of the batch
  bool operator==(const StepEntry&) const = default;
};

// The sequence in the sequence slot `slot` gets one more page.
struct AddedPage {
  int32_t slot = 0, page = 0;
  bool operator==(const AddedPage&) const = default;
};

struct Step {
  std::vector<int32_t> released = {};  // sequence slots that become free
  std::vector<int32_t> dropped = {};   // cancelled samples, which no later message names
  std::vector<Admission> admitted = {};
  std::vector<AddedPage> added = {};
  std::vector<StepEntry> entries = {};  // entries of one token and blocks come first; empty: nothing is computed
  std::vector<int32_t> drafts = {};     // of the entries, in order.
  // The tokens that rules count: first the cached prefixes of admitted sequences, in the order of admissions. Then come
  // those of the entries, in order: the drafts of the sequence's newest block that were right, and the entry's tokens
  // that are no drafts.
  std::vector<int32_t> counted = {};
  bool end = false;  // whether the run is over
  bool operator==(const Step&) const = default;
};

// See base/words.h.
void for_each_field(MaybeConst<Admission> auto& one, const auto& each) {
  each(one.slot, one.prompt, one.num_tokens, one.num_cached, one.request, one.pages);
}
void for_each_field(MaybeConst<StepEntry> auto& one, const auto& each) {
  each(one.slot, one.count, one.drafts, one.rejected, one.wants_drafts);
}
void for_each_field(MaybeConst<AddedPage> auto& one, const auto& each) { each(one.slot, one.page); }
void for_each_field(MaybeConst<Step> auto& step, const auto& each) {
  each(step.released, step.dropped, step.admitted, step.added, step.entries, step.drafts, step.counted, step.end);
}

}  // namespace lfm2
