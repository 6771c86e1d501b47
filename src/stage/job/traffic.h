// The source of a generation's requests: the samples of a job, a conversation in the terminal or, in serve, the clients
// of a server.
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
  int64_t tokens = 0;        // tokens of all prompts
  int64_t sequences = 0;     // counts each choice of a prompt
  int64_t new_tokens = 0;    // the sum of the limits of all requests
  int64_t longest = 0;       // cached positions of the longest sequence
  int64_t page_size = 0;     // positions of a page: --page-size, but at most those of the longest sequence
  bool counts = false;       // whether any rule counts tokens
  int64_t edits = 0;         // the largest number of edits of a request
  bool constrained = false;  // whether any request is
  int64_t pages = 0;         // pages of the longest sequences, one sequence for each slot
  // Whether any request asks for log-probabilities of its prompt, or for a hidden state.
  bool prompt_log_probs = false, hidden = false;
};
void for_each_field(MaybeConst<PromptSizes> auto& sizes, const auto& each) {  // see base/words.h
  each(sizes.tokens, sizes.sequences, sizes.new_tokens, sizes.longest, sizes.page_size, sizes.counts, sizes.edits,
       sizes.constrained, sizes.pages, sizes.prompt_log_probs, sizes.hidden);
}
// Adds the needs of a request's rule.
void note_rule(PromptSizes& sizes, const Request& request);

// The limit of tokens after a prompt if neither the options nor the model's generation_config.json set one.
inline constexpr int64_t kDefaultTokens = 256;
RequestDefaults request_defaults(const JobFrame& job, int64_t tokens = kDefaultTokens);

class Traffic {
 public:
  struct Kind {
    bool live = false;              // see GenerationPlan
    bool may_be_shortened = false;  // sequences may get less room than their limit if memory is short
    bool keeps_prefixes = false;    // whether there is a prefix cache
    int64_t max_top_logprobs = 0;   // the most top logprobs of any request
    double times_interval = 0;      // see GenerationPlan
  };
  explicit Traffic(Kind asked) : kind(asked) {}
  virtual ~Traffic() = default;

  // Called on rank 0, in this order. `slots`: sequences at a time; `capacity`: of each replica.
  virtual PromptSizes measure(int64_t slots) const = 0;
  virtual void before_loading() {}
  virtual std::unique_ptr<SharedRequests> open(const Capacity& capacity) = 0;
  // Called on all stages: the condition that stops a run early, and the work after the last run.
  virtual std::function<bool()> stop_when() const { return stop_requested; }
  virtual void close() {}

  const Kind kind;
};

// Makes the traffic of samples or of a conversation.
std::unique_ptr<Traffic> make_traffic(const JobFrame& job);

}  // namespace lfm2
