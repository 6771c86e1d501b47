// The order of a job: check everything that can be checked cheaply, load, compute, write, report.
#include "stage/job/job.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <span>

#include "base/host_memory.h"
#include "base/standard_streams.h"
#include "comm/mpi_control_link.h"
#include "openai/request_line.h"
#include "stage/io/output_place.h"
#include "stage/io/scores.h"
#include "stage/job/chat_job.h"
#include "stage/job/generation_job.h"
#include "stage/job/gpu_limits.h"
#include "stage/job/scoring_job.h"
#include "stage/pipeline/trace_writer.h"
#include "stage/report/end_table.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

// The most threads that hash and write results. Each fills fresh memory at about 2.7 GB/s, while a GPU delivers up to
// 55 GB/s. A slice of logits has 64 rows, so that each thread takes three of them.
constexpr int kMaxResultThreads = 22;
// The most threads that read shards: with more of them memory is the limit, not the processors.
constexpr int kMaxReaders = 16;

// Error(kUnavailable) where this program is another one than that of rank 0: each host may have its own, built from
// another state of the source.
void expect_one_program(const Options& options, MpiWorld& world) {
  const std::string mine = fmt::format("{}, bits {}", kVersionText, kBits);
  if (const std::string first = world.broadcast(mine, 0, options.timeout_seconds, "version"); first != mine)
    throw Error(ExitCode::kUnavailable,
                fmt::format("this is {}, rank 0 is {}: expected the same program on all hosts", mine, first));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::unique_ptr<Job> make_job(const Options& options, MpiWorld& world, const MakeJob& make_serving_job) {
  expect_one_program(options, world);
  JobText text(options, world);
  if (options.command == Command::kServe) return make_serving_job(options, world, std::move(text));
  if (options.command == Command::kChat) return std::make_unique<ChatJob>(options, world, std::move(text));
  if (text.continues()) return std::make_unique<GenerationJob>(options, world, std::move(text));
  Options scoring = options;
  if (text.embeds()) {
    ResultKind& results = scoring.results;
    if (results.hidden == Hidden::kNone) results.hidden = Hidden::kMean;
    results.positions = Positions::kAll;
    results.embeddings = true;
  }
  return std::make_unique<ScoringJob>(scoring, world, std::move(text));
}

ExitCode Job::run() {
  enter({.phase = Phase::kRead});
  form_pipelines();
  share_job(check_inputs());
  enter({.phase = Phase::kPrepare, .limit_seconds = kStartTimeout});
  machine_ = choose_machine(options_, world_, ranks_at_once());
  enter({.phase = Phase::kRead});
  if (pipeline_ranks_->size() > 1) say("hidden states go over " + machine_.transport_name());
  if (machine_.cuda) expect_gpu_computes(config(), options_.weights.string());
  compute_ = options_.dtype.value_or(shards_->dtype());
  leave_out_finished();
  if (samples_->left().samples == 0) return finish_without_run();
  samples_->share();
  plan();
  check_memory();
  if (is_stopped_before_loading()) return finish_stopped();
  before_loading();
  load_weights();
  enter({.phase = Phase::kPrepare, .limit_seconds = load_timeout()});
  world_.barrier(load_timeout(), "weights loaded");
  open();
  run_repeatedly();
  return finish();
}

void Job::enter(const Place& place) const { world_.watchdog().enter(place); }

double Job::load_timeout() const { return kDiskFactor * options_.timeout_seconds; }

void Job::say(const std::string& line) const {
  if (options_.verbose) lfm2::say(fmt::format("lfm2_stage: rank {} ({}): {}", world_.rank(), world_.host(), line));
}

void Job::form_pipelines() {
  pipeline_ranks_.emplace(world_, world_.rank() / ranks_of_a_pipeline(world_.size(), options_.replicas));
}

void Job::open_shards() {
  shards_ = ShardSet::open(options_.weights);
  leave_out_unneeded(*shards_, options_.results);
}

Samples Job::read_input() {
  const ModelConfig& config = this->config();
  if (options_.command != Command::kRun || is_input_of_lines(options_.input)) {
    ThreadPool threads(std::min(world_.fair_share_of_processors(), kMaxReaders));
    return text_.read(config, threads);
  }
  const int64_t most = max_sample_tokens(options_, config);
  if (!options_.input.empty())
    return read_samples(options_.input, {config.vocab, most, options_.samples, options_.results.score},
                        [this] { pulse_while_reading(world_); });
  if (options_.length > most)
    throw Error(ExitCode::kData, fmt::format("--length {}: expected at most {}", options_.length,
                                             max_length_text(most, options_.results.score)));
  return random_samples(options_.samples, options_.length, options_.seed, config.vocab);
}

// Finds what of the samples is scored, on rank 0.
void Job::prepare_scoring(Samples& samples) {
  if (options_.stride >= config().max_positions)
    throw Error(ExitCode::kUsage, fmt::format("--stride {}: expected fewer than max_position_embeddings = {}",
                                              options_.stride, config().max_positions));
  find_scored(samples, text_.tokenizer(), options_.input.empty() ? "--length" : options_.input.string(),
              [this] { world_.watchdog().pulse(); });
}

Samples Job::check_inputs() {
  Samples samples;
  const int stages = pipeline_ranks_->size();
  if (world_.rank() == 0) {
    open_shards();
    const ModelConfig& config = shards_->config();
    if (stages > config.layers)
      throw Error(
          ExitCode::kUnavailable,
          fmt::format("{} ranks for the {}{} layers of {}, expected at most a rank a layer", stages,
                      options_.results.after_layer > 0 ? "first " : "", config.layers, options_.weights.string()));
    given_partition(config.layers, stages, options_.layer_counts,
                    std::max<int64_t>(1, options_.virtual_stages));  // for its refusals
    text_.open(*shards_);
    samples = read_input();
    if (options_.results.score) prepare_scoring(samples);
    check_samples(samples);
    if (options_.output.extension() == ".h5") expect_ids_for_h5(samples.names);
    if (options_.results.top_k > config.vocab)
      throw Error(ExitCode::kUsage, fmt::format("--top-logprobs {}: expected at most vocab_size = {}",
                                                options_.results.top_k, config.vocab));
    for (const int32_t token : options_.generation.sampling.eos_tokens)
      if (token >= config.vocab)
        throw Error(ExitCode::kUsage,
                    fmt::format("--eos {}: expected at most vocab_size - 1 = {}", token, config.vocab - 1));
    for (const auto& path : {options_.report, options_.trace})
      if (!path.empty()) check_output_place(path);
  }
  world_.barrier(load_timeout(), "inputs checked");
  if (world_.rank() != 0) open_shards();
  if (world_.broadcast(shards_->split_id(), 0, load_timeout(), "split id") != shards_->split_id())
    throw Error(ExitCode::kData,
                fmt::format("{}: holds another split here than on rank 0's host", options_.weights.string()));
  if (makes_output() && !options_.output.empty()) {
    check_output_place(options_.output);
    expect_names_are_ours(options_.output);
  }
  return samples;
}

void Job::share_job(Samples all) {
  for (const SampleRules& rules : all.rules.distinct())  // as many as any line asks for
    options_.results.top_k = std::max<int64_t>(options_.results.top_k, rules.log_probs.value_or(0));
  std::vector<int> listing;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (lists_offsets(rank)) listing.push_back(rank);
  // One rank alone writes .jsonl, makes .h5, and answers lines that were refused, without --output too: the last one of
  // the first pipeline.
  const bool names = (is_input_of_lines(options_.input) || options_.input.extension() == ".h5") &&
                     options_.output.extension() != ".bin";
  samples_.emplace(world_, std::move(all),
                   JobSamples::Distribution{.stages = pipeline_ranks_->size(),
                                            .listing_ranks = std::move(listing),
                                            .naming_rank = names ? pipeline_ranks_->size() - 1 : -1,
                                            .may_leave_out = options_.resume,
                                            .scores = options_.results.score,
                                            .embeddings = options_.results.embeddings,
                                            .timeout_seconds = load_timeout()});
  text_.share(load_timeout());
  world_.broadcast(&options_.results.top_k, sizeof options_.results.top_k, 0, load_timeout(), "log-probabilities");
}

ThreadPool& Job::result_threads() {
  // Beside GPUs, those ranks alone need their processors that hand out results. There the threads stay awake from one
  // slice of rows to the next: to wake an idle processor of a virtual machine takes as long as to hash a row. One
  // processor is left to the rank's own thread.
  if (!result_threads_) result_threads_.emplace(result_thread_count(), machine_.cuda);
  return *result_threads_;
}

int Job::result_thread_count() const {
  const int share = machine_.cuda ? std::max(1, world_.fair_share_of_processors(pipelines_on_host()) - 1)
                                  : world_.fair_share_of_processors();
  return std::min(share, kMaxResultThreads);
}

int64_t Job::pipelines_on_host() const {
  return std::clamp<int64_t>(world_.local_size() / pipeline_ranks_->size(), 1, options_.replicas);
}

OutputJob Job::output_job() {
  JobSize size = samples_->size();
  if (options_.results.score || options_.results.embeddings) size.tokens = samples_->offsets().back();
  return {.kind = options_.results,
          .vocab = config().vocab,
          .hidden = config().hidden,
          .size = size,
          .offsets = &samples_->offsets(),
          .names = &samples_->names(),
          .scored_bytes = samples_->scored_bytes(),
          .embeddings = options_.results.embeddings ? &samples_->embeddings() : nullptr,
          .tokenizer = text_.tokenizer(),
          .facts = {std::string(config().type_name()), std::string(lfm2::name(compute_)), shards_->split_id(),
                    kVersionText, text_.now()},
          .threads = &result_threads(),
          .identity = options_.benchmark ? "" : identity_,
          .replica = replica(),
          .replicas = options_.replicas,
          .pulse = [this] { world_.watchdog().pulse(); }};
}

void Job::check_memory() const {
  if (machine_.cuda) return;  // memory of a GPU is not overcommitted: an allocation that does not fit fails at once
  const Portion largest = portion();
  const StageMemory cost = stage_memory(*shards_, pieces(), compute_, largest.tokens, largest.rows);
  const auto needed = static_cast<uint64_t>(world_.sum_on_host(
      static_cast<int64_t>(cost.total_bytes(static_cast<uint64_t>(largest.buffers)) + largest.job_bytes)));
  const uint64_t available = available_host_memory();
  if (available > 0 && needed > available)
    throw Error(ExitCode::kUnavailable,
                fmt::format("{} ranks on {} need {:.2f} GB of memory, {:.2f} GB are available: use more hosts, or a "
                            "smaller {}",
                            world_.local_size(), world_.host(), static_cast<double>(needed) / 1e9,
                            static_cast<double>(available) / 1e9, largest.options));
}

void Job::load_weights() {
  enter({.phase = Phase::kLoad});
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (const ShardTensor* tensor : stage_tensors(*shards_, pieces())) bytes += tensor->bytes;
  Progress progress("load", bytes, Progress::Unit::kBytes, world_.rank() == 0 ? options_.progress : ProgressMode::kOff,
                    [this] { world_.watchdog().pulse(); });
  Session::Place place{
      .backend = *machine_.backend,
      .watchdog = world_.watchdog(),
      .index = pipeline_ranks_->rank(),
      .stages = pipeline_ranks_->size(),
      .pieces = pieces(),
      .compute = compute_,
      .make_channel = [this](const ChannelShape& shape) { return make_channel(*pipeline_ranks_, machine_, shape); },
      .control = std::make_unique<MpiControlLink>(*pipeline_ranks_)};
  session_.emplace(*shards_, std::move(place), progress, std::min(world_.fair_share_of_processors(), kMaxReaders));
  load_seconds_ = seconds_since(start);
  say(fmt::format("loaded {:.2f} GB in {:.2f} s", static_cast<double>(bytes) / 1e9, load_seconds_));
}

// Calls and times run_once() as often as --benchmark asks, or once, on all ranks together. Ends where it says on any
// rank that it was stopped.
void Job::run_repeatedly() {
  const int runs = options_.benchmark ? options_.warmup + options_.repeat : 1;
  for (int run = 0; run < runs && !runs_.stopped; ++run) {
    world_.barrier(options_.timeout_seconds, "start of a run");
    const auto start = std::chrono::steady_clock::now();
    const bool whole = run_once();
    // Replicas may end far apart, on hosts that do not see each other's stamps, so this barrier has no limit. A rank
    // that hangs is noticed by the ranks of its own pipeline.
    world_.barrier(options_.replicas > 1 ? std::numeric_limits<double>::infinity() : options_.timeout_seconds,
                   "end of a run");
    if (!options_.benchmark || run >= options_.warmup) runs_.seconds.push_back(seconds_since(start));
    runs_.stopped = world_.smallest(whole ? 1 : 0, options_.timeout_seconds) == 0;
  }
}

ExitCode Job::finish() {
  enter({.phase = Phase::kWrite});
  end_runs();
  if (runs_.stopped) return finish_stopped();
  expect_all_samples();
  // The rank that made the file renames it, after all other ranks have made their rows durable.
  if (output() != nullptr && !makes_output()) output()->commit();
  world_.barrier(load_timeout(), "results written");
  if (output() != nullptr && makes_output()) output()->commit();
  if (!options_.trace.empty())
    write_trace(world_,
                {.rank = world_.rank(),
                 .device = machine_.backend->description(),
                 .unit = trace().unit,
                 .shape = shape(),
                 .events = trace().events},
                options_.trace, options_.timeout_seconds);
  const std::vector<std::string> stages = world_.gather(to_json(stage_report()), 0, load_timeout(), "figures");
  // All ranks end with the same exit code.
  const std::string found =
      world_.broadcast(world_.rank() == 0 ? write_report(stages) : "", 0, load_timeout(), "verdict");
  if (!found.empty()) mark_finished(found);
  enter({.phase = Phase::kEnd});
  return found.empty() ? ExitCode::kInvalid : ExitCode::kOk;
}

StageReport Job::stage_report() const {
  StageReport report;
  report.rank = world_.rank();
  report.stage = pipeline_ranks_->rank();
  report.pieces = pieces();
  report.host = world_.host();
  report.device = machine_.backend->description();
  report.load_seconds = load_seconds_;
  report.weight_bytes = session_->weight_bytes();
  report.peak_host_bytes = peak_host_bytes();
  add_to(report);
  return report;
}

// On stderr, also with --quiet: whoever reads the output alone would take such results for the model's.
void Job::say_not_finite(const NotFinite& found) const {
  if (found.count == 0) return;
  const std::string cause = compute_ == DType::kF32
                                ? "far too large"
                                : fmt::format("too large for {}: try --dtype fp32", lfm2::name(compute_));
  lfm2::say(fmt::format("lfm2_stage: {}: weights in {} are not finite, or {}", not_finite_text(found),
                        options_.weights.string(), cause));
}

// Prints and writes the report, on rank 0. Returns what it found, and "" where results were compared with answers and
// are not valid.
std::string Job::write_report(const std::vector<std::string>& stages) const {
  JobReport job{.model_type = std::string(config().type_name()),
                .dtype = std::string(name(compute_)),
                .transport = pipeline_ranks_->size() == 1 ? "no transport" : machine_.transport_name(),
                .version = kVersionText,
                .layers = config().layers,
                .virtual_stages = shape().pieces,
                .samples = samples_->left().samples,
                .tokens = samples_->left().tokens,
                .replicas = options_.replicas,
                .error_answers = static_cast<int64_t>(samples_->errors().size()),
                .kept_samples = samples_->size().samples - samples_->left().samples,
                .results = options_.results,
                .generation = {},
                .seconds = runs_.seconds,
                .stages = {},
                .results_xxh3 = {},
                .verdict = {}};
  add_to(job);
  for (const std::string& stage : stages) job.stages.push_back(stage_report_from_json(stage));
  job.results_xxh3 = merged_results_xxh3(job.stages);
  job.verdict = merged_verdict(job.stages);
  job.generation = merged_generation(job.stages);
  job.scores = merged_scores(job.stages);
  job.not_finite = merged_not_finite(job.stages);
  if (!options_.report.empty()) {
    const std::string text = to_json(job);
    AtomicFile file(options_.report);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }
  if (!options_.quiet) print_results(end_table(job));
  say_not_finite(job.not_finite);
  return !job.verdict || job.verdict->valid() ? found_text(job) : "";
}

}  // namespace lfm2
