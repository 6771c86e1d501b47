// Micro-batches are cut before the weights are loaded. On a GPU they are cut again after the loaded stages were timed.
#include "stage/job/scoring_job.h"

#include <algorithm>
#include <numeric>

#include "base/json/json.h"
#include "base/stop.h"
#include "stage/scoring/cost_model.h"

namespace lfm2 {

void ScoringJob::leave_output() {
  if (scorer_) scorer_->stop_results();
  output_.reset();
}

// Whether the rank hands out results that cannot be placed, or makes an output that cannot be made, without knowing
// where each sample begins.
bool ScoringJob::lists_offsets(int rank) const {
  const int stages = pipeline_ranks_->size();
  const bool hands_out = (rank + 1) % stages == 0, makes_file = rank + 1 == stages;
  return hands_out && (needs_offsets(makes_file ? options_.output : "", options_.results) || !options_.answers.empty());
}

void ScoringJob::add_to_identity(Json& identity) const {
  const Samples& all = samples_->all();
  const ResultKind& results = options_.results;
  if (results.hidden != Hidden::kNone) {
    identity["--hidden"] = positions_name(results);
    identity["--after-layer"] = results.after_layer;
  }
  if (results.embeddings) {  // lines may differ in how their inputs are cut and answered
    identity["lines"] = all.source;
    if (const std::string tokenizer = text_.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
  }
  if (!results.score) return;
  Checksum scored;
  for (int64_t sample = 0; sample < all.count(); ++sample) {
    const int64_t tokens = all.scored.length(sample);
    scored.add(std::as_bytes(std::span(&tokens, 1)));
  }
  identity["--score"] = fmt::format("{} tokens, {}", all.scored.back(), scored.hex());
  identity["--stride"] = options_.stride;
  if (const std::string tokenizer = text_.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
}

JobOutput& ScoringJob::resume_output_file(Unfinished& begun) {
  output_ = resume_output(options_.output, output_job(), begun);
  return *output_;
}

// Nothing is loaded yet, so what is chosen here goes by one layer of each kind.
void ScoringJob::plan() {
  const int64_t stages = pipeline_ranks_->size();
  const PipelineJob job =
      pipeline_job(samples_->left().tokens / options_.replicas, machine_.cuda ? kMaxMeasuredTarget : kMaxCpuTarget);
  if (stages > 1 && (options_.virtual_stages == 0 || options_.balance)) {
    const BlockCosts costs = block_costs();
    std::pair<std::vector<int64_t>, int64_t> chosen;  // the blocks at which pieces end, and the target tokens
    if (is_first()) {                                 // hosts of different processors might not find the same
      const PipelineChoice choice = options_.virtual_stages == 0
                                        ? choose_pipeline(costs, job)
                                        : choose_micro_batch(costs, job, options_.virtual_stages, true);
      for (const LayerRange& range : choice.cut) chosen.first.push_back(end_block(range));
      chosen.second = choice.target_tokens;
    }
    chosen = from_bytes<decltype(chosen)>(pipeline_ranks_->broadcast(to_bytes(chosen), 0, load_timeout(), "cut"));
    cut_ = cut_at_blocks(chosen.first);
    say("cut by what layers cost: " + layers_text(pieces()));
    choose_plan(chosen.second);
    return;
  }
  cut_ = given_partition(config().layers, stages, options_.layer_counts, std::max<int64_t>(1, options_.virtual_stages));
  choose_plan(choose_target_tokens(job.tokens, shape(), machine_.cuda ? kMaxCudaTarget : kMaxCpuTarget));
}

void ScoringJob::choose_plan(int64_t target_tokens) {
  if (is_first()) {
    const Samples& own = samples_->own_samples();
    const SampleRange range = samples_->own_range();
    if (options_.stride > 0 && !windows_ && any_longer(own.offsets, range, config().max_positions))
      windows_ = cut_windows(own, range, config().max_positions, options_.stride);
    const MicroBatches::Size size = micro_batch_size(target_tokens);
    if (options_.results.embeddings)
      micro_batches_.emplace(own.input_tokens, own.ids, SampleRange{0, own.input_tokens.samples()}, size);
    else if (windows_)
      micro_batches_.emplace(windows_->offsets, windows_->ids, SampleRange{0, windows_->offsets.samples()}, size,
                             &windows_->scored);
    else
      micro_batches_.emplace(own.offsets, own.ids, range, size, options_.results.score ? &own.scored : nullptr);
    plan_ = micro_batches_->plan();
    plan_.first_sample = samples_->own_share().samples.first;
    plan_.first_token = samples_->own_share().first_token;
    plan_.first_scored = samples_->own_share().first_scored;
  }
  plan_ = from_bytes<BatchPlan>(pipeline_ranks_->broadcast(to_bytes(plan_), 0, load_timeout(), "plan"));
}

// Where one rank has all layers, there is nothing to win by parts. The last part of a sample must hold its tail.
MicroBatches::Size ScoringJob::micro_batch_size(int64_t tokens) const {
  const int64_t smallest_part = std::max(machine_.cuda ? kMinCudaPart : kMinCpuPart, tail_length(config()));
  return {.samples = options_.micro_batch,
          .tokens = tokens,
          .smallest_part = pipeline_ranks_->size() == 1 ? 0 : smallest_part,
          .part = machine_.cuda ? 0 : kMaxCpuPart,
          .growth = machine_.cuda ? estimate_part_growth(config(), compute_, options_.results.of_last_positions()) : 0};
}

PipelineJob ScoringJob::pipeline_job(int64_t tokens, int64_t max_target) const {
  return {.stages = pipeline_ranks_->size(),
          .tokens = tokens,
          .length = mean_length(),
          .size = micro_batch_size(max_target),
          .result_bytes = result_bytes(),
          .pipelines_on_host = pipelines_on_host(),
          .result_threads = result_thread_count(),
          .devices = machine_.devices.of_ranks(static_cast<int>(replica()) * pipeline_ranks_->size(),
                                               pipeline_ranks_->size())};
}

// Bytes of the results of a token, as there are few or many tokens for each row of them.
double ScoringJob::result_bytes() const {
  const ResultKind& results = options_.results;
  if (results.positions == Positions::kNone && results.hidden == Hidden::kNone) return 0;
  const auto rows = results.of_last_positions() ? 1 / static_cast<double>(mean_length()) : 1.0;
  if (results.hidden != Hidden::kNone)
    return rows * static_cast<double>(config().hidden) * static_cast<double>(size_bytes(compute_));
  if (results.columns() > 0) return rows * static_cast<double>(results.columns()) * (sizeof(int32_t) + sizeof(float));
  return rows * static_cast<double>(config().vocab) * sizeof(float);
}

// The largest micro-batch, in tokens, that leaves half of the device's free memory to transfers, caches and others.
int64_t ScoringJob::largest_target() const {
  const auto buffers = static_cast<uint64_t>(Schedule::most_buffers(shape(), plan_.micro_batches));
  int64_t tokens = max_measured_target(compute_, options_.results, mean_length());
  const auto fits = [&] {
    const StageMemory cost = stage_memory(*shards_, pieces(), compute_, tokens, plan_.max_rows(options_.results));
    return 2 * (cost.total_bytes(buffers) - cost.weight_bytes) <= machine_.backend->free_bytes();
  };
  while (tokens > kMaxCudaTarget && !fits()) tokens /= 2;
  return tokens;
}

int64_t ScoringJob::mean_length() const { return std::min(samples_->mean_length(), config().max_positions); }

StageTime ScoringJob::transfer_cost() const {
  return estimate_transfer(config(), compute_, machine_.transport == Transport::kPeer ? kPeerLink : kNcclLink);
}

BlockCosts ScoringJob::block_costs() {
  const ResultKind& results = options_.results;
  const auto length = static_cast<double>(mean_length());
  const double kept =
      results.of_last_positions() ? std::min(length, static_cast<double>(tail_length(config()))) / length : 0;
  const bool logits = results.positions != Positions::kNone && results.hidden == Hidden::kNone;
  const MeasuredBlocks measured = time_blocks(
      *shards_, machine_, world_, compute_, timed_samples(),
      machine_.cuda ? TimedSizes{} : TimedSizes{.small = kMinCpuPart, .large = kMaxCpuTarget}, load_timeout());
  for (const int64_t block : block_kinds(config()).examples) {
    const StageTime& time = measured.blocks[static_cast<size_t>(block)];
    say(fmt::format("n tokens take {:.4f} + n {:.6f} ms in the {} of layer {}", time.fixed * 1e3, time.per_token * 1e3,
                    block % kBlocksOfLayer == 0 ? "token mixer" : "feed-forward", block / kBlocksOfLayer));
  }
  say(fmt::format("n rows take {:.4f} + n {:.6f} ms in the LM head", measured.head.fixed * 1e3,
                  measured.head.per_token * 1e3));
  const double rows = !logits ? 0 : results.of_last_positions() ? 1 / length : 1;
  BlockCosts costs = measured_costs(config(), compute_, kept, rows, measured.blocks, measured.head);
  costs.transfer = transfer_cost();
  // Of samples that go in parts, the head reads its weights for the last part alone.
  if (rows < 1 && mean_length() > (machine_.cuda ? kMaxCudaTarget : kMaxCpuTarget))
    costs.head = {.fixed = 0, .per_token = costs.head.per_token + rows * costs.head.fixed};
  return costs;
}

Job::Portion ScoringJob::portion() const {
  uint64_t cache_bytes = 0;
  if (plan_.longest_in_parts > 0) {
    const CacheShape caches = shape_of_caches(plan_.longest_in_parts);
    for (const LayerRange& piece : pieces())
      cache_bytes += static_cast<uint64_t>(caches.pages) * page_bytes(config(), piece, compute_, caches) +
                     slot_bytes(config(), piece);
  }
  const int buffers = Schedule(shape(), pipeline_ranks_->rank(), plan_.micro_batches).buffers();
  const BufferExtras extras = buffer_extras(config(), pieces(), plan_, options_.results);
  return {.tokens = plan_.max_tokens,
          .rows = plan_.max_rows(options_.results),
          .buffers = buffers,
          .job_bytes = cache_bytes + static_cast<uint64_t>(buffers) * extras.bytes(config(), compute_) +
                       (micro_batches_ ? micro_batches_->memory_bytes() : 0),
          .options = "--micro-batch"};
}

TimedSamples ScoringJob::timed_samples() const {
  return {.length = mean_length(), .last_positions = options_.results.of_last_positions()};
}

// The share of the work of layers behind the last attention that the tails need, as it is estimated.
double ScoringJob::tail_share(LayerRange layers) const {
  const int64_t length = mean_length(), tail = tail_length(config());
  const std::vector<double> all = estimate_block_seconds(config(), compute_, kMaxCudaTarget, 0);
  const std::vector<double> cut = estimate_block_seconds(
      config(), compute_, kMaxCudaTarget, std::max<int64_t>(1, kMaxCudaTarget / length * std::min(length, tail)));
  const auto sum = [&](const std::vector<double>& seconds) {
    return std::accumulate(seconds.begin() + first_block(layers), seconds.begin() + end_block(layers), 0.0);
  };
  return sum(cut) / sum(all);
}

void ScoringJob::measure_and_replan() {
  std::pair mine{largest_target(), std::vector<StageTime>()};  // the most tokens of a micro-batch, and of each piece
  in_turns(world_, machine_.devices, load_timeout(), [&] {
    for (const Stage& piece : session_->pieces()) {
      StageTime time = measure_stage_time(*machine_.backend, piece, compute_, timed_samples());
      if (options_.results.of_last_positions() && gets_tails(config(), piece.layers())) {
        const double share = tail_share(piece.layers());
        time = {.fixed = share * time.fixed, .per_token = share * time.per_token};
      }
      say(fmt::format("a micro-batch of n tokens takes {:.3f} + n {:.6f} ms in layers {}", time.fixed * 1e3,
                      time.per_token * 1e3, layers_text({piece.layers()})));
      mine.second.push_back(time);
    }
  });
  PipelineJob job = pipeline_job(plan_.tokens, largest_target());
  PipelineCosts costs{.shape = shape(),
                      .virtual_stages = std::vector<StageTime>(cut_.size()),
                      .transfer = transfer_cost(),
                      .devices = job.devices};
  int64_t stage = 0;
  for (const std::string& line : pipeline_ranks_->gather(to_bytes(mine), 0, options_.timeout_seconds, "speeds")) {
    int64_t at = stage++;
    const auto [largest, pieces] = from_bytes<decltype(mine)>(line);
    job.size.tokens = std::min(job.size.tokens, largest);
    for (const StageTime& piece : pieces) {
      costs.virtual_stages[static_cast<size_t>(at)] = piece;
      at += costs.shape.stages;
    }
  }
  int64_t target = 0;
  LateParts late;
  if (is_first()) {
    target = best_target_tokens(costs, job);
    if (const std::optional<LateChoice> in_parts = late_parts(costs, job)) {
      target = in_parts->target_tokens;
      late = in_parts->parts;
    }
  }
  choose_plan(target);
  plan_.late = late;
}

// Nothing where there are several stages, or more rows of results than samples.
std::optional<LateChoice> ScoringJob::late_parts(const PipelineCosts& costs, const PipelineJob& job) const {
  const int64_t attention = last_attention_layer(config()), tokens = kMaxCudaTarget;
  if (costs.shape.virtual_stages() > 1 || !options_.results.of_last_positions() || attention < 1) return {};
  const int64_t kept = std::max<int64_t>(1, tokens / job.length) * std::min(job.length, tail_length(config()));
  const std::vector<double> blocks = estimate_block_seconds(config(), compute_, tokens, kept);
  const double all = std::accumulate(blocks.begin(), blocks.end(), 0.0);
  std::vector<double> layers(static_cast<size_t>(config().layers));
  for (size_t block = 0; block < blocks.size(); ++block) layers[block / kBlocksOfLayer] += blocks[block] / all;
  return choose_late_parts(costs, job, layers, attention);
}

void ScoringJob::open() {
  if (machine_.cuda && options_.micro_batch == 0) measure_and_replan();
  say(fmt::format(
      "layers {}, {} micro-batches of up to {} tokens{}", layers_text(pieces()), plan_.micro_batches, plan_.max_tokens,
      plan_.late.samples == 0 ? ""
                              : fmt::format(", {} samples of the last one behind the others from layer {} on",
                                            plan_.late.samples, plan_.late.layer)));
  const StageLinks links = session_->links(Schedule::most_buffers(shape(), plan_.micro_batches));
  scorer_.emplace(links, plan_, compute_, options_.results, !options_.trace.empty());
  open_answers();
  open_output();
}

void ScoringJob::open_answers() {
  if (!is_last() || options_.answers.empty()) return;
  const SampleOffsets& offsets = samples_->offsets();
  validation_.emplace(options_.results.score
                          ? open_score_answers(options_.answers, offsets.back())
                          : lfm2::open_answers(options_.answers, options_.results.positions, offsets, config().vocab),
                      config().vocab, options_.tolerance);
}

// Opens the output. The first replica makes the file, and the others join it and write their rows into it. Collective.
void ScoringJob::open_output() {
  if (options_.output.empty()) return;
  if (makes_output() && !output_) output_ = create_output(options_.output, output_job());
  if (options_.replicas == 1) return;
  const std::string shared = world_.broadcast(makes_output() ? output_->shared() : "", pipeline_ranks_->size() - 1,
                                              options_.timeout_seconds, "output file");
  if (is_last() && !makes_output()) output_ = join_output(options_.output, shared, output_job());
  const bool one_page_cache = world_.all_ranks(!output_ || output_->has_page_cache_of(shared));
  if (output_) output_->write_with_others(first_rows_of_replicas(), one_page_cache);
}

std::vector<int64_t> ScoringJob::first_rows_of_replicas() const {
  std::vector<int64_t> rows;
  for (int64_t replica = 0; replica < options_.replicas; ++replica) {
    const int64_t sample = samples_->numbers()[samples_->share_of(replica).samples.first];
    rows.push_back(options_.results.positions == Positions::kAll ? samples_->offsets()[sample] : sample);
  }
  return rows;
}

// Passes seams between the ranks that wrote one file, which is needed where they are on several hosts. Collective.
void ScoringJob::end_runs() {
  if (options_.replicas == 1 || options_.output.empty()) return;
  std::string all;
  for (const std::string& seams :
       world_.gather(output_ ? output_->take_seams() : "", 0, load_timeout(), "seams of the output"))
    all += seams;
  all = world_.broadcast(all, 0, load_timeout(), "seams of the output");
  if (output_) output_->write_seams(all);
}

void ScoringJob::replay_kept(ResultConsumer& consumer) const {
  for (const auto& [first, count] : kept_.ranges) output_->replay(first, count, consumer);
}

std::optional<Verdict> ScoringJob::verdict_of_kept() {
  open_answers();
  if (!validation_) return {};
  if (output_) replay_kept(*validation_);
  return validation_->verdict();
}

std::optional<ScoreSums> ScoringJob::scores_of_kept() {
  if (!options_.results.score || !output_) return {};
  ScoreCounter counter;
  replay_kept(counter);
  return counter.sums();
}

bool ScoringJob::run_once() {
  RowTaker* file_by_rows = output_ ? output_->by_rows() : nullptr;
  not_finite_.emplace(options_.results.hidden != Hidden::kNone);
  std::vector<RowTaker*> beside{&*not_finite_};
  if (file_by_rows != nullptr) beside.push_back(file_by_rows);
  hash_.emplace(is_last() ? &result_threads() : nullptr, std::move(beside));
  std::vector<ResultConsumer*> consumers{&*hash_};
  if (output_ && options_.benchmark) output_->start_over();
  if (output_ && file_by_rows == nullptr) consumers.push_back(output_.get());
  if (validation_) {
    validation_->start_over();
    replay_kept(*validation_);
    consumers.push_back(&*validation_);
  }
  if (options_.results.score) {
    scores_.emplace();
    replay_kept(*scores_);
    consumers.push_back(&*scores_);
  }
  SampleCounter counter(options_.results.positions, samples_->offsets(), *hash_, output_.get());
  consumers.push_back(&counter);
  RenumberedRows renumbered(options_.results.positions, samples_->offsets_left(), samples_->numbers(),
                            samples_->offsets(), consumers);
  if (!samples_->numbers().all_are_left()) consumers = {&renumbered};
  // Only the last stage of the first replica shows a progress bar: it knows what is finished.
  Progress progress("run", static_cast<uint64_t>(plan_.samples), Progress::Unit::kSamples,
                    makes_output() ? options_.progress : ProgressMode::kOff);
  try {
    scorer_->run(
        micro_batches_ ? &*micro_batches_ : nullptr, consumers,
        [&](const MicroBatch& done) { progress.add(static_cast<uint64_t>(done.samples)); }, stop_requested);
  } catch (...) {
    scorer_->stop_results();  // its thread calls consumers that are destroyed here
    throw;
  }
  hash_->add(kept_.results);
  runs_.handed_out = counter.count();
  return scorer_->finished();
}

NotFinite ScoringJob::not_finite() const {
  if (!not_finite_ || not_finite_->count() == 0) return {};
  const int64_t row = not_finite_->first_row();
  return {not_finite_->count(),
          options_.results.positions == Positions::kAll ? samples_->offsets().sample_of(row) : row};
}

void ScoringJob::add_to(StageReport& report) const {
  report.activation_bytes = scorer_->activation_bytes();
  report.cache_bytes = scorer_->cache_bytes();
  report.times = scorer_->times();
  if (!is_last()) return;
  report.not_finite = not_finite();
  if (validation_) report.verdict = validation_->verdict();
  if (scores_) report.scores = scores_->sums();
  if (options_.results.positions != Positions::kNone) report.results_xxh3 = hash_->hex();
}

void ScoringJob::add_to(JobReport& report) const {
  report.scored_words = samples_->all().scored_words;
  if (const SampleOffsets* bytes = samples_->scored_bytes()) report.scored_bytes = bytes->back();
  report.micro_batches = plan_.micro_batches;
  report.largest_micro_batch = plan_.max_samples;
  report.devices = machine_.devices.of_ranks(0, pipeline_ranks_->size());
}

}  // namespace lfm2
