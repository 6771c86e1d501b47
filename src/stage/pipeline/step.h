// The message that the first stage sends to every stage before each step of a generation: which sequences join, which
// leave, how many tokens of which sequences come next, and which pages of the caches they have. Sizes and positions
// follow from it (SequenceTable). Only the first stage knows the tokens themselves, but for those that a rule counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "stage/model/hidden.h"

namespace lfm2 {

// A sequence enters the sequence slot `slot`. `known` tokens are fed before the next one is drawn: the prompt, and for
// a sequence that was preempted also the tokens drawn before that. The first `cached` of them are in the caches
// already: whole pages of the prefix cache.
struct Admission {
  int32_t slot = 0, sample = 0, prompt = 0, known = 0, cached = 0;
  int32_t max_new = 0;                       // how many tokens may follow the prompt
  int32_t draw = 0, tag = 0, likeliest = 0;  // see Request
  int32_t choices = 1, choice = 0, first = 0;
  SamplingRule rule = {};
  std::vector<int32_t> eos_tokens = {};  // each of these tokens ends the completion
  std::vector<std::string> stop = {};    // the text of the completion ends before each of these
  std::vector<LogitEdit> edits = {};     // the biases of the rule, then its banned tokens
  // See Request; what is asked about a prompt is asked until the first token is drawn.
  bool prompt_log_probs = false, prompt_alone = false;
  Hidden hidden = Hidden::kNone;
  std::vector<int32_t> prompt_ids = {};  // where its log-probabilities are asked for, or the completion repeats it
  std::vector<int32_t> pages = {};       // enough for the known tokens, those of the prefix cache first
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
  std::vector<int32_t> dropped = {};   // samples that were taken back: no message names them again
  std::vector<Admission> admitted = {};
  std::vector<AddedPage> added = {};
  std::vector<StepEntry> entries = {};  // those of one token come first; empty: nothing is computed
  // The tokens that rules count: those that admitted sequences have from the prefix cache, in the order of admissions,
  // then those of the entries in their order.
  std::vector<int32_t> counted = {};
  bool end = false;  // whether the run is over
  bool operator==(const Step&) const = default;
};

// A step as a message, and back. Error(kSoftware) where `words` is not such a message.
std::vector<int32_t> to_words(const Step& step);
Step step_from_words(const std::vector<int32_t>& words);

}  // namespace lfm2
