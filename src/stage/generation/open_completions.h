// The last stage's part of a generation: it holds the completions that are not finished, decides when each of them
// ends, and tells the first stage which tokens were drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "stage/generation/step_runner.h"
#include "stage/pipeline/completion.h"
#include "stage/pipeline/hidden_rows.h"
#include "stage/pipeline/request_source.h"
#include "text/stop_text.h"

namespace lfm2 {

// What a token adds to the text of a completion.
using TokenText = std::function<std::string_view(int32_t token)>;

// Whose the results of a step are, in their order.
struct StepSamples {
  struct Rows {
    int32_t sample = 0, count = 0;
  };
  std::vector<int32_t> drawn;  // the samples that draw a token
  std::vector<Rows> scored, hidden;
};

class OpenCompletions {
 public:
  // `consumers` are given each completion when it ends. They must outlive this. `token_text` is needed where a request
  // has stop texts. `live`: see GenerationPlan.
  explicit OpenCompletions(std::vector<CompletionConsumer*> consumers, TokenText token_text = {}, bool live = false)
      : consumers_(std::move(consumers)), token_text_(std::move(token_text)), live_(live) {}

  // Begins the completions of samples that the step admits, and forgets those of samples that it drops. To be called
  // for every step, in order.
  void apply(const Step& step);
  // Adds the results of a step to the completions, and hands on those that end. Returns what the first stage is told.
  // A sample that has ended is not open any more: its token is told all the same, and nothing else happens to it.
  std::vector<DrawnToken> on_results(const StepSamples& samples, const StepResults& results);
  // The progress made by the last on_results(): the number of tokens drawn, plus, for each completion that ended early,
  // the number of tokens that its limit still allowed.
  int64_t progress() const { return progress_; }
  int64_t open() const { return static_cast<int64_t>(open_.size()); }

 private:
  struct Open {
    Request request;
    Completion completion;
    std::optional<StopText> stop;
    // The hidden state that is asked for, and what it is made of.
    std::vector<float> hidden;
    std::optional<HiddenRows> rows;
    int32_t row_count = 0;
  };

  Open& find(int32_t sample);
  bool stops(Open& open, int32_t token) const;
  void add_scored(const StepSamples& samples, const StepResults::Tokens& scored);
  void add_hidden(const StepSamples& samples, const Tensor& hidden);
  void finish(Open open);

  std::vector<CompletionConsumer*> consumers_;
  TokenText token_text_;
  bool live_;
  std::map<int32_t, Open> open_;  // by sample
  // Choices that have ended, and wait for the others of their completions; by the completion's sample.
  std::map<int64_t, std::vector<Completion>> waiting_;
  int64_t progress_ = 0;
};

}  // namespace lfm2
