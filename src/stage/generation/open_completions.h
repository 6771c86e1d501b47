// The last stage's part of a generation: the texts that are being written, what ends them, and what the first stage is
// told of each token.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "stage/generation/step_compute.h"
#include "stage/io/completion.h"

namespace lfm2 {

class OpenCompletions {
 public:
  // `consumers` are given each text when it ends. They must outlive this.
  explicit OpenCompletions(std::vector<CompletionConsumer*> consumers) : consumers_(std::move(consumers)) {}

  // What a step says of samples, in the order of the steps.
  void apply(const Step& step);
  // The tokens of a step, by the samples that drew them. Returns the message to the first stage.
  std::vector<int32_t> take(std::span<const int32_t> samples, const DrawnArrays& drawn);
  // With the last take(): how many tokens were drawn, and of texts that ended, how many more could have been.
  int64_t told() const { return told_; }
  int64_t open() const { return static_cast<int64_t>(open_.size()); }

 private:
  struct Open {
    Completion completion;
    int64_t max_new = 0;
    std::vector<int32_t> eos_tokens;
  };

  std::vector<CompletionConsumer*> consumers_;
  std::map<int32_t, Open> open_;  // by sample
  int64_t told_ = 0;
};

// What the message of take() says. Error(kSoftware) where it is none.
std::vector<DrawnToken> tokens_of_message(const std::vector<int32_t>& words);

}  // namespace lfm2
