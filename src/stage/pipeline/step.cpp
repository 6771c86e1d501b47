// Counts first, then the lists.
#include "stage/pipeline/step.h"

#include "kernels/error.h"

namespace lfm2 {

std::vector<int32_t> to_words(const Step& step) {
  std::vector<int32_t> words{static_cast<int32_t>(step.released.size()), static_cast<int32_t>(step.admitted.size()),
                             static_cast<int32_t>(step.entries.size())};
  words.insert(words.end(), step.released.begin(), step.released.end());
  for (const Admission& one : step.admitted)
    words.insert(words.end(), {one.slot, one.sample, one.prompt, one.most_new});
  for (const StepEntry& entry : step.entries) words.insert(words.end(), {entry.slot, entry.count});
  return words;
}

Step step_from_words(const std::vector<int32_t>& words) {
  size_t at = 0;
  const auto next = [&] {
    expect(at < words.size(), "Step: a message that ends too early");
    return words[at++];
  };
  Step step;
  const int32_t released = next(), admitted = next(), entries = next();
  for (int32_t i = 0; i < released; ++i) step.released.push_back(next());
  for (int32_t i = 0; i < admitted; ++i) {
    Admission one;
    for (int32_t* part : {&one.slot, &one.sample, &one.prompt, &one.most_new}) *part = next();
    step.admitted.push_back(one);
  }
  for (int32_t i = 0; i < entries; ++i) {
    StepEntry entry;
    for (int32_t* part : {&entry.slot, &entry.count}) *part = next();
    step.entries.push_back(entry);
  }
  expect(at == words.size(), "Step: a message that goes on behind its end");
  return step;
}

}  // namespace lfm2
