// Micro-batches are cut before the weights are loaded. On a GPU they are cut again after the loaded stages were timed.
#include "stage/job/scoring_job.h"

#include <algorithm>
#include <numeric>

#include "base/json/json.h"
#include "base/stop.h"

namespace lfm2 {

void ScoringJob::add_to_identity(Json& identity) const {
  const Samples& all = job_.samples->all();
  const ResultKind& results = job_.options.results;
  if (results.hidden != Hidden::kNone) {
    identity["--hidden"] = positions_name(results);
    identity["--after-layer"] = results.after_layer;
  }
  if (results.embeddings) {  // lines may differ in how their inputs are cut and answered
    identity["lines"] = all.source;
    if (const std::string tokenizer = job_.text.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
  }
  if (!results.score) return;
  Checksum scored;
  for (int64_t sample = 0; sample < all.count(); ++sample) {
    const int64_t tokens = all.scored.length(sample);
    scored.add(std::as_bytes(std::span(&tokens, 1)));
  }
  identity["--score"] = fmt::format("{} tokens, {}", all.scored.back(), scored.hex());
  identity["--stride"] = job_.options.stride;
  if (const std::string tokenizer = job_.text.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
}

void ScoringJob::resume(Unfinished& begun) {
  output_ = job_.own(resume_output(job_.options.output, job_.output_job(), begun));
}

// Nothing is loaded yet, so this choice is based on one layer of each kind.
JobPlan ScoringJob::plan() {
  const int64_t tokens = share_of_replica(job_.samples->left().tokens);
  if (!demand().chooses_cut()) {
    const PipelineChoice choice = given_choice(job_.config(), demand(), tokens);
    choose_plan(choice.target_tokens);
    return sizes_of(choice.cut);
  }
  const BlockCosts costs = block_costs();
  std::pair<std::vector<int64_t>, int64_t> chosen;  // the blocks at which pieces end, and the target tokens
  if (job_.is_first()) {                            // hosts with different processors might choose differently
    const PipelineChoice choice =
        choose(costs, pipeline_job(job_.config(), demand(), tokens, max_first_target(job_.machine.cuda)));
    for (const LayerRange& range : choice.cut) chosen.first.push_back(end_block(range));
    chosen.second = choice.target_tokens;
  }
  chosen = job_.pipeline.broadcast_value(chosen, 0, job_.load_timeout(), "cut");
  const std::vector<LayerRange> cut = cut_at_blocks(chosen.first);
  job_.say("cut by what layers cost: " + layers_text(job_.pieces(cut)));
  choose_plan(chosen.second);
  return sizes_of(cut);
}

void ScoringJob::choose_plan(int64_t target_tokens) {
  if (job_.world.rank() == 0) {
    const Samples& all = job_.samples->all();
    if (job_.options.stride > 0 && !windows_ && any_longer(all.offsets, job_.config().max_positions))
      windows_ = cut_windows(all, job_.config().max_positions, job_.options.stride);
    const MicroBatches::Size size = micro_batch_size(job_.config(), demand(), target_tokens);
    if (job_.options.results.embeddings)
      micro_batches_.emplace(all.input_tokens, all.ids, size);
    else if (windows_)
      micro_batches_.emplace(windows_->offsets, windows_->ids, size, &windows_->scored);
    else
      micro_batches_.emplace(all.offsets, all.ids, size, job_.options.results.score ? &all.scored : nullptr);
    plan_ = micro_batches_->plan();
  }
  plan_ = job_.world.broadcast_value(plan_, 0, job_.load_timeout(), "plan");
}

// Of the job's tokens; not none, however few there are.
int64_t ScoringJob::share_of_replica(int64_t tokens) const {
  return (tokens + job_.options.replicas - 1) / job_.options.replicas;
}

ScoringDemand ScoringJob::demand() const {
  return {.length = mean_length(),
          .stages = job_.pipeline.size(),
          .replicas = job_.options.replicas,
          .micro_batch = job_.options.micro_batch,
          .virtual_stages = job_.options.virtual_stages,
          .layer_counts = job_.options.layer_counts,
          .balance = job_.options.balance,
          .results = job_.options.results,
          .compute = job_.compute,
          .cuda = job_.machine.cuda,
          .transfer = estimate_transfer(job_.config(), job_.compute,
                                        job_.machine.transport == Transport::kPeer ? kPeerLink : kNcclLink),
          .pipelines_on_host = job_.pipelines_on_host(),
          .result_threads = job_.result_thread_count(),
          .devices = job_.machine.devices.of_ranks(static_cast<int>(job_.replica()) * job_.pipeline.size(),
                                                   job_.pipeline.size())};
}

// The largest micro-batch, in tokens, that leaves half of the device's free memory for transfers, caches and others.
int64_t ScoringJob::largest_target(const std::vector<LayerRange>& cut) const {
  const auto buffers = static_cast<uint64_t>(Schedule::max_buffers(job_.shape(cut), plan_.micro_batches));
  int64_t tokens = max_measured_target(job_.compute, job_.options.results, mean_length());
  const auto fits = [&] {
    const StageMemory cost =
        stage_memory(*job_.shards, job_.pieces(cut), job_.compute, tokens, plan_.max_rows(job_.options.results));
    return 2 * (cost.total_bytes(buffers) - cost.weight_bytes) <= job_.machine.backend->free_bytes();
  };
  while (tokens > kMaxCudaTarget && !fits()) tokens /= 2;
  return tokens;
}

int64_t ScoringJob::mean_length() const { return std::min(job_.samples->mean_length(), job_.config().max_positions); }

BlockCosts ScoringJob::block_costs() {
  const BlockCosts measured = time_blocks(*job_.shards, job_.machine, job_.world, job_.compute, timed_samples(),
                                          timed_sizes(job_.machine.cuda), job_.load_timeout());
  for (const int64_t block : block_kinds(job_.config()).examples) {
    const StageTime& time = measured.blocks[static_cast<size_t>(block)];
    job_.say(fmt::format("n tokens take {:.4f} + n {:.6f} ms in the {} of layer {}", time.fixed * 1e3,
                         time.per_token * 1e3, block % kBlocksOfLayer == 0 ? "token mixer" : "feed-forward",
                         block / kBlocksOfLayer));
  }
  job_.say(fmt::format("n rows take {:.4f} + n {:.6f} ms in the LM head", measured.head.fixed * 1e3,
                       measured.head.per_token * 1e3));
  return costs_of_job(job_.config(), demand(), measured);
}

JobPlan ScoringJob::sizes_of(const std::vector<LayerRange>& cut) const {
  uint64_t cache_bytes = 0;
  if (plan_.longest_in_parts > 0) {
    const CacheShape caches = shape_of_caches(plan_.longest_in_parts);
    for (const LayerRange& piece : job_.pieces(cut))
      cache_bytes += static_cast<uint64_t>(caches.pages) * page_bytes(job_.config(), piece, job_.compute, caches) +
                     slot_bytes(job_.config(), piece);
  }
  const int buffers = Schedule(job_.shape(cut), job_.pipeline.rank(), plan_.micro_batches).buffers();
  const BufferSizes sizes = scoring_buffers(job_.config(), job_.pieces(cut), plan_, job_.options.results);
  return {.cut = cut,
          .tokens = plan_.max_tokens,
          .rows = plan_.max_rows(job_.options.results),
          .buffers = buffers,
          .job_bytes = cache_bytes +
                       static_cast<uint64_t>(buffers) * sizes.extra_bytes(job_.config().hidden, job_.compute) +
                       (micro_batches_ ? micro_batches_->memory_bytes() : 0),
          .options = "--micro-batch"};
}

TimedSamples ScoringJob::timed_samples() const {
  return {.length = mean_length(), .last_positions = job_.options.results.of_last_positions()};
}

// The estimated share of the work of layers after the last attention that the tails need.
double ScoringJob::tail_share(LayerRange layers) const {
  const int64_t length = mean_length(), tail = tail_length(job_.config());
  const std::vector<double> all = estimate_block_seconds(job_.config(), job_.compute, kMaxCudaTarget, 0);
  const std::vector<double> cut =
      estimate_block_seconds(job_.config(), job_.compute, kMaxCudaTarget,
                             std::max<int64_t>(1, kMaxCudaTarget / length * std::min(length, tail)));
  const auto sum = [&](const std::vector<double>& seconds) {
    return std::accumulate(seconds.begin() + first_block(layers), seconds.begin() + end_block(layers), 0.0);
  };
  return sum(cut) / sum(all);
}

void ScoringJob::measure_and_replan(const std::vector<LayerRange>& cut) {
  std::vector<StageTime> mine;  // of each piece
  in_turns(job_.world, job_.machine.devices, job_.load_timeout(), [&] {
    for (const Stage& piece : job_.session->pieces()) {
      StageTime time = measure_stage_time(*job_.machine.backend, piece, job_.compute, timed_samples());
      if (job_.options.results.of_last_positions() && starts_pruned(job_.config(), piece.layers())) {
        const double share = tail_share(piece.layers());
        time = {.fixed = share * time.fixed, .per_token = share * time.per_token};
      }
      job_.say(fmt::format("a micro-batch of n tokens takes {:.3f} + n {:.6f} ms in layers {}", time.fixed * 1e3,
                           time.per_token * 1e3, layers_text({piece.layers()})));
      mine.push_back(time);
    }
  });
  const double largest = job_.world.smallest(static_cast<double>(largest_target(cut)), job_.load_timeout());
  PipelineCosts costs{.shape = job_.shape(cut),
                      .virtual_stages = std::vector<StageTime>(cut.size()),
                      .transfer = demand().transfer,
                      .devices = demand().devices};
  int64_t stage = 0;
  for (const auto& pieces : job_.pipeline.gather_values(mine, 0, job_.options.timeout_seconds, "speeds")) {
    int64_t at = stage++;
    for (const StageTime& piece : pieces) {
      costs.virtual_stages[static_cast<size_t>(at)] = piece;
      at += costs.shape.stages;
    }
  }
  PipelineChoice choice;
  if (job_.world.rank() == 0)
    choice = choose_again(job_.config(), demand(), std::move(costs), share_of_replica(plan_.tokens),
                          static_cast<int64_t>(largest));
  choose_plan(choice.target_tokens);
  plan_.late = choice.late;
}

void ScoringJob::open(const JobPlan& plan) {
  if (job_.machine.cuda && job_.options.micro_batch == 0) measure_and_replan(plan.cut);
  job_.say(fmt::format("layers {}, {} micro-batches of up to {} tokens{}", layers_text(job_.pieces(plan.cut)),
                       plan_.micro_batches, plan_.max_tokens,
                       plan_.late.samples == 0
                           ? ""
                           : fmt::format(", {} samples of the last one after the others from layer {} on",
                                         plan_.late.samples, plan_.late.layer)));
  const StageLinks links = job_.session->links(Schedule::max_buffers(job_.shape(plan.cut), plan_.micro_batches));
  if (job_.options.replicas > 1)
    links_.emplace(job_.world, job_.pipeline.size(), job_.options.timeout_seconds, kSilentTimeoutsOfRank0);
  scorer_.emplace(links, plan_, job_.compute, job_.options.results, !job_.options.trace.empty());
  open_reference();
  open_output();
}

void ScoringJob::open_reference() {
  if (!job_.is_last() || job_.options.reference.empty()) return;
  const SampleOffsets& offsets = job_.samples->offsets();
  validation_.emplace(
      job_.options.results.score
          ? open_score_reference(job_.options.reference, offsets.back())
          : lfm2::open_reference(job_.options.reference, job_.options.results.positions, offsets, job_.config().vocab),
      job_.config().vocab, job_.options.tolerance);
}

// Opens the output. The first replica creates the file, and the others join it. Collective.
void ScoringJob::open_output() {
  if (job_.options.output.empty()) return;
  if (job_.makes_output() && !output_) output_ = job_.own(create_output(job_.options.output, job_.output_job()));
  if (job_.options.replicas == 1) return;
  const int writer = job_.pipeline.size() - 1;
  const MpiGroup last_stages(job_.world, job_.is_last() ? 1 : 0);
  if (job_.is_last()) relay_.emplace(last_stages, writer);
  const std::string shared = job_.world.broadcast(job_.makes_output() ? output_->shared() : "", writer,
                                                  job_.options.timeout_seconds, "output file");
  if (!job_.is_last() || job_.makes_output()) return;
  OutputJob part = job_.output_job();
  part.send = [this](const RemotePart& one) {
    relay_->wait_until_sent();
    relay_->add(one);
  };
  output_ = job_.own(join_output(job_.options.output, shared, part));
}

std::unique_ptr<BatchSource> ScoringJob::make_source(const std::function<void(int64_t)>& on_passed_on) {
  if (!job_.is_first()) return nullptr;
  if (job_.replica() > 0) return std::make_unique<RemoteBatches>(*links_);
  if (!links_) return std::make_unique<FrontBatches>(*micro_batches_);
  return std::make_unique<FrontBatches>(
      *micro_batches_,
      FrontBatches::Sharing{*links_, [this](const MicroBatch& one) { return ends_samples(one); }, on_passed_on});
}

// Whether a sample of the job ends with the micro-batch. It may consist of several windows or of several inputs of a
// line of /v1/embeddings.
bool ScoringJob::ends_samples(const MicroBatch& one) const {
  const ResultKind& results = job_.options.results;
  if (!one.ends_samples() || (!results.score && !results.embeddings)) return one.ends_samples();
  const SampleOffsets& rows = job_.samples->offsets_left();
  const int64_t end = results.score ? one.first_scored + one.scored : one.first_sample + one.samples;
  return rows[rows.sample_of(end - 1) + 1] == end;
}

void ScoringJob::replay_kept(ResultConsumer& consumer) const {
  for (const auto& [first, count] : job_.kept.ranges) output_->replay(first, count, consumer);
}

void ScoringJob::add_kept(JobReport& report) {
  open_reference();
  if (validation_) {
    if (output_ != nullptr) replay_kept(*validation_);
    report.verdict = validation_->verdict();
  }
  if (!job_.options.results.score || output_ == nullptr) return;
  ScoreCounter counter;
  replay_kept(counter);
  report.scores = counter.sums();
}

RunEnd ScoringJob::run() {
  RowConsumer* file_by_rows = output_ ? output_->by_rows() : nullptr;
  not_finite_.emplace(job_.options.results.hidden != Hidden::kNone);
  std::vector<RowConsumer*> beside{&*not_finite_};
  if (file_by_rows != nullptr) beside.push_back(file_by_rows);
  hash_.emplace(job_.is_last() ? &job_.result_threads() : nullptr, std::move(beside));
  std::vector<ResultConsumer*> consumers{&*hash_};
  if (output_ && job_.options.benchmark) output_->start_over();
  if (output_ && file_by_rows == nullptr) consumers.push_back(output_);
  if (validation_) {
    validation_->start_over();
    replay_kept(*validation_);
    consumers.push_back(&*validation_);
  }
  if (job_.options.results.score) {
    scores_.emplace();
    replay_kept(*scores_);
    consumers.push_back(&*scores_);
  }
  SampleCounter counter(job_.options.results.positions, job_.samples->offsets(), *hash_, output_);
  consumers.push_back(&counter);
  RenumberedRows renumbered(job_.options.results.positions, job_.samples->offsets_left(), job_.samples->numbers(),
                            job_.samples->offsets(), consumers);
  if (!job_.samples->numbers().all_are_left()) consumers = {&renumbered};
  // The last stage shows the progress, as it knows what is finished. With replicas rank 0 does, which hears of all.
  const bool shows = job_.options.replicas > 1 ? job_.world.rank() == 0 : job_.is_last();
  Progress progress("run", static_cast<uint64_t>(plan_.samples), Progress::Unit::kSamples,
                    shows ? job_.options.progress : ProgressMode::kOff);
  const std::unique_ptr<BatchSource> source =
      make_source([&](int64_t samples) { progress.add(static_cast<uint64_t>(samples)); });
  const auto receive = [this](WordReader& part) { output_->receive(part.read<RemotePart>()); };
  const auto pass = [&] {
    if (source) source->poll();
    if (relay_) relay_->pass(receive);
  };
  const auto poll = [&] {
    pass();
    if (relay_) relay_->wait_for_room(pass);  // this wait names the writer, where a wait for results names nobody
  };
  const auto on_micro_batch = [&](const MicroBatch& done) {
    progress.add(static_cast<uint64_t>(done.samples));
    if (source) source->passed_on(done.samples);
  };
  try {
    scorer_->run(source.get(), consumers, on_micro_batch, stop_requested, poll);
    const auto stop = [this] { return !scorer_->finished() || stop_requested(); };
    if (source) source->end(stop, job_.world.watchdog(), poll);
    if (relay_) relay_->end(receive);
  } catch (...) {
    if (relay_) relay_->stop();
    scorer_->stop_results();  // its thread calls consumers that are destroyed here
    throw;
  }
  hash_->add(job_.kept.results);
  return {.finished = scorer_->finished(), .finished_samples = counter.count()};
}

NotFinite ScoringJob::not_finite() const {
  if (!not_finite_ || not_finite_->count() == 0) return {};
  const int64_t row = not_finite_->first_row();
  return {not_finite_->count(),
          job_.options.results.positions == Positions::kAll ? job_.samples->offsets().sample_of(row) : row};
}

Figures ScoringJob::figures() const {
  if (!scorer_) return {};
  Figures figures{.unit = "micro-batch", .trace = scorer_->trace()};
  StageReport& stage = figures.stage;
  stage.activation_bytes = scorer_->activation_bytes();
  stage.cache_bytes = scorer_->cache_bytes();
  stage.times = scorer_->times();
  if (job_.is_last()) {
    stage.not_finite = not_finite();
    if (validation_) stage.verdict = validation_->verdict();
    if (scores_) stage.scores = scores_->sums();
    if (job_.options.results.positions != Positions::kNone) stage.results_xxh3 = hash_->hex();
  }
  stage.micro_batches = scorer_->micro_batches();
  JobReport& job = figures.job;
  job.largest_micro_batch = plan_.max_samples;
  job.devices = job_.machine.devices.of_ranks(0, job_.pipeline.size());
  job.scored_words = job_.samples->all().scored_words;
  if (const SampleOffsets* bytes = job_.samples->scored_bytes()) job.scored_bytes = bytes->back();
  return figures;
}

}  // namespace lfm2
