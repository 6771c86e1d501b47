// The message that the first stage sends to every stage before each step of a generation: which sequences join, which
// leave, how many tokens of which sequences come next, and which pages of the caches they have. Sizes and positions
// follow from it (SequenceTable). Only the first stage knows the tokens themselves, but for those that a rule counts.
#pragma once

#include <cstdint>
#include <vector>

#include "stage/pipeline/request.h"

namespace lfm2 {

// A sequence enters the sequence slot `slot`. `num_tokens` tokens are computed before the next one is drawn: the
// prompt, and for a sequence that was preempted also the tokens drawn before that. The first `num_cached` of them are
// in the caches already: whole pages of the prefix cache.
struct Admission {
  int32_t slot = 0, prompt = 0, num_tokens = 0, num_cached = 0;  // `prompt`: how many tokens it has
  // Has its prompt only where log-probabilities of it are asked for, or the completion repeats it, and asks about it
  // only until the first token is drawn.
  Request request = {};
  std::vector<int32_t> pages = {};  // enough for num_tokens, those of the prefix cache first
  bool operator==(const Admission&) const = default;
};

// The next `count` tokens of the sequence in the sequence slot `slot` are fed.
struct StepEntry {
  int32_t slot = 0, count = 0;
  bool operator==(const StepEntry&) const = default;
};

// The sequence in the sequence slot `slot` has one more page.
struct AddedPage {
  int32_t slot = 0, page = 0;
  bool operator==(const AddedPage&) const = default;
};

struct Step {
  std::vector<int32_t> released = {};  // sequence slots that are free from here on
  std::vector<int32_t> dropped = {};   // samples that were cancelled: no message names them again
  std::vector<Admission> admitted = {};
  std::vector<AddedPage> added = {};
  std::vector<StepEntry> entries = {};  // those of one token come first; empty: nothing is computed
  // The tokens that rules count: those that admitted sequences have from the prefix cache, in the order of admissions,
  // then those of the entries in their order.
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
