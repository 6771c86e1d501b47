// The job that serves: a generation whose requests come over HTTP, until the server is asked to end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mpi_world.h"
#include "serve/openai_request.h"
#include "stage/job/generation_job.h"

namespace lfm2::serve {

class ServeJob : public GenerationJob {
 public:
  using GenerationJob::GenerationJob;

 private:
  PromptSizes measure_prompts(int64_t slots) const override;
  int64_t max_likeliest() const override { return RequestLimits{}.max_likeliest; }
  bool answers_live() const override { return true; }
  bool may_be_shortened() const override { return true; }
  std::unique_ptr<RequestSource> make_requests() const override;
  std::function<bool()> stop_when() const override;
  std::string model_name() const;
  int64_t max_length() const;  // of a prompt and its answer
};

std::unique_ptr<Job> make_serve_job(const Options& options, MpiWorld& world, JobText text);

}  // namespace lfm2::serve
