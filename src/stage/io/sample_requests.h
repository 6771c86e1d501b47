// The requests of a job: one for each of its samples, by the rules of the job and of the sample's line.
#pragma once

#include <cstdint>
#include <optional>

#include "openai/sample_rules.h"
#include "stage/io/inputs/input_file.h"
#include "stage/pipeline/request_source.h"

namespace lfm2 {

// Returns the samples of a job in their order, each once for every choice. It skips samples without tokens, which are
// answered with an error.
class SampleRequests : public RequestSource {
 public:
  // Returns the samples `range` of `samples`, which must outlive this. max_new is lowered for samples with room for
  // fewer tokens in `max_positions`.
  SampleRequests(const Samples& samples, SampleRange range, RequestDefaults defaults, int64_t max_positions);
  // All samples by the same rules.
  SampleRequests(const Samples& samples, SampleRange range, const Request& each, int64_t max_positions)
      : SampleRequests(samples, range, RequestDefaults{.of_ids = each, .of_text = each}, max_positions) {}

  int64_t waiting() const override { return waiting_; }
  bool ended() const override { return waiting_ == 0; }
  std::optional<Request> next() override;

 private:
  const Samples& samples_;
  SampleRange range_;
  RequestDefaults defaults_;
  int64_t max_positions_, given_ = 0, waiting_ = 0;
  // The number of choices of the next sample that were returned. Further choices need numbers of their own: extra_
  // counts down from the largest number, which no sample has.
  int32_t choice_ = 0, extra_ = INT32_MAX;
};

}  // namespace lfm2
