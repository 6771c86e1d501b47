// A conversation on rank 0's standard input and output: a generation whose requests come as they are typed.
#pragma once

#include "stage/job/generation_job.h"

namespace lfm2 {

class ChatJob : public GenerationJob {
 public:
  using GenerationJob::GenerationJob;

 private:
  PromptSizes measure_prompts(int64_t slots) const override;
  bool may_be_shortened() const override { return true; }
  bool keeps_prefixes() const override { return true; }  // each turn begins with those before it
  std::unique_ptr<RequestSource> make_requests() const override;
};

}  // namespace lfm2
