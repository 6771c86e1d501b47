// Windows as in transformers' guide to perplexity of models with a fixed length.
#include "stage/scoring/windows.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

namespace {

void cut_sample(std::span<const int32_t> ids, int64_t scored, int64_t length, int64_t stride, Windows& into) {
  const int64_t end_of_sample = std::ssize(ids);
  int64_t next = end_of_sample - scored;  // the next token to score
  for (int64_t begin = 0; next < end_of_sample; begin += stride) {
    const int64_t end = std::min(begin + length, end_of_sample);
    if (end <= next) continue;
    into.ids.append(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    into.offsets.push_back(into.offsets.back() + end - begin);
    into.scored.push_back(into.scored.back() + end - next);
    next = end;
  }
}

}  // namespace

Windows cut_windows(const Samples& samples, int64_t length, int64_t stride) {
  expect(stride >= 1 && stride < length, "cut_windows: windows that do not overlap");
  Windows windows;
  for (int64_t sample = 0; sample < samples.count(); ++sample)
    cut_sample(samples.tokens(samples.offsets[sample], samples.offsets.length(sample)), samples.scored.length(sample),
               length, stride, windows);
  return windows;
}

bool any_longer(const SampleOffsets& offsets, int64_t length) {
  for (int64_t sample = 0; sample < offsets.samples(); ++sample)
    if (offsets.length(sample) > length) return true;
  return false;
}

}  // namespace lfm2
