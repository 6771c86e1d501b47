// The hash over the results of a generation.
#include "stage/io/completion.h"

#include <span>

namespace lfm2 {

std::string_view name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

HashSum CompletionHash::of(const Completion& completion) {
  HashSum hash;
  hash.add(std::as_bytes(std::span(completion.token_ids)), static_cast<uint64_t>(completion.sample));
  return hash;
}

void CompletionHash::take(const Completion& completion) {
  sum_.add(of(completion));
  ++count_;
}

}  // namespace lfm2
