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

// The step computes the next `count` tokens of the sequence in the sequence slot `slot`.
struct StepEntry {
  int32_t slot = 0, count = 0;
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
  std::vector<StepEntry> entries = {};  // entries of one token come first; empty: nothing is computed
  // The tokens that rules count: first the cached prefixes of admitted sequences, in the order of admissions, then the
  // tokens of the entries, in order.
  std::vector<int32_t> counted = {};
  bool end = false;  // whether the run is over
  bool operator==(const Step&) const = default;
};

// See base/words.h.
void for_each_field(MaybeConst<Admission> auto& one, const auto& each) {
  each(one.slot, one.prompt, one.num_tokens, one.num_cached, one.request, one.pages);
}
void for_each_field(MaybeConst<StepEntry> auto& one, const auto& each) { each(one.slot, one.count); }
void for_each_field(MaybeConst<AddedPage> auto& one, const auto& each) { each(one.slot, one.page); }
void for_each_field(MaybeConst<Step> auto& step, const auto& each) {
  each(step.released, step.dropped, step.admitted, step.added, step.entries, step.counted, step.end);
}

}  // namespace lfm2
