// The tokens of a step, and the hash over the results of a generation.
#include "stage/pipeline/completion.h"

#include <utility>

namespace lfm2 {

std::span<DrawnToken> pop_entry(std::span<DrawnToken>& left, int32_t drafts) {
  size_t count = 0;
  do {
    expect(count < left.size(), "pop_entry: tokens of another step");
    ++count;
  } while (std::cmp_less_equal(count, drafts) && left[count - 1].drafted && !left[count - 1].ends);
  const std::span<DrawnToken> own = left.first(count);
  left = left.subspan(count);
  return own;
}

HashSum CompletionHash::of(const Completion& completion) {
  HashSum hash;
  const auto add = [&](const Completion& one) {
    hash.add(std::as_bytes(std::span(one.token_ids)),
             static_cast<uint64_t>(one.choice) << 32 | static_cast<uint64_t>(one.sample));
  };
  add(completion);
  for (const Completion& other : completion.others) add(other);
  return hash;
}

void CompletionHash::consume(const Completion& completion) {
  sum_.add(of(completion));
  ++count_;
  const auto look = [&](const Completion& one) {
    if (one.reason == FinishReason::kError) not_finite_.add({1, completion.sample});
  };
  look(completion);
  for (const Completion& other : completion.others) look(other);
}

}  // namespace lfm2
