// The generating half of Job: how many sequences at a time, what fits into the caches, and the run.
#include <algorithm>
#include <map>

#include "stage/job/job.h"
#include "stage/model/memory_plan.h"
#include "stage/support/stop.h"

namespace lfm2 {

namespace {

// In one step: more sequences than this make a step longer in proportion and no cheaper for each.
constexpr int64_t kMostSequencesInStep = 512;
constexpr int64_t kCudaPromptTokens = 2048, kCpuPromptTokens = 128;
constexpr double kCacheShare = 0.9;  // of what is free: libraries allocate too
constexpr double kUnlimited = 1e9;   // pages

}  // namespace

// On rank 0, which has all prompts.
void Job::check_prompts(const Samples& prompts) const {
  const int64_t max_positions = shards_->config().max_positions;
  for (int64_t i = 0; i < prompts.count(); ++i)
    if (const int64_t prompt = prompts.offsets.length(i); prompt >= max_positions)
      throw Error(
          ExitCode::kData,
          fmt::format("sample {}: {} tokens, expected fewer than max_position_embeddings = {} to leave room for "
                      "--generate",
                      i, prompt, max_positions));
}

// On the first stage of a pipeline, which has its prompts; the other stages are told.
PromptSizes Job::measure_prompts(int64_t slots) const {
  PromptSizes sizes{.tokens = samples_->own_share().tokens};
  const SampleOffsets& offsets = samples_->own_samples().offsets;
  const auto most_new = [this](int64_t prompt) {
    return most_new_tokens(prompt, generation_.most_new, generation_.max_positions);
  };
  for (int64_t i = 0; i < samples_->own_range().count; ++i) {
    const int64_t prompt = offsets.length(i);
    sizes.new_tokens += most_new(prompt);
    sizes.longest = std::max(sizes.longest, cached_positions(prompt, most_new(prompt)));
  }
  sizes.page = std::min(options_.generation.page, std::max<int64_t>(1, sizes.longest));
  std::map<int64_t, int64_t, std::greater<>> sequences_of;  // so many pages
  for (int64_t i = 0; i < samples_->own_range().count; ++i) {
    const int64_t prompt = offsets.length(i);
    ++sequences_of[pages_for(cached_positions(prompt, most_new(prompt)), sizes.page)];
  }
  for (const auto& [pages, sequences] : sequences_of) {
    const int64_t together = std::min(slots, sequences);
    sizes.pages += pages * together;
    slots -= together;
  }
  return sizes;
}

// Before anything is loaded: sizes that do not depend on memory.
void Job::limit_steps() {
  const ModelConfig& config = shards_->config();
  const GenerationOptions& wanted = options_.generation;
  generation_.most_new = wanted.most_new;
  generation_.max_positions = config.max_positions;
  generation_.rule = wanted.rule;
  if (!wanted.ignore_eos) generation_.eos_tokens = wanted.eos_tokens.empty() ? config.eos_tokens : wanted.eos_tokens;
  generation_.top_k = options_.results.top_k;
  generation_.samples = samples_->own_range();
  const int64_t stages = pipeline_ranks_->size(), samples = generation_.samples.count;
  const int64_t at_a_time = wanted.most_sequences > 0 ? wanted.most_sequences : kMostSequencesInStep * stages;
  ScheduleLimits& limits = generation_.limits;
  limits.steps_in_flight = stages;
  limits.caches.slots = std::min(samples, at_a_time);
  if (is_first()) prompts_ = measure_prompts(limits.caches.slots);
  pipeline_ranks_->broadcast(&prompts_, sizeof prompts_, 0, load_timeout(), "sizes of the prompts");
  generation_.longest = prompts_.longest;
  limits.caches.page = prompts_.page;
  limits.most_sequences = (limits.caches.slots + stages - 1) / stages;
  if (options_.micro_batch > 0) limits.most_sequences = std::min(limits.most_sequences, options_.micro_batch);
  limits.prompt_tokens = std::min(prompts_.tokens, wanted.prompt_tokens > 0 ? wanted.prompt_tokens
                                                   : machine_.cuda          ? kCudaPromptTokens
                                                                            : kCpuPromptTokens);
}

// As many pages as the longest sequences could fill at the same time, or as fit on the fullest rank.
CacheShape Job::fit_caches() const {
  const ModelConfig& config = shards_->config();
  CacheShape shape = generation_.limits.caches;
  const int64_t largest = pages_for(prompts_.longest, shape.page);

  const int64_t rows = is_last() ? generation_.limits.most_sequences : 0;
  const StageCost cost = measure_stage(config, layers(), compute_, compute_, generation_.most_tokens(), rows);
  const uint64_t others = kSlots * cost.residual_bytes + cost.scratch_bytes + cost.result_bytes +
                          static_cast<uint64_t>(shape.slots) * slot_bytes(config, layers());
  const uint64_t free = machine_.backend->free_bytes();
  const double page = static_cast<double>(page_bytes(config, layers(), compute_, shape.page));
  const double left = static_cast<double>(free) / machine_.sharing * kCacheShare - static_cast<double>(others);
  const bool unknown = free == 0 && !machine_.cuda;  // a host that does not say
  const double fit = unknown ? kUnlimited : left < 0 ? 0 : page > 0 ? std::min(left / page, kUnlimited) : kUnlimited;
  const double least = pipeline_ranks_->smallest(fit, options_.timeout_seconds);
  const auto fitting = static_cast<int64_t>(least);
  if (fitting < largest) {
    if (fit > least) pipeline_ranks_->barrier(options_.timeout_seconds, "the fullest rank ends all");
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("{} ({}): a sequence of {} positions needs {} pages of the key-value cache, {} fit into the "
                    "memory that is free: expected shorter samples, a smaller --generate or more ranks",
                    world_.host(), machine_.backend->description(), generation_.longest, largest, fitting));
  }
  shape.pages = std::min(prompts_.pages, fitting);
  return shape;
}

void Job::open_generation() {
  generation_.limits.caches = fit_caches();
  say(fmt::format("up to {} sequences at a time, {} in a step; caches of {} pages of {} positions",
                  generation_.limits.caches.slots, generation_.limits.most_sequences, generation_.limits.caches.pages,
                  generation_.limits.caches.page));
  generator_.emplace(link_stages(generation_.most_tokens()), generation_, compute_, !options_.trace.empty());
  if (!options_.output.empty() && makes_output() && !completions_)
    completions_ = create_completion_file(options_.output, output_job());
}

void Job::run_generation() {
  run_repeatedly([this] {
    completion_hash_ = {};
    std::vector<CompletionConsumer*> consumers{&completion_hash_};
    if (completions_) {
      if (options_.benchmark) completions_->start_over();
      consumers.push_back(completions_.get());
    }
    Progress progress("generate", static_cast<uint64_t>(prompts_.new_tokens), Progress::Unit::kTokens,
                      makes_output() ? options_.progress : ProgressMode::kOff);
    generator_->run(
        samples_->own_samples(), consumers, [&](int64_t tokens) { progress.add(static_cast<uint64_t>(tokens)); },
        stop_requested);
    completion_hash_.add(kept_results_);
    handed_out_ = completion_hash_.count();
    return generator_->finished();
  });
}

}  // namespace lfm2
