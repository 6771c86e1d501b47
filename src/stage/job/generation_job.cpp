// Decides how many sequences are generated at a time and how many pages the caches get, and runs the generation.
#include "stage/job/generation_job.h"

#include <algorithm>

#include "base/json/json.h"
#include "openai/sample_rules.h"
#include "stage/generation/make_drafters.h"
#include "stage/generation/step_limits.h"
#include "stage/job/backend_choice.h"
#include "stage/model/memory_plan.h"

namespace lfm2 {

namespace {

constexpr double kCacheShare = 0.9;  // share of the free memory for caches, because libraries allocate, too

// Sends completions to the rank that writes them.
class RemoteCompletions : public CompletionConsumer {
 public:
  explicit RemoteCompletions(OutputRelay* relay) : relay_(relay) {}
  void consume(const Completion& completion) override { relay_->add(completion); }

 private:
  OutputRelay* relay_;
};

}  // namespace

// Last stages: answers refused lines before anything else.
void GenerationJob::answer_errors(const std::vector<CompletionConsumer*>& consumers) const {
  const SampleErrors& errors = job_.samples->errors();
  for (size_t at = 0; at < errors.size(); ++at) {
    if (at % 4096 == 0) errors.rest();
    if (job_.kept.holds(errors.sample(at))) continue;
    Completion completion;
    completion.sample = errors.sample(at);
    completion.tag = ResponseForm{LineForm::kCompletion}.to_word();
    completion.error = errors.text(at);
    for (CompletionConsumer* consumer : consumers) consumer->consume(completion);
  }
}

void GenerationJob::add_to_identity(Json& identity) const {
  const auto add = [&identity](const Request& request, const std::string& suffix) {
    identity["--generate" + suffix] = request.max_new;
    identity["--eos" + suffix] = request.eos_tokens;
    if (!request.stop.empty()) identity["--stop" + suffix] = request.stop;
    const SamplingRule& rule = request.rule;
    identity["--temperature" + suffix] = rule.temperature;
    if (rule.counts())
      identity["penalties" + suffix] = {rule.repetition_penalty, rule.presence_penalty, rule.frequency_penalty};
    if (rule.temperature != 0 || !suffix.empty()) {  // it draws
      identity["--seed"] = rule.seed;
      identity["--top-k" + suffix] = rule.top_k;
      identity["--top-p" + suffix] = rule.top_p;
    }
    // Other fields are added only if they are used, so that a new field does not change the identity of other jobs.
    constexpr std::array kNamed{
        "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "top_k", "top_p"};
    for_each_sampling_field([&](const auto& field) {
      if (std::find(kNamed.begin(), kNamed.end(), std::string_view(field.key)) == kNamed.end() &&
          rule.*field.rule != SamplingRule().*field.rule)
        identity[option_of(field.key) + suffix] = rule.*field.rule;
    });
  };
  const RequestDefaults defaults = request_defaults(job_);
  add(defaults.of_ids, "");
  if (const std::string tokenizer = job_.text.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
  if (job_.samples->all().rules.empty()) return;
  add(defaults.of_text, " of text");
  identity["lines"] = job_.samples->all().source;
}

void GenerationJob::resume(Unfinished& begun) {
  output_ = job_.own(resume_completion_file(job_.options.output, job_.output_job(), begun));
}

// Sets the sizes that do not depend on memory. Nothing is loaded yet.
JobPlan GenerationJob::plan() {
  const GenerationOptions& wanted = job_.options.generation;
  plan_.top_k = std::max(job_.options.results.top_k, traffic_->kind.max_top_logprobs);
  plan_.times_interval = traffic_->kind.times_interval;
  const int64_t stages = job_.pipeline.size();
  plan_.live = traffic_->kind.live;
  const StepDemand demand{.stages = stages,
                          .cuda = job_.machine.cuda,
                          .live = plan_.live,
                          .micro_batch = job_.options.micro_batch,
                          .max_sequences = wanted.max_sequences,
                          .prompt_tokens = wanted.prompt_tokens};
  ScheduleLimits& limits = plan_.limits;
  if (job_.world.rank() == 0) prompts_ = traffic_->measure(sequences_at_a_time(demand));
  prompts_ = job_.world.broadcast_value(prompts_, 0, job_.load_timeout(), "sizes of the prompts");
  set_limits(demand, prompts_.sequences, prompts_.tokens, limits);
  plan_.longest = prompts_.longest;
  plan_.counts = prompts_.counts;
  plan_.edits = prompts_.edits;
  plan_.constrained = prompts_.constrained;
  plan_.prompt_log_probs = prompts_.prompt_log_probs;
  plan_.hidden = prompts_.hidden;
  limits.caches.page_size = prompts_.page_size;
  limits.caches.keeps_prefixes = traffic_->kind.keeps_prefixes;
  limits.caches.window = job_.config().window;
  limits.counted_prefixes = prompts_.longest;
  if (wanted.drafts()) plan_drafts(wanted);
  return sizes_of(job_.options.balance && stages > 1
                      ? balanced_partition(block_seconds(), stages)
                      : given_partition(job_.config().layers, stages, job_.options.layer_counts));
}

void GenerationJob::plan_drafts(const GenerationOptions& wanted) {
  ScheduleLimits& limits = plan_.limits;
  limits.fixed_drafts = wanted.draft_length > 0;
  limits.caches.max_drafts = limits.fixed_drafts ? wanted.draft_length : kChosenDrafts;
  if (is_drafter_folder(wanted.draft)) read_drafter(wanted);
  limits.draft_rows = std::min(limits.max_sequences * limits.caches.max_drafts, kMaxDraftRows);
  limits.vocab = job_.config().vocab;
  // Ranks that share processors or a GPU leave none of them idle.
  limits.streams_drafts =
      limits.steps_in_flight > 1 && !drafter_ && job_.machine.cuda && job_.machine.devices.device_of.empty();
  if (job_.is_first()) plan_.drafters = make_drafters(wanted.draft, limits.vocab);
}

// Rank 0 reads the files before other ranks, so that a bad file is reported once.
void GenerationJob::read_drafter(const GenerationOptions& wanted) {
  const auto read = [&] {
    drafter_.emplace(Drafter{DsparkFiles::open(wanted.draft)});
    const DsparkConfig& config = drafter_->files.config;
    expect_target(config, job_.config(), drafter_->files.config_path);
    if (job_.machine.cuda) expect_gpu_computes(config.blocks, drafter_->files.config_path);
    if (wanted.draft_length > config.block_size)
      throw Error(ExitCode::kUsage,
                  fmt::format("--draft-length {}: the drafter {} makes {} drafts at a time, expected "
                              "at most {}",
                              wanted.draft_length, wanted.draft, config.block_size, config.block_size));
    if (!job_.config().tied_embedding && job_.pipeline.size() > 1)
      throw Error(ExitCode::kData, fmt::format("{}: the model's LM head is not tied to its embedding, which the last "
                                               "rank needs for drafts: expected one rank",
                                               wanted.draft));
  };
  if (job_.world.rank() == 0) read();
  job_.world.barrier(job_.load_timeout(), "drafter read");
  if (!drafter_) read();
  ScheduleLimits& limits = plan_.limits;
  limits.caches.max_drafts = std::min(limits.caches.max_drafts, drafter_->files.config.block_size);
  limits.asks_for_drafts = true;
  plan_.taps = drafter_->files.config.taps;
}

void GenerationJob::load_drafter() {
  const Stage& stage = job_.session->pieces().front();
  drafter_->weights.emplace(drafter_->files, job_.session->backend(), job_.compute, stage.embedding(), stage.lm_head());
  drafter_->model.emplace(*drafter_->weights, drafter_->files.config);
  drafter_->weights->finish();
  plan_.dspark = &*drafter_->model;
}

uint64_t GenerationJob::drafter_bytes(LayerRange layers) const {
  if (!drafter_) return 0;
  return plan_.tap_bytes(job_.config(), layers, job_.compute) +
         (job_.is_last() ? draft_maker_bytes(drafter_->files.config, plan_.draft_sizes(), job_.compute) : 0);
}

// For a step with one token of each sequence, when half of the new tokens are generated.
std::vector<double> GenerationJob::block_seconds() {
  const int64_t sequences = plan_.limits.max_sequences, all = std::max<int64_t>(1, prompts_.sequences),
                cached = std::min((prompts_.tokens + prompts_.new_tokens / 2) / all, job_.config().max_positions - 1);
  const BlockCosts measured =
      time_blocks(*job_.shards, job_.machine, job_.world, job_.compute, {.cached = cached},
                  {.small = (sequences + 1) / 2, .large = std::max<int64_t>(2, sequences)}, job_.load_timeout());
  std::vector<double> seconds;
  for (const StageTime& block : measured.blocks) seconds.push_back(block.seconds(static_cast<double>(sequences)));
  seconds.back() += measured.head.seconds(static_cast<double>(sequences));
  for (const int64_t block : block_kinds(job_.config()).examples)
    job_.say(fmt::format("{} tokens take {:.4f} ms in the {} of layer {}", sequences,
                         seconds[static_cast<size_t>(block)] * 1e3,
                         block % kBlocksOfLayer == 0 ? "token mixer" : "feed-forward", block / kBlocksOfLayer));
  job_.say(fmt::format("{} rows take {:.4f} ms in the LM head", sequences,
                       measured.head.seconds(static_cast<double>(sequences)) * 1e3));
  return seconds;
}

JobPlan GenerationJob::sizes_of(std::vector<LayerRange> cut) const {
  const LayerRange layers = cut[static_cast<size_t>(job_.pipeline.rank())];
  uint64_t bytes = 0;
  if (job_.makes_output() && !job_.options.output.empty()) {
    // Each completion is a part of the file, whose place is kept until the parts are sorted.
    const auto samples = static_cast<uint64_t>(job_.samples->left().samples);
    bytes += samples * sizeof(FilePart);
    if (job_.options.output.extension() == ".h5") bytes += samples * (sizeof(int64_t) + sizeof(int32_t));
  }
  if (job_.is_last()) bytes += plan_.adjustment_bytes(job_.config().vocab);
  bytes += plan_.tail_bytes(job_.config(), layers, job_.compute) + drafter_bytes(layers);
  if (drafter_ && job_.is_last()) bytes += held_bytes(drafter_->files, job_.compute);
  return {.cut = std::move(cut),
          .tokens = plan_.max_tokens(),
          .rows = job_.options.results.positions == Positions::kNone ? 0 : plan_.result_rows(),
          .job_bytes = bytes,
          .options = "--max-num-seqs or --max-batched-tokens"};
}

// The caches get the number of pages that the longest sequences could fill at the same time, or the number that fits
// into the memory of the fullest rank. Any replica may get any request, so all replicas have equal caches.
CacheShape GenerationJob::fit_caches(LayerRange layers) const {
  CacheShape shape = plan_.limits.caches;
  const int64_t largest = pages_for(prompts_.longest, shape.page_size);

  const int64_t rows = job_.is_last() ? plan_.result_rows() : 0;
  const StageMemory cost = stage_memory(job_.config(), layers, job_.compute, job_.compute, plan_.max_tokens(), rows);
  const uint64_t others = kBuffers * cost.residual_bytes + cost.scratch_bytes + cost.result_bytes +
                          (job_.is_last() ? plan_.adjustment_bytes(job_.config().vocab) : 0) +
                          plan_.tail_bytes(job_.config(), layers, job_.compute) + drafter_bytes(layers);
  const uint64_t free = job_.machine.backend->free_bytes();
  const uint64_t drafts =
      drafter_ && job_.is_last() ? draft_page_bytes(drafter_->files.config, job_.compute, shape) : 0;
  const auto bytes_of = [&](int64_t pages) {
    shape.set_pages(pages, plan_.limits.prompt_tokens);
    return cache_bytes(job_.config(), layers, job_.compute, shape) + static_cast<uint64_t>(pages) * drafts;
  };
  const double room = static_cast<double>(free) / job_.machine.sharing * kCacheShare - static_cast<double>(others);
  const bool unknown = free == 0 && !job_.machine.cuda;  // this host does not say how much memory is free
  const int64_t wanted = std::max(prompts_.pages, largest),
                own = unknown ? wanted : fitting_pages(wanted, room, bytes_of);
  const double fit = static_cast<double>(own), least = job_.world.smallest(fit, job_.options.timeout_seconds);
  const auto fitting = static_cast<int64_t>(least);
  if (fitting < largest && !(traffic_->kind.may_be_shortened && fitting > 0)) {
    if (fit > least) job_.world.barrier(job_.options.timeout_seconds, "the fullest rank ends all");
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("{} ({}): a sequence of {} positions needs {} pages of the key-value cache, {} fit into the "
                    "memory that is free: expected shorter samples, a smaller --max-tokens or more ranks",
                    job_.world.host(), job_.machine.backend->description(), plan_.longest, largest, fitting));
  }
  shape.set_pages(std::min(prompts_.pages, fitting), plan_.limits.prompt_tokens);
  return shape;
}

void GenerationJob::open(const JobPlan& plan) {
  if (drafter_ && job_.is_last()) load_drafter();
  plan_.limits.caches = fit_caches(plan.cut[static_cast<size_t>(job_.pipeline.rank())]);
  const CacheShape& caches = plan_.limits.caches;
  const std::string windows =
      caches.window > 0 ? fmt::format(", {} in sliding attention layers", caches.window_pages) : "";
  job_.say(fmt::format("up to {} sequences at a time, {} in a step; caches of {} pages of {} positions{}", caches.slots,
                       plan_.limits.max_sequences, caches.pages, caches.page_size, windows));
  generator_.emplace(job_.session->links(), plan_, job_.compute, !job_.options.trace.empty());
  if (job_.options.replicas > 1)
    links_.emplace(job_.world, job_.pipeline.size(), job_.options.timeout_seconds,
                   is_live(job_.options.command) || job_.world.rank() == 0 ? kSilentTimeouts : kSilentTimeoutsOfRank0);
  if (!job_.options.output.empty() && job_.makes_output() && !output_)
    output_ = job_.own(create_completion_file(job_.options.output, job_.output_job()));
  if (job_.options.output.empty() || job_.options.replicas == 1) return;
  const MpiGroup last_stages(job_.world, job_.is_last() ? 1 : 0);
  if (job_.is_last()) relay_.emplace(last_stages, job_.pipeline.size() - 1);
}

RunEnd GenerationJob::run() {
  hash_ = {};
  std::vector<CompletionConsumer*> consumers{&hash_};
  RemoteCompletions remote(relay_ ? &*relay_ : nullptr);
  if (output_) {
    if (job_.options.benchmark) output_->start_over();
    consumers.push_back(output_);
  } else if (relay_) {
    consumers.push_back(&remote);
  }
  Progress progress("generate", static_cast<uint64_t>(prompts_.new_tokens), Progress::Unit::kTokens,
                    job_.makes_output() && !is_live(job_.options.command) ? job_.options.progress : ProgressMode::kOff);
  if (job_.makes_output()) answer_errors(consumers);
  std::unique_ptr<ReplicaRequests> requests;
  if (job_.world.rank() == 0)
    requests = std::make_unique<FrontRequests>(traffic_->open(capacity()), links_ ? &*links_ : nullptr);
  else if (job_.is_first())
    requests = std::make_unique<RemoteRequests>(*links_, plan_.live);
  const auto stop = [&requests, asked = traffic_->stop_when()] {
    return asked() || (requests && requests->is_asked_to_stop());
  };
  const auto receive = [this](WordReader& part) { output_->consume(part.read<Completion>()); };
  const auto after_step = [&](int64_t tokens) {
    progress.add(static_cast<uint64_t>(tokens));
    if (!relay_) return;
    relay_->pass(receive);
    relay_->wait_for_room([&] {
      if (requests) requests->poll();
      relay_->pass(receive);
    });
  };
  generator_->run(requests.get(), consumers, after_step, stop, token_text(), job_.text.constraints());
  if (requests && !generator_->finished()) requests->stop_others();
  if (relay_) relay_->end(receive);
  hash_.add(job_.kept.results);
  return {.finished = generator_->finished(), .finished_samples = hash_.count()};
}

Capacity GenerationJob::capacity() const {
  const ScheduleLimits& limits = plan_.limits;
  const CacheShape& caches = limits.caches;
  return {.positions = std::min(job_.config().max_positions, caches.pages * caches.page_size),
          .sequences = caches.slots,
          .waiting_tokens = (limits.steps_in_flight + 1) * limits.prompt_tokens,
          .kept_pages = caches.keeps_prefixes ? caches.pages : 0,
          .page_size = caches.page_size};
}

// The bytes that a token adds to a text; null if this rank has no tokenizer.
TokenText GenerationJob::token_text() const {
  const Tokenizer* tokenizer = job_.text.tokenizer();
  if (tokenizer == nullptr) return {};
  return [tokenizer](int32_t token) {
    return tokenizer->is_special(token) ? std::string_view() : tokenizer->bytes(token);
  };
}

Figures GenerationJob::figures() const {
  if (!generator_) return {};
  Figures figures{.unit = "step", .trace = generator_->trace()};
  StageReport& stage = figures.stage;
  if (drafter_ && drafter_->weights) stage.weight_bytes = drafter_->weights->bytes();
  stage.activation_bytes = generator_->activation_bytes();
  stage.cache_bytes = generator_->cache_bytes();
  stage.times = generator_->times();
  if (job_.is_first()) stage.generation = summarize(generator_->generation_times(), generator_->counts());
  stage.not_finite = not_finite();
  if (job_.is_last() && job_.options.results.positions != Positions::kNone) stage.results_xxh3 = hash_.hex();
  stage.micro_batches = generator_->counts().steps;
  figures.job.largest_micro_batch = generator_->counts().largest_step;
  return figures;
}

}  // namespace lfm2
