// Micro-batches are cut before the weights are loaded. On a GPU they are cut again after the loaded stages were timed.
#include "stage/job/scoring_planner.h"

#include <algorithm>
#include <numeric>

namespace lfm2 {

// Nothing is loaded yet, so this choice is based on one layer of each kind.
JobPlan ScoringPlanner::plan() {
  demand_ = {.length = std::min(job_.samples->mean_length(), job_.config().max_positions),
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
  const int64_t tokens = share_of_replica(job_.samples->left().tokens);
  if (!demand_.chooses_cut()) {
    const PipelineChoice choice = given_choice(job_.config(), demand_, tokens);
    choose_plan(choice.target_tokens);
    return sizes_of(choice.cut);
  }
  const BlockCosts costs = block_costs();
  std::pair<std::vector<int64_t>, int64_t> chosen;  // the blocks at which pieces end, and the target tokens
  if (job_.is_first()) {                            // hosts with different processors might choose differently
    const PipelineChoice choice =
        choose(costs, pipeline_job(job_.config(), demand_, tokens, max_first_target(job_.machine.cuda)));
    for (const LayerRange& range : choice.cut) chosen.first.push_back(end_block(range));
    chosen.second = choice.target_tokens;
  }
  chosen = job_.pipeline.broadcast_value(chosen, 0, job_.load_timeout(), "cut");
  const std::vector<LayerRange> cut = cut_at_blocks(chosen.first);
  job_.say("cut by what layers cost: " + layers_text(job_.pieces(cut)));
  choose_plan(chosen.second);
  return sizes_of(cut);
}

void ScoringPlanner::choose_plan(int64_t target_tokens) {
  if (job_.world.rank() == 0) {
    const Samples& all = job_.samples->all();
    if (job_.options.stride > 0 && !windows_ && any_longer(all.offsets, job_.config().max_positions))
      windows_ = cut_windows(all, job_.config().max_positions, job_.options.stride);
    const MicroBatches::Size size = micro_batch_size(job_.config(), demand_, target_tokens);
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
int64_t ScoringPlanner::share_of_replica(int64_t tokens) const {
  return (tokens + job_.options.replicas - 1) / job_.options.replicas;
}

// The largest micro-batch, in tokens, that leaves half of the device's free memory for transfers, caches and others.
int64_t ScoringPlanner::largest_target(const std::vector<LayerRange>& cut) const {
  const auto buffers = static_cast<uint64_t>(Schedule::max_buffers(job_.shape(cut), plan_.micro_batches));
  int64_t tokens = max_measured_target(job_.compute, job_.options.results, demand_.length);
  const auto fits = [&] {
    const StageMemory cost =
        stage_memory(*job_.shards, job_.pieces(cut), job_.compute, tokens, plan_.max_rows(job_.options.results));
    return 2 * (cost.total_bytes(buffers) - cost.weight_bytes) <= job_.machine.backend->free_bytes();
  };
  while (tokens > kMaxCudaTarget && !fits()) tokens /= 2;
  return tokens;
}

BlockCosts ScoringPlanner::block_costs() {
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
  return costs_of_job(job_.config(), demand_, measured);
}

JobPlan ScoringPlanner::sizes_of(const std::vector<LayerRange>& cut) const {
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

TimedSamples ScoringPlanner::timed_samples() const {
  return {.length = demand_.length, .last_positions = job_.options.results.of_last_positions()};
}

// The estimated share of the work of layers after the last attention that the tails need.
double ScoringPlanner::tail_share(LayerRange layers) const {
  const int64_t length = demand_.length, tail = tail_length(job_.config());
  const std::vector<double> all = estimate_block_seconds(job_.config(), job_.compute, kMaxCudaTarget, 0);
  const std::vector<double> cut =
      estimate_block_seconds(job_.config(), job_.compute, kMaxCudaTarget,
                             std::max<int64_t>(1, kMaxCudaTarget / length * std::min(length, tail)));
  const auto sum = [&](const std::vector<double>& seconds) {
    return std::accumulate(seconds.begin() + first_block(layers), seconds.begin() + end_block(layers), 0.0);
  };
  return sum(cut) / sum(all);
}

void ScoringPlanner::measure_and_replan(const std::vector<LayerRange>& cut) {
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
                      .transfer = demand_.transfer,
                      .devices = demand_.devices};
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
    choice = choose_again(job_.config(), demand_, std::move(costs), share_of_replica(plan_.tokens),
                          static_cast<int64_t>(largest));
  choose_plan(choice.target_tokens);
  plan_.late = choice.late;
}

}  // namespace lfm2
