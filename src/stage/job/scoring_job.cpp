#include "stage/job/scoring_job.h"

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

void ScoringJob::open(const JobPlan& plan) {
  if (job_.machine.cuda && job_.options.micro_batch == 0) planner_.measure_and_replan(plan.cut);
  const BatchPlan& batches = planner_.batches();
  job_.say(fmt::format("layers {}, {} micro-batches of up to {} tokens{}", layers_text(job_.pieces(plan.cut)),
                       batches.micro_batches, batches.max_tokens,
                       batches.late.samples == 0
                           ? ""
                           : fmt::format(", {} samples of the last one after the others from layer {} on",
                                         batches.late.samples, batches.late.layer)));
  const StageLinks links = job_.session->links(Schedule::max_buffers(job_.shape(plan.cut), batches.micro_batches));
  if (job_.options.replicas > 1)
    links_.emplace(job_.world, job_.pipeline.size(), job_.options.timeout_seconds, kSilentTimeoutsOfRank0);
  scorer_.emplace(links, batches, job_.compute, job_.options.results, !job_.options.trace.empty());
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
  if (!links_) return std::make_unique<FrontBatches>(planner_.micro_batches());
  return std::make_unique<FrontBatches>(
      planner_.micro_batches(),
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
  Progress progress("run", static_cast<uint64_t>(planner_.batches().samples), Progress::Unit::kSamples,
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
  job.largest_micro_batch = planner_.batches().max_samples;
  job.devices = job_.machine.devices.of_ranks(0, job_.pipeline.size());
  job.scored_words = job_.samples->all().scored_words;
  if (const SampleOffsets* bytes = job_.samples->scored_bytes()) job.scored_bytes = bytes->back();
  return figures;
}

}  // namespace lfm2
