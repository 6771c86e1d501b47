// One line of a batch: its requests, and the answer that is made from their tokens. The answer has the bytes that a job
// without a server gives for the line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/openai_request.h"
#include "openai/response.h"
#include "text/stop_text.h"

namespace lfm2::serve {

// What all lines of a batch have in common. `lines` says by `embeddings` which endpoint the batch has.
struct BatchContext {
  std::string endpoint = {};
  LineContext lines = {};
  RequestDefaults defaults = {};
  RequestLimits limits = {};
  Hidden embeddings = Hidden::kMean;
  ResponseFacts facts = {};
};

class BatchLine {
 public:
  // Reads the line, which is sample number `sample` of the batch; `where` names it in messages. A faulty line has no
  // requests, and its answer is its error. Error(kStopped) as in LineContext.
  BatchLine(std::shared_ptr<const BatchContext> context, int64_t sample, const std::string& where,
            std::string_view text);

  int64_t sample() const { return sample_; }
  int32_t size() const { return static_cast<int32_t>(requests_.size()); }
  // The requests with sample numbers from `first` on. Tokens that were added before are forgotten.
  std::vector<Request> begin(int32_t first);
  // Adds a token of request number `index`.
  void add(size_t index, const DrawnToken& token);
  bool done() const { return ended_ == size(); }

  struct Answer {
    std::string text;  // with the line end
    bool failed = false;
  };
  Answer answer() const;

 private:
  struct Choice {
    Completion completion;
    std::optional<StopText> stop;
    std::vector<float> state;  // of /v1/embeddings
  };

  void read(const std::string& where, std::string_view text);
  void make_requests(const std::string& where);
  void check(const Request& request, const std::string& where) const;
  std::string error() const;

  const std::shared_ptr<const BatchContext> context_;
  const int64_t sample_;
  RequestLine line_;
  std::vector<Request> requests_;
  std::vector<Choice> choices_;
  int32_t ended_ = 0;
};

}  // namespace lfm2::serve
