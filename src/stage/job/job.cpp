// The order of a run: check everything that can be checked cheaply, load, compute, write, report.
#include "stage/job/job.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <span>

#include "comm/mpi_control_link.h"
#include "kernels/host_memory.h"
#include "stage/job/gpu_limits.h"
#include "stage/model/memory_plan.h"
#include "stage/pipeline/trace_writer.h"
#include "stage/scoring/cost_model.h"
#include "stage/support/json.h"
#include "stage/support/stop.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

// Threads that read shards: by then memory, not a processor, is the limit.
constexpr int kMostReaders = 16;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

ExitCode Job::run() {
  at({.phase = Phase::kRead});
  expect_one_program();
  form_pipelines();
  share_job(check_inputs());
  machine_ = choose_machine(options_, world_);
  if (machine_.cuda) expect_gpu_computes(shards_->config(), options_.weights.string());
  compute_ = options_.dtype.value_or(shards_->dtype());
  take_up();
  if (samples_->left().samples == 0) return finish_without_run();
  samples_->share();
  if (generates()) limit_steps();
  choose_cut();
  const int64_t tokens = samples_->left().tokens / options_.replicas;
  if (!generates())
    choose_plan(
        choose_target_tokens(tokens, pipeline_ranks_->size(), machine_.cuda ? kLargestCudaTarget : kLargestCpuTarget));
  check_memory();
  if (is_stopped_before_loading()) return finish_stopped();
  load_weights();
  at({.phase = Phase::kPrepare, .limit_seconds = load_timeout()});
  world_.barrier(load_timeout(), "weights loaded");
  if (generates()) {
    open_generation();
    run_generation();
    return finish();
  }
  if (machine_.cuda && options_.micro_batch == 0) measure_and_replan();
  pipeline_.emplace(link_stages(plan_.max_tokens), plan_, compute_, options_.results, !options_.trace.empty());
  open_results();
  open_output();
  run_pipeline();
  return finish();
}

StageLinks Job::link_stages(int64_t most_tokens) {
  const auto slot_elements = static_cast<size_t>(most_tokens * shards_->config().hidden);
  channel_ = make_channel(*pipeline_ranks_, machine_, slot_elements * size_bytes(compute_));
  control_ = std::make_unique<MpiControlLink>(*pipeline_ranks_);
  return {.backend = *machine_.backend,
          .stage = *stage_,
          .channel = channel_.get(),
          .control = control_.get(),
          .index = pipeline_ranks_->rank(),
          .stages = pipeline_ranks_->size(),
          .watchdog = world_.watchdog()};
}

void Job::at(const Place& place) const { world_.watchdog().enter(place); }

double Job::load_timeout() const { return kDiskFactor * options_.timeout_seconds; }

void Job::say(const std::string& line) const {
  if (options_.verbose) fmt::print(stderr, "lfm2_stage: rank {} ({}): {}\n", world_.rank(), world_.host(), line);
}

// Hosts may have programs of their own, each built from another state.
void Job::expect_one_program() const {
  const std::string mine = fmt::format("{}, bits {}", kVersionText, kBits);
  if (const std::string first = world_.broadcast(mine, 0, options_.timeout_seconds, "version"); first != mine)
    throw Error(ExitCode::kUnavailable,
                fmt::format("this is {}, rank 0 is {}: expected the same program on all hosts", mine, first));
}

void Job::form_pipelines() {
  const int replicas = options_.replicas;
  if (world_.size() % replicas != 0)
    throw Error(ExitCode::kUsage,
                fmt::format("{} ranks for --replicas {}: expected as many ranks for each", world_.size(), replicas));
  pipeline_ranks_.emplace(world_, world_.rank() / (world_.size() / replicas));
}

Samples Job::check_inputs() {
  Samples samples;
  const int stages = pipeline_ranks_->size();
  if (world_.rank() == 0) {
    shards_ = ShardSet::open(options_.weights);
    const ModelConfig& config = shards_->config();
    if (!options_.layer_counts.empty() && options_.layer_counts.size() != static_cast<size_t>(stages))
      throw Error(ExitCode::kUsage, fmt::format("--layers names {} stages, expected one for each of the {} ranks",
                                                options_.layer_counts.size(), stages));
    if (stages > config.layers)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("{} ranks for the {} layers of {}, expected at most a rank a layer", stages,
                              config.layers, options_.weights.string()));
    if (options_.input.empty()) {
      if (options_.length > config.max_positions)
        throw Error(ExitCode::kData, fmt::format("--length {}: expected at most max_position_embeddings = {}",
                                                 options_.length, config.max_positions));
      samples = random_samples(options_.samples, options_.length, options_.seed, config.vocab);
    } else {
      samples = read_samples(options_.input, {config.vocab, config.max_positions, options_.samples});
    }
    if (generates()) check_prompts(samples);
    if (options_.results.top_k > config.vocab)
      throw Error(ExitCode::kUsage, fmt::format("--top-logprobs {}: expected at most vocab_size = {}",
                                                options_.results.top_k, config.vocab));
    for (const int32_t token : options_.generation.eos_tokens)
      if (token >= config.vocab)
        throw Error(ExitCode::kUsage,
                    fmt::format("--eos {}: expected at most vocab_size - 1 = {}", token, config.vocab - 1));
    for (const auto& path : {options_.report, options_.trace})
      if (!path.empty()) check_output_place(path);
  }
  world_.barrier(load_timeout(), "inputs checked");
  if (world_.rank() != 0) shards_ = ShardSet::open(options_.weights);
  if (world_.broadcast(shards_->split_id(), 0, load_timeout(), "split id") != shards_->split_id())
    throw Error(ExitCode::kData,
                fmt::format("{}: holds another split here than on rank 0's host", options_.weights.string()));
  if (makes_output() && !options_.output.empty()) {
    check_output_place(options_.output);
    expect_names_are_ours(options_.output);
  }
  return samples;
}

// Cut before anything is loaded, so by an estimate; equal unless asked.
void Job::choose_cut() {
  const ModelConfig& config = shards_->config();
  const int64_t stages = pipeline_ranks_->size();
  if (!options_.layer_counts.empty()) {
    stages_ = explicit_partition(config.layers, options_.layer_counts);
  } else if (options_.balance && generates()) {
    std::vector<double> costs = estimate_layer_seconds(config, compute_, generation_.limits.most_sequences, 0);
    costs.back() += estimate_head_seconds(config, compute_);
    stages_ = balanced_partition(costs, stages);
  } else if (options_.balance) {
    const int64_t tokens =
        choose_target_tokens(samples_->left().tokens / options_.replicas, stages, kLargestCudaTarget);
    const int64_t samples = std::max<int64_t>(1, tokens / samples_->mean_length());
    const bool tails = options_.results.positions == Positions::kLast;
    const int64_t kept = tails ? samples * std::min(samples_->mean_length(), tail_length(config)) : 0;
    stages_ = balanced_partition(estimate_layer_seconds(config, compute_, tokens, kept), stages);
  } else {
    stages_ = equal_partition(config.layers, stages);
  }
}

// Whether the results of a rank, or the output it makes, cannot be placed without knowing where each sample begins.
bool Job::lists_offsets(int rank) const {
  const int stages = pipeline_ranks_->size();
  const bool hands_out = (rank + 1) % stages == 0, makes_file = rank + 1 == stages;
  return hands_out && !generates() &&
         (needs_offsets(makes_file ? options_.output : "", options_.results) || !options_.answers.empty());
}

void Job::share_job(Samples all) {
  std::vector<int> listing;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (lists_offsets(rank)) listing.push_back(rank);
  // .jsonl is written by one rank alone: the last one of the first pipeline.
  const bool names = options_.input.extension() == ".jsonl" && options_.output.extension() == ".jsonl";
  samples_.emplace(world_, std::move(all),
                   JobSamples::Distribution{.stages = pipeline_ranks_->size(),
                                            .listing_ranks = std::move(listing),
                                            .naming_rank = names ? pipeline_ranks_->size() - 1 : -1,
                                            .timeout_seconds = load_timeout()});
}

void Job::choose_plan(int64_t target_tokens) {
  if (is_first()) {
    const Samples& own = samples_->own_samples();
    micro_batches_.emplace(own.offsets, own.ids, samples_->own_range(), options_.micro_batch, target_tokens);
    plan_ = micro_batches_->plan();
    plan_.first_sample = samples_->own_share().samples.first;
    plan_.first_token = samples_->own_share().first_token;
  }
  pipeline_ranks_->broadcast(&plan_, sizeof plan_, 0, load_timeout(), "plan");
  say(fmt::format("layers {} to {}, {} micro-batches of up to {} tokens", layers().first, layers().end() - 1,
                  plan_.micro_batches, plan_.max_tokens));
}

void Job::measure_and_replan() {
  const int64_t length = samples_->mean_length(), tail = tail_length(shards_->config());
  double tail_share = 1;
  if (options_.results.positions == Positions::kLast && tail > 0) {
    const std::vector<double> all = estimate_layer_seconds(shards_->config(), compute_, kLargestCudaTarget, 0);
    const std::vector<double> cut =
        estimate_layer_seconds(shards_->config(), compute_, kLargestCudaTarget,
                               std::max<int64_t>(1, kLargestCudaTarget / length * std::min(length, tail)));
    const auto sum = [this](const std::vector<double>& seconds) {
      return std::accumulate(seconds.begin() + layers().first, seconds.begin() + layers().end(), 0.0);
    };
    tail_share = sum(cut) / sum(all);
  }
  const StageCostModel mine = measure_stage_cost(*machine_.backend, *stage_, compute_, length, tail_share);
  say(fmt::format("a micro-batch of n tokens takes {:.3f} + n {:.6f} ms", mine.fixed * 1e3, mine.per_token * 1e3));
  const std::string text = Json{{"fixed", mine.fixed}, {"per_token", mine.per_token}}.dump();
  std::vector<StageCostModel> stages;
  for (const std::string& line : pipeline_ranks_->gather(text, 0, options_.timeout_seconds, "speeds")) {
    const Json json = Json::parse(line);
    stages.push_back({.fixed = json.at("fixed"), .per_token = json.at("per_token")});
  }
  int64_t target = 0;
  if (is_first()) target = best_target_tokens(stages, plan_.tokens, length, kLargestMeasuredTarget);
  choose_plan(target);
}

// What grows with the job and is still to be allocated on this rank: the plan, and of an output what is known of each
// finished sample until all are.
uint64_t Job::job_bytes() const {
  uint64_t bytes = micro_batches_ ? micro_batches_->memory_bytes() : 0;
  if (makes_output() && !options_.output.empty()) {
    // Completions are noted one by one, and put into the samples' order at the end; rows are noted as they follow one
    // another, and as a rule there are few gaps.
    const auto samples = static_cast<uint64_t>(samples_->left().samples);
    if (generates()) bytes += 2 * samples * sizeof(JournalRecord);
    if (generates() && options_.output.extension() == ".h5") bytes += samples * (sizeof(int64_t) + sizeof(int32_t));
  }
  return bytes;
}

void Job::check_memory() const {
  if (machine_.cuda) return;  // a GPU says so itself when an allocation fails: its memory is not overcommitted
  const bool all = options_.results.positions == Positions::kAll;
  const int64_t tokens = generates() ? generation_.most_tokens() : plan_.max_tokens;
  StageCost cost = measure_stage(shards_->config(), layers(), compute_, compute_, tokens,
                                 options_.results.positions == Positions::kNone ? 0
                                 : all                                          ? tokens
                                 : generates()                                  ? generation_.limits.most_sequences
                                                                                : plan_.max_samples);
  cost.weight_bytes = held_bytes(tensors(), compute_);
  const auto needed =
      static_cast<uint64_t>(world_.sum_on_host(static_cast<int64_t>(cost.total_bytes(kSlots) + job_bytes())));
  const uint64_t available = available_host_memory();
  if (available > 0 && needed > available)
    throw Error(ExitCode::kUnavailable,
                fmt::format("{} ranks on {} need {:.2f} GB of memory, {:.2f} GB are available: use more hosts, or a "
                            "smaller {}",
                            world_.local_size(), world_.host(), static_cast<double>(needed) / 1e9,
                            static_cast<double>(available) / 1e9,
                            generates() ? "--max-sequences or --prefill-chunk" : "--micro-batch"));
}

void Job::load_weights() {
  at({.phase = Phase::kLoad});
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (const ShardTensor* tensor : tensors()) bytes += tensor->bytes;
  Progress progress("load", bytes, Progress::Unit::kBytes, world_.rank() == 0 ? options_.progress : ProgressMode::kOff,
                    [this] { world_.watchdog().pulse(); });
  const int readers = std::min(world_.fair_share_of_processors(), kMostReaders);
  weights_.emplace(*shards_, *machine_.backend, compute_, progress, readers);
  stage_.emplace(*weights_, shards_->config(), layers());
  weights_->finish();
  weights_->expect_all_loaded(tensors());
  report_.load_seconds = seconds_since(start);
  report_.weight_bytes = weights_->bytes();
  say(fmt::format("loaded {:.2f} GB in {:.2f} s", static_cast<double>(bytes) / 1e9, report_.load_seconds));
}

void Job::open_results() {
  if (!is_last()) return;
  if (!options_.answers.empty())
    validation_.emplace(
        open_answers(options_.answers, options_.results.positions, samples_->offsets(), shards_->config().vocab),
        shards_->config().vocab, options_.tolerance);
}

// The first replica makes the file, the others write their rows into it. Collective.
void Job::open_output() {
  if (options_.output.empty()) return;
  const OutputJob job = output_job();
  if (makes_output() && !output_) output_ = create_output(options_.output, job);
  if (options_.replicas == 1) return;
  const std::string shared = world_.broadcast(makes_output() ? output_->shared() : "", pipeline_ranks_->size() - 1,
                                              options_.timeout_seconds, "output file");
  if (is_last() && !makes_output()) output_ = join_output(options_.output, shared, job);
  const bool one_page_cache = world_.all_ranks(!output_ || output_->has_page_cache_of(shared));
  if (output_) output_->write_with_others(first_rows_of_replicas(), one_page_cache);
}

std::vector<int64_t> Job::first_rows_of_replicas() const {
  std::vector<int64_t> rows;
  for (int64_t replica = 0; replica < options_.replicas; ++replica) {
    const int64_t sample = samples_->numbers()[samples_->share_of(replica).samples.first];
    rows.push_back(options_.results.positions == Positions::kAll ? samples_->offsets()[sample] : sample);
  }
  return rows;
}

// Where replicas on several hosts wrote one file. Collective.
void Job::exchange_seams() {
  if (options_.replicas == 1 || options_.output.empty()) return;
  std::string all;
  for (const std::string& seams :
       world_.gather(output_ ? output_->take_seams() : "", 0, load_timeout(), "seams of the output"))
    all += seams;
  all = world_.broadcast(all, 0, load_timeout(), "seams of the output");
  if (output_) output_->write_seams(all);
}

// Times `run_once` as often as --benchmark asks, all ranks together; until one of them says that it was stopped.
void Job::run_repeatedly(const std::function<bool()>& run_once) {
  const int runs = options_.benchmark ? options_.warmup + options_.repeat : 1;
  for (int run = 0; run < runs && !stopped_; ++run) {
    world_.barrier(options_.timeout_seconds, "start of a run");
    const auto start = std::chrono::steady_clock::now();
    const bool whole = run_once();
    // Pipelines side by side may end far apart, on hosts that do not see each other's stamps; a rank that hangs is
    // noticed by those of its own.
    world_.barrier(options_.replicas > 1 ? std::numeric_limits<double>::infinity() : options_.timeout_seconds,
                   "end of a run");
    if (!options_.benchmark || run >= options_.warmup) seconds_.push_back(seconds_since(start));
    stopped_ = world_.smallest(whole ? 1 : 0, options_.timeout_seconds) == 0;
  }
}

void Job::run_pipeline() {
  run_repeatedly([this] {
    hash_.emplace(result_threads_ ? &*result_threads_ : nullptr);
    std::vector<ResultConsumer*> consumers{&*hash_};
    if (output_ && options_.benchmark) output_->start_over();
    if (output_) consumers.push_back(output_.get());
    if (validation_) {
      validation_->start_over();
      replay_kept();
      consumers.push_back(&*validation_);
    }
    SampleCounter counter(options_.results.positions, samples_->offsets(), *hash_, output_.get());
    consumers.push_back(&counter);
    RenumberedRows renumbered(options_.results.positions, samples_->offsets_left(), samples_->numbers(),
                              samples_->offsets(), consumers);
    if (!samples_->numbers().all_are_left()) consumers = {&renumbered};
    // The last stage knows what is done; one bar, on its side.
    Progress progress("run", static_cast<uint64_t>(plan_.samples), Progress::Unit::kSamples,
                      makes_output() ? options_.progress : ProgressMode::kOff);
    try {
      pipeline_->run(
          micro_batches_ ? &*micro_batches_ : nullptr, consumers,
          [&](const MicroBatch& item) { progress.add(static_cast<uint64_t>(item.samples)); }, stop_requested);
    } catch (...) {
      pipeline_->stop_results();  // its thread uses what ends here
      throw;
    }
    hash_->add(kept_results_);
    handed_out_ = counter.count();
    return pipeline_->finished();
  });
}

ExitCode Job::finish() {
  at({.phase = Phase::kWrite});
  exchange_seams();
  if (stopped_) return finish_stopped();
  if (output_ && !makes_output()) output_->commit();
  world_.barrier(load_timeout(), "results written");
  if (output_ && makes_output()) output_->commit();
  if (completions_) completions_->commit();
  if (!options_.trace.empty())
    write_trace(world_,
                {.rank = world_.rank(),
                 .device = machine_.backend->description(),
                 .unit = generates() ? "step" : "micro-batch",
                 .events = generates() ? generator_->trace() : pipeline_->trace()},
                options_.trace, options_.timeout_seconds);
  report_.stage = world_.rank();
  report_.layers = layers();
  report_.host = world_.host();
  report_.device = machine_.backend->description();
  report_.activation_bytes = generates() ? generator_->activation_bytes() : pipeline_->activation_bytes();
  report_.peak_host_bytes = peak_host_bytes();
  report_.times = generates() ? generator_->times() : pipeline_->times();

  if (is_last() && validation_) report_.verdict = validation_->verdict();
  if (is_last() && options_.results.positions != Positions::kNone)
    report_.results_xxh3 = generates() ? completion_hash_.hex() : hash_->hex();
  if (generates()) {
    report_.cache_bytes = generator_->cache_bytes();
    if (is_first()) report_.generation = summarize(generator_->generation_times());
  }
  const std::vector<std::string> stages = world_.gather(to_json(report_), 0, load_timeout(), "figures");
  int32_t valid = 1;
  if (world_.rank() == 0) {
    JobReport job{.model_type = std::string(shards_->config().type_name()),
                  .dtype = std::string(name(compute_)),
                  .transport = pipeline_ranks_->size() == 1 ? "no transport" : machine_.transport_name(),
                  .version = kVersionText,
                  .layers = shards_->config().layers,
                  .samples = samples_->left().samples,
                  .tokens = samples_->left().tokens,
                  .replicas = options_.replicas,
                  .kept_samples = samples_->size().samples - samples_->left().samples,
                  .micro_batches = generates() ? generator_->steps() : plan_.micro_batches,
                  .largest_micro_batch = generates() ? generator_->largest_step() : plan_.max_samples,
                  .results = options_.results,
                  .generation = {},
                  .seconds = seconds_,
                  .stages = {},
                  .results_xxh3 = {},
                  .verdict = {}};
    for (const std::string& stage : stages) job.stages.push_back(stage_report_from_json(stage));
    job.results_xxh3 = merged_results_xxh3(job.stages);
    job.verdict = merged_verdict(job.stages);
    job.generation = merged_generation(job.stages);
    valid = !job.verdict || job.verdict->valid() ? 1 : 0;
    if (!options_.report.empty()) {
      const std::string text = to_json(job);
      AtomicFile file(options_.report);
      file.write(std::as_bytes(std::span(text)));
      file.commit();
    }
    if (!options_.quiet) fmt::print("{}", end_table(job));
    std::fflush(stdout);
  }
  world_.broadcast(&valid, sizeof valid, 0, load_timeout(), "verdict");  // all exit alike
  at({.phase = Phase::kEnd});
  return valid != 0 ? ExitCode::kOk : ExitCode::kInvalid;
}

}  // namespace lfm2
