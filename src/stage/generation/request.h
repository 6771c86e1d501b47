// What a generation continues: requests, and the sources they come from. A source is a list that is known in advance,
// or clients that come and go.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/sampling.h"
#include "stage/io/completion.h"
#include "stage/model/hidden.h"

namespace lfm2 {

// How many tokens may follow a prompt: as many as are asked for, or as fit into the model's positions with the prompt.
constexpr int64_t max_new_tokens(int64_t prompt, int64_t asked, int64_t max_positions) {
  return std::min(asked, max_positions - prompt);
}

struct Request {
  int32_t sample = 0;  // the number of the sample: unique in a run
  // Several requests with one prompt may be the choices of one completion, which ends when all have: the number of
  // choices, which of them this is, and, but for the first one, the sample of the first.
  int32_t choices = 1, choice = 0, first = 0;
  int32_t draw = 0;                        // draws depend on the rule's seed, on this, and on the token's place
  int32_t tag = 0;                         // handed through to the completion: the form of its answer
  int32_t likeliest = 0;                   // how many of the likeliest tokens come back with each drawn one
  std::vector<int32_t> prompt = {};        // at least one token
  int64_t max_new = 0;                     // how many tokens may follow the prompt: at least 1; see max_new_tokens()
  SamplingRule rule = {};                  // its numbers of edits follow from the lists below: see edits_of()
  std::vector<int32_t> eos_tokens = {};    // each of these tokens ends the completion; empty: no token does
  std::vector<std::string> stop = {};      // the text of the completion ends before each of these; none is empty
  std::vector<LogitEdit> logit_bias = {};  // at most one for each token
  // What is asked about the prompt comes back with the first token: the log-probability of each of its tokens but the
  // first one, and a hidden state, that of its last position (kLast) or the mean of all (kMean).
  bool prompt_log_probs = false;
  Hidden hidden = Hidden::kNone;
  bool echo = false;          // the completion repeats the prompt
  bool prompt_alone = false;  // max_new is 1, and the token that is drawn is no part of the completion
  // Whether the prompt may begin with pages of the prefix cache: not where something is asked about all of its
  // positions.
  bool takes_prefix() const { return !prompt_log_probs && hidden != Hidden::kMean; }
};

// What the rule of a request does to the logits of single tokens: its biases, then the ends that are banned at first.
inline std::vector<LogitEdit> edits_of(const Request& request) {
  std::vector<LogitEdit> edits = request.logit_bias;
  if (request.rule.min_tokens > 0)
    for (const int32_t token : request.eos_tokens) edits.push_back({token, 0});
  return edits;
}

// Makes it a request whose prompt is not continued.
inline void ask_of_prompt_alone(Request& request) {
  request.prompt_alone = true;
  request.max_new = 1;
  request.rule = {};
  request.eos_tokens = {};
  request.stop = {};
  request.logit_bias = {};
}

// A token that came back from the last stage.
struct DrawnToken {
  int32_t token = 0;
  float log_prob = 0;
  // Why the sequence ends with this token; empty: it goes on. With kError the token is none of the text.
  std::optional<FinishReason> ends = {};
  std::vector<int32_t> top_ids = {};  // as many as Request::likeliest asks for
  std::vector<float> top_log_probs = {};
  // Of a first token, where the request asks for it: see Request::prompt_log_probs and Request::hidden.
  TokenLogProbs prompt = {};
  std::vector<float> hidden = {};  // [hidden]
};

struct SampleToken {
  int32_t sample = 0;
  DrawnToken token;
};

// Used by the first stage alone, between steps, on one thread. No function blocks.
class RequestSource {
 public:
  virtual ~RequestSource() = default;

  virtual int64_t waiting() const = 0;        // requests that next() would give now
  virtual std::optional<Request> next() = 0;  // empty where no request waits
  virtual bool ended() const = 0;             // whether no request waits and none will come
  // The samples that were taken back since the last call, because nobody wants their completions any more. They may be
  // waiting, running, or finished already.
  virtual std::vector<int32_t> taken_back() { return {}; }
  // Called once for each sample that is begun, with the number of tokens of its prompt that the prefix cache had.
  virtual void begun(int32_t, int64_t) {}
  // Called with the tokens that a step has drawn, but for those of samples that were taken back.
  virtual void drawn(std::vector<SampleToken>) {}
  // Called now and then, as GenerationPlan says: the seconds that a stage was busy since the run began, of how many;
  // and how many sequence slots and pages of the caches are taken.
  virtual void stage_seconds(int64_t /*stage*/, double /*busy*/, double /*total*/) {}
  virtual void caches(int64_t /*used_slots*/, int64_t /*used_pages*/) {}
};

}  // namespace lfm2
