// What a generation continues, and where it comes from: a list that is known in advance, or clients that come and go.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sampling.h"
#include "stage/io/completion.h"
#include "stage/io/input_file.h"

namespace lfm2 {

// The most tokens that may follow a prompt: as asked, within the model's positions.
constexpr int64_t max_new_tokens(int64_t prompt, int64_t asked, int64_t max_positions) {
  return std::min(asked, max_positions - prompt);
}

struct Request {
  int32_t sample = 0;                // its number: unique in a run; what it draws depends on it
  std::vector<int32_t> prompt = {};  // at least one token
  int64_t max_new = 0;               // tokens behind the prompt, at least 1 and within the model's positions
  SamplingRule rule = {};
  std::vector<int32_t> eos_tokens = {};  // each of which ends the text; none: no token does
};

// A token that came back from the last stage.
struct DrawnToken {
  int32_t token = 0;
  float log_prob = 0;
  std::optional<FinishReason> ends = {};  // the sequence: nothing follows
};

// Asked on the first stage alone, between steps, by one thread. Nothing here may wait.
class RequestSource {
 public:
  virtual ~RequestSource() = default;

  virtual int64_t waiting() const = 0;        // requests that next() would give now
  virtual std::optional<Request> next() = 0;  // nothing where none waits
  virtual bool ended() const = 0;             // none waits, and none will come
  // Samples that nobody wants any more since the last call. They may be finished, waiting or running.
  virtual std::vector<int32_t> taken_back() { return {}; }
  // The next token of a sample that was not taken back.
  virtual void drawn(int32_t, const DrawnToken&) {}
};

// The samples of a job, in their order, all by the same rule.
class SampleRequests : public RequestSource {
 public:
  // Samples `range` of `samples`, which must outlive this. `each`: what all requests have in common; its max_new is
  // what is asked for, within `max_positions`.
  SampleRequests(const Samples& samples, SampleRange range, Request each, int64_t max_positions)
      : samples_(samples), range_(range), each_(std::move(each)), max_positions_(max_positions) {}

  int64_t waiting() const override { return range_.count - given_; }
  bool ended() const override { return waiting() == 0; }
  std::optional<Request> next() override {
    if (waiting() == 0) return {};
    const int64_t sample = range_.first + given_++, length = samples_.offsets.length(sample);
    const auto prompt = samples_.tokens(samples_.offsets[sample], length);
    Request request = each_;
    request.sample = static_cast<int32_t>(samples_.numbers[sample]);
    request.prompt.assign(prompt.begin(), prompt.end());
    request.max_new = max_new_tokens(length, each_.max_new, max_positions_);
    return request;
  }

 private:
  const Samples& samples_;
  SampleRange range_;
  Request each_;
  int64_t max_positions_, given_ = 0;
};

}  // namespace lfm2
