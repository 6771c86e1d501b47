// A job that continues samples: prompts go through the pipeline step by step, and completions into a file.
#pragma once

#include "stage/generation/generator.h"
#include "stage/generation/sample_requests.h"
#include "stage/io/completions.h"
#include "stage/job/completion_relay.h"
#include "stage/job/job.h"

namespace lfm2 {

class GenerationJob : public Job {
 public:
  GenerationJob(const Options& options, MpiWorld& world, JobText text)
      : Job(options, world, std::move(text)), asked_top_k_(options.results.top_k) {}
  void leave_output() override { output_.reset(); }

 protected:
  // Sizes of the prompts of a pipeline.
  struct PromptSizes {
    int64_t tokens = 0;      // tokens of all prompts
    int64_t sequences = 0;   // with each of the choices of a prompt
    int64_t new_tokens = 0;  // the most tokens that may follow all prompts together
    int64_t longest = 0;     // cached positions of the longest sequence
    int64_t page = 0;        // positions of a page: as --cache-page says, but no more than the longest sequence has
    bool counts = false;     // whether any rule counts tokens
    int64_t edits = 0;       // the largest number of edits of a request
    int64_t pages = 0;       // pages of as many of the longest sequences as there are sequence slots
    // Whether any request asks for log-probabilities of its prompt, and for a hidden state.
    bool prompt_log_probs = false, hidden = false;
    friend void for_each_field(MaybeConst<PromptSizes> auto& sizes, const auto& each) {  // see base/words.h
      each(sizes.tokens);
      each(sizes.sequences);
      each(sizes.new_tokens);
      each(sizes.longest);
      each(sizes.page);
      each(sizes.counts);
      each(sizes.edits);
      each(sizes.pages);
      each(sizes.prompt_log_probs);
      each(sizes.hidden);
    }
  };

  // Notes what the rule of a request needs.
  static void note_rule(PromptSizes& sizes, const Request& request);
  virtual PromptSizes measure_prompts(int64_t slots) const;
  // See GenerationPlan.
  virtual bool answers_live() const { return false; }
  // Whether sequences may be given less than their longest length where memory is short.
  virtual bool may_be_shortened() const { return false; }
  // Whether texts may begin with what is left of others in the caches.
  virtual bool keeps_prefixes() const { return false; }
  virtual std::unique_ptr<RequestSource> make_requests() const;  // null on other stages than the first
  // How many of the likeliest tokens any request may name beside each.
  virtual int64_t max_likeliest() const { return options_.results.top_k; }
  // How often the source of requests is told the stages' times: see GenerationPlan.
  virtual double times_interval() const { return 0; }
  // Says, on each rank, when a run that has not ended is to stop.
  virtual std::function<bool()> stop_when() const;
  // `tokens`: how many may follow a prompt where neither the options nor the model's generation_config.json say so.
  static constexpr int64_t kDefaultTokens = 256;
  RequestDefaults defaults(int64_t tokens = kDefaultTokens) const;
  int64_t positions() const;  // that a sequence may have, once the caches are there

 private:
  void check_samples(const Samples& prompts) const override;
  bool lists_offsets(int) const override { return false; }
  int64_t ranks_at_once() const override;
  void add_to_identity(Json& identity) const override;
  JobOutput& resume_output_file(Unfinished& begun) override;
  void plan() override;
  std::vector<double> block_seconds();  // of a step, measured; collective
  Portion portion() const override;
  void open() override;
  bool run_once() override;
  JobOutput* output() const override { return output_.get(); }
  NotFinite not_finite() const override { return is_last() ? hash_.not_finite() : NotFinite(); }
  Trace trace() const override { return {"step", generator_->trace()}; }
  void add_to(StageReport& report) const override;
  void add_to(JobReport& report) const override;

  void answer_errors(const std::vector<CompletionConsumer*>& consumers) const;
  TokenText token_text() const;
  void open_relay();        // collective
  CacheShape fit_caches();  // collective in the pipeline; the weights must be loaded

  const int64_t asked_top_k_;  // --top-logprobs; lines may ask for more
  GenerationPlan plan_;
  PromptSizes prompts_;
  std::optional<Generator> generator_;
  std::unique_ptr<CompletionFile> output_;
  std::optional<CompletionRelay> relay_;  // last stages, where further replicas have completions for the output
  CompletionHash hash_;                   // the completions of this rank's pipeline in the last run
};

}  // namespace lfm2
