// Whose requests a generation answers: the samples of a job, a conversation in the terminal or, above this folder, the
// clients of a server.
#pragma once

#include <functional>
#include <memory>

#include "base/stop.h"
#include "base/words.h"
#include "stage/io/sample_requests.h"
#include "stage/job/job_frame.h"
#include "stage/pipeline/request_source.h"
#include "stage/pipeline/sequence_table.h"

namespace lfm2 {

// Sizes of the prompts of a pipeline.
struct PromptSizes {
  int64_t tokens = 0;      // tokens of all prompts
  int64_t sequences = 0;   // with each of the choices of a prompt
  int64_t new_tokens = 0;  // the most tokens that may follow all prompts together
  int64_t longest = 0;     // cached positions of the longest sequence
  int64_t page_size = 0;   // positions of a page: as --page-size says, but no more than the longest sequence has
  bool counts = false;     // whether any rule counts tokens
  int64_t edits = 0;       // the largest number of edits of a request
  int64_t pages = 0;       // pages of the longest sequences, one sequence for each slot
  // Whether any request asks for log-probabilities of its prompt, and for a hidden state.
  bool prompt_log_probs = false, hidden = false;
};
void for_each_field(MaybeConst<PromptSizes> auto& sizes, const auto& each) {  // see base/words.h
  each(sizes.tokens, sizes.sequences, sizes.new_tokens, sizes.longest, sizes.page_size, sizes.counts, sizes.edits,
       sizes.pages, sizes.prompt_log_probs, sizes.hidden);
}
// Notes what the rule of a request needs.
void note_rule(PromptSizes& sizes, const Request& request);

// How requests are continued. `tokens`: how many may follow a prompt where neither the options nor the model's
// generation_config.json say so.
inline constexpr int64_t kDefaultTokens = 256;
RequestDefaults request_defaults(const JobFrame& job, int64_t tokens = kDefaultTokens);

class Traffic {
 public:
  struct Kind {
    bool live = false;              // see GenerationPlan
    bool may_be_shortened = false;  // sequences may be given less than their longest length where memory is short
    bool keeps_prefixes = false;    // texts may begin with what is left of others in the caches
    int64_t max_top_logprobs = 0;   // the most top logprobs that any request may ask for
    double times_interval = 0;      // see GenerationPlan
  };
  explicit Traffic(Kind asked) : kind(asked) {}
  virtual ~Traffic() = default;

  // On first stages, in this order. `slots`: sequences at a time; `positions`: that a sequence may have.
  virtual PromptSizes measure(int64_t slots) const = 0;
  virtual void before_loading() {}
  virtual std::unique_ptr<RequestSource> open(int64_t positions) = 0;
  // On all stages: when a run that has not ended is to stop, and what follows the last run.
  virtual std::function<bool()> stop_when() const { return stop_requested; }
  virtual void close() {}

  const Kind kind;
};

// Of samples, or of a conversation.
std::unique_ptr<Traffic> make_traffic(const JobFrame& job);

}  // namespace lfm2
