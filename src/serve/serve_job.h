// The job that serves: a generation whose requests come over HTTP, until the server is asked to end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mpi_world.h"
#include "openai/openai_request.h"
#include "serve/listener.h"
#include "serve/log_writer.h"
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
  bool keeps_prefixes() const override { return options_.serve.prefix_cache; }
  double times_interval() const override { return 1; }
  void before_loading() override;
  std::unique_ptr<RequestSource> make_requests() const override;
  std::function<bool()> stop_when() const override;
  void end_runs() override;
  ExitCode finish_stopped() override;
  std::string model_name() const;
  int64_t max_length() const;  // of a prompt and its answer

  // Of the first rank, from before_loading() on:
  std::unique_ptr<LogWriter> log_;  // null with --quiet
  std::unique_ptr<Listener> listener_;
};

std::unique_ptr<Job> make_serve_job(const Options& options, MpiWorld& world, JobText text);

}  // namespace lfm2::serve
