// What the first stage tells every stage before each step of a generation: which sequences join, which leave, and how
// many tokens of which sequences come next. Sizes, positions and pages follow from it (SequenceTable); the tokens
// themselves are known to the first stage alone.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace lfm2 {

// A sequence enters `slot`. `known` tokens are fed before the next one is drawn: the prompt, and, where the sequence
// had given its slot back, what was drawn before that.
struct Admission {
  int32_t slot = 0, sample = 0, prompt = 0, known = 0;
  int32_t max_new = 0;  // tokens behind the prompt, at most
  SamplingRule rule = {};
  std::vector<int32_t> eos_tokens = {};  // each of which ends the text
  bool operator==(const Admission&) const = default;
};

// The next `count` tokens of the sequence in `slot`.
struct StepEntry {
  int32_t slot = 0, count = 0;
  bool operator==(const StepEntry&) const = default;
};

struct Step {
  std::vector<int32_t> released = {};  // sequence slots that are free from here on
  std::vector<int32_t> dropped = {};   // samples that were taken back: nothing more is said of them
  std::vector<Admission> admitted = {};
  std::vector<StepEntry> entries = {};  // those of one token first; none: nothing is computed
  bool end = false;                     // the run is over
  bool operator==(const Step&) const = default;
};

// The message, and what it says; Error(kSoftware) where it is none.
std::vector<int32_t> to_words(const Step& step);
Step step_from_words(const std::vector<int32_t>& words);

}  // namespace lfm2
