#include "stage/job/job_frame.h"

#include <algorithm>

#include "base/standard_streams.h"
#include "openai/request_line.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/output_place.h"
#include "stage/io/scores.h"
#include "stage/scoring/planning/scoring_demand.h"
#include "stage/shards/fp8_weights.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

// Error(kUnavailable) if this rank's program differs from that of rank 0: hosts may have programs built from different
// sources.
MpiWorld& with_one_program(const Options& options, MpiWorld& world) {
  const std::string mine = fmt::format("{}, bits {}", kVersionText, kBits);
  if (const std::string first = world.broadcast(mine, 0, options.timeout_seconds, "version"); first != mine)
    throw Error(ExitCode::kUnavailable,
                fmt::format("this is {}, rank 0 is {}: expected the same program on all hosts", mine, first));
  return world;
}

}  // namespace

JobFrame::JobFrame(const Options& given, MpiWorld& all_ranks)
    : options(given),
      world(with_one_program(given, all_ranks)),
      text(given, world),
      pipeline(world, world.rank() / ranks_of_a_pipeline(world.size(), options.replicas)) {
  if (!text.embeds()) return;
  ResultKind& results = options.results;
  if (results.hidden == Hidden::kNone) results.hidden = Hidden::kMean;
  results.positions = Positions::kAll;
  results.embeddings = true;
}

double JobFrame::load_timeout() const { return kDiskFactor * options.timeout_seconds; }

void JobFrame::say(const std::string& line) const {
  if (options.verbose) lfm2::say(fmt::format("lfm2_stage: rank {} ({}): {}", world.rank(), world.host(), line));
}

ThreadPool& JobFrame::result_threads() {
  // With GPUs, only last stages need CPU time, to hash and write results. Their threads stay awake from one slice of
  // rows to the next: to wake an idle processor of a virtual machine takes as long as to hash a row.
  if (!hashers) hashers.emplace(result_thread_count(), machine.cuda);
  return *hashers;
}

int JobFrame::result_thread_count() const {
  return lfm2::result_thread_count(machine.cuda, machine.cuda ? world.fair_share_of_processors(pipelines_on_host())
                                                              : world.fair_share_of_processors());
}

int64_t JobFrame::pipelines_on_host() const {
  return std::clamp<int64_t>(world.local_size() / pipeline.size(), 1, options.replicas);
}

OutputJob JobFrame::output_job() {
  JobSize size = samples->size();
  if (options.results.score || options.results.embeddings) size.tokens = samples->offsets().back();
  return {.kind = options.results,
          .vocab = config().vocab,
          .hidden = config().hidden,
          .size = size,
          .offsets = &samples->offsets(),
          .names = &samples->names(),
          .scored_bytes = samples->scored_bytes(),
          .embeddings = options.results.embeddings ? &samples->embeddings() : nullptr,
          .tokenizer = text.tokenizer(),
          .facts = {std::string(config().type_name()), std::string(dtype()), shards->split_id(), kVersionText,
                    text.now(), config().fp8_cache ? std::string(cache_dtype()) : ""},
          .threads = &result_threads(),
          .identity = options.benchmark ? "" : identity,
          .replica = replica(),
          .pulse = [this] { world.watchdog().pulse(); }};
}

namespace {

void open_shards(JobFrame& job) {
  job.shards = ShardSet::open(job.options.weights);
  leave_out_unneeded(*job.shards, job.options.results);
}

// Each rank reads a part of the scales, so that a bad one is refused before any rank reads weights.
void check_scales(const JobFrame& job) {
  if (fp8_kind(*job.shards).scheme.empty()) return;
  expect_scales(*job.shards, static_cast<size_t>(job.world.rank()), static_cast<size_t>(job.world.size()));
  job.world.barrier(job.load_timeout(), "scales checked");
}

Samples read_input(JobFrame& job) {
  const ModelConfig& config = job.config();
  if (job.options.command != Command::kRun || is_input_of_lines(job.options.first_input())) {
    ThreadPool threads(std::min(job.world.fair_share_of_processors(), kMaxReaders));
    return job.text.read(config, threads);
  }
  const int64_t most = max_sample_tokens(job.options, config);
  if (!job.options.inputs.empty())
    return read_samples(job.options.inputs, {config.vocab, most, job.options.samples, job.options.results.score},
                        [&job] { pulse_while_reading(job.world); });
  if (job.options.length > most)
    throw Error(ExitCode::kData, fmt::format("--length {}: expected at most {}", job.options.length,
                                             max_length_text(most, job.options.results.score)));
  return random_samples(job.options.samples, job.options.length, job.options.seed, config.vocab);
}

// Determines the scored tokens, on rank 0.
void prepare_scoring(JobFrame& job, Samples& samples) {
  if (job.options.stride >= job.config().max_positions)
    throw Error(ExitCode::kUsage, fmt::format("--stride {}: expected fewer than max_position_embeddings = {}",
                                              job.options.stride, job.config().max_positions));
  find_scored(samples, job.text.tokenizer(),
              job.options.inputs.empty() ? "--length" : job.options.first_input().string(),
              [&job] { job.world.watchdog().pulse(); });
}

// Of a job that generates.
void check_prompts(const JobFrame& job, const Samples& prompts) {
  const int64_t max_positions = job.config().max_positions;
  for (int64_t i = 0; i < prompts.count(); ++i)
    if (const int64_t prompt = prompts.offsets.length(i); prompt >= max_positions)
      throw Error(
          ExitCode::kData,
          fmt::format("sample {}: {} tokens, expected fewer than max_position_embeddings = {} to leave room for "
                      "--max-tokens",
                      i, prompt, max_positions));
  const std::vector<SampleRules>& rules = prompts.rules.distinct();
  if (job.options.output.extension() == ".h5" &&
      std::any_of(rules.begin(), rules.end(), [](const SampleRules& one) { return one.choices > 1 || one.echo; }))
    throw Error(ExitCode::kUsage, "--output with .h5 and lines with \"n\" above 1 or \"echo\": expected .jsonl");
}

// Whether the rank needs to know where each sample begins: to place the results that it emits, or to create the output.
bool lists_offsets(const JobFrame& job, int rank) {
  if (job.text.continues()) return false;
  const int stages = job.pipeline.size();
  const bool hands_out = (rank + 1) % stages == 0, makes_file = rank + 1 == stages;
  return hands_out &&
         (needs_offsets(makes_file ? job.options.output : "", job.options.results) || !job.options.reference.empty());
}

}  // namespace

Samples check_inputs(JobFrame& job) {
  Samples samples;
  const int stages = job.pipeline.size();
  if (job.world.rank() == 0) {
    open_shards(job);
    const ModelConfig& config = job.shards->config();
    if (stages > config.layers)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("{} ranks for the {}{} layers of {}, expected at most a rank a layer", stages,
                              job.options.results.after_layer > 0 ? "first " : "", config.layers,
                              job.options.weights.string()));
    given_partition(config.layers, stages, job.options.layer_counts,
                    std::max<int64_t>(1, job.options.virtual_stages));  // for its refusals
    job.text.open(*job.shards);
    samples = read_input(job);
    if (job.options.results.score) prepare_scoring(job, samples);
    if (job.text.continues()) check_prompts(job, samples);
    if (job.options.output.extension() == ".h5") expect_ids_for_h5(samples.names);
    if (job.options.results.top_k > config.vocab)
      throw Error(ExitCode::kUsage, fmt::format("--top-logprobs {}: expected at most vocab_size = {}",
                                                job.options.results.top_k, config.vocab));
    for (const int32_t token : job.options.generation.sampling.eos_tokens)
      if (token >= config.vocab)
        throw Error(ExitCode::kUsage,
                    fmt::format("--eos {}: expected at most vocab_size - 1 = {}", token, config.vocab - 1));
    for (const auto& path : {job.options.report, job.options.trace})
      if (!path.empty()) check_output_place(path);
  }
  job.world.barrier(job.load_timeout(), "inputs checked");
  if (job.world.rank() != 0) open_shards(job);
  if (job.world.broadcast(job.shards->split_id(), 0, job.load_timeout(), "split id") != job.shards->split_id())
    throw Error(ExitCode::kData,
                fmt::format("{}: holds another split here than on rank 0's host", job.options.weights.string()));
  check_scales(job);
  if (job.makes_output() && !job.options.output.empty()) {
    check_output_place(job.options.output);
    expect_names_are_ours(job.options.output);
  }
  return samples;
}

void share_samples(JobFrame& job, Samples all) {
  for (const SampleRules& rules : all.rules.distinct())  // the most that any line asks for
    job.options.results.top_k = std::max<int64_t>(job.options.results.top_k, rules.log_probs.value_or(0));
  std::vector<int> listing;
  for (int rank = 0; rank < job.world.size(); ++rank)
    if (lists_offsets(job, rank)) listing.push_back(rank);
  // The last rank of the first pipeline creates .h5, and answers refused lines, even without --output. Those of all
  // pipelines make the lines of a .jsonl, except completions. Only rank 0 is sure to see the files that a pattern
  // stands for.
  const std::filesystem::path input = job.options.first_input();
  const bool named = job.world.broadcast_value(is_input_of_lines(input) || input.extension() == ".h5", 0,
                                               job.load_timeout(), "form of the input");
  const std::filesystem::path ending = job.options.output.extension();
  const int stages = job.pipeline.size(), end = ending == ".jsonl" && !job.text.continues() ? job.world.size() : stages;
  std::vector<int> naming;
  for (int rank = stages - 1; named && ending != ".bin" && rank < end; rank += stages) naming.push_back(rank);
  job.samples.emplace(job.world, std::move(all),
                      JobSamples::Distribution{.stages = job.pipeline.size(),
                                               .listing_ranks = std::move(listing),
                                               .naming_ranks = std::move(naming),
                                               .may_leave_out = job.options.resume,
                                               .scores = job.options.results.score,
                                               .embeddings = job.options.results.embeddings,
                                               .timeout_seconds = job.load_timeout()});
  job.text.share(job.config(), job.load_timeout());
  job.options.results.top_k =
      job.world.broadcast_value(job.options.results.top_k, 0, job.load_timeout(), "log-probabilities");
}

}  // namespace lfm2
