// What rank 0 tells every stage before each step of a generation: which sequences join, which leave, and how many
// tokens of which sequences come next. Sizes, positions and pages follow from it (SequenceTable); the tokens themselves
// are known to the first stage alone.
#pragma once

#include <cstdint>
#include <vector>

namespace lfm2 {

// A sequence enters `slot`: sample `sample` of the job, a prompt of `prompt` tokens, at most `most_new` more.
struct Admission {
  int32_t slot = 0, sample = 0, prompt = 0, most_new = 0;
  bool operator==(const Admission&) const = default;
};

// The next `count` tokens of the sequence in `slot`.
struct StepEntry {
  int32_t slot = 0, count = 0;
  bool operator==(const StepEntry&) const = default;
};

struct Step {
  std::vector<int32_t> released;  // slots that are free from here on
  std::vector<Admission> admitted;
  std::vector<StepEntry> entries;  // those of one token first; empty: the run is over
  bool last() const { return entries.empty(); }
  bool operator==(const Step&) const = default;
};

// The message, and what it says; Error(kSoftware) where it is none.
std::vector<int32_t> to_words(const Step& step);
Step step_from_words(const std::vector<int32_t>& words);

}  // namespace lfm2
