// Random hidden states go through the layers in the same way as the job's.
#include "stage/scoring/planning/measure.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/model/caches.h"
#include "stage/model/memory_plan.h"
#include "stage/scoring/scorer.h"

namespace lfm2 {

namespace {

// Times work on the device.
class Stopwatch {
 public:
  Stopwatch(Backend& backend, TimedConditions conditions)
      : backend_(backend),
        conditions_(conditions),
        runs_(!backend.memory_is_host_memory() ? 4
              : conditions.others != nullptr   ? 3
                                               : 2) {
    const bool has_room = backend.free_bytes() > 4 * kOtherBytes;
    if (!backend.memory_is_host_memory() && has_room) others_ = backend.allocate(kOtherBytes);
  }

  // The time of a pass of `work` among other passes. Only the first pass begins with a pause, because later a layer's
  // first kernel starts while the previous layer ends.
  double seconds(const std::function<void()>& work) {
    if (backend_.memory_is_host_memory()) return seconds_of(work, 1);
    return (seconds_of(work, kPasses) - seconds_of(work, 1)) / (kPasses - 1);
  }
  // The same within a recording. It has all passes, because a replay begins with a pause.
  double recorded_seconds(const std::function<void()>& work) {
    const std::unique_ptr<Recording> one = backend_.record(work), all = backend_.record([&] {
      for (int pass = 0; pass < kPasses; ++pass) work();
    });
    if (one == nullptr || all == nullptr) return seconds(work);
    return (seconds_of([&] { all->replay(); }, 1) - seconds_of([&] { one->replay(); }, 1)) / (kPasses - 1);
  }

 private:
  static constexpr int kPasses = 3;
  static constexpr size_t kOtherBytes = size_t{128} << 20;  // more than a cache holds

  double seconds_of(const std::function<void()>& work, int passes) {
    Stream& stream = backend_.compute();
    stream.drain();
    static_cast<void>(stream.pop_finished());
    for (int run = 0; run <= runs_; ++run) {
      // Between two uses of a layer's weights other layers are computed, so the weights must come from the device's
      // memory, not its L2.
      if (conditions_.others != nullptr) stream.submit([&] { conditions_.others->read(backend_.ops()); }, 0);
      if (others_.data()) backend_.copy(stream, others_.data(), others_.data() + kOtherBytes / 2, kOtherBytes / 2);
      stream.submit(
          [&] {
            for (int pass = 0; pass < passes; ++pass) work();
          },
          run);
    }
    stream.drain();
    stream.check();
    std::vector<double> found;
    for (const Span& span : stream.pop_finished())
      if (span.tag > 0) found.push_back(span.end - span.start);
    std::sort(found.begin(), found.end());
    return found[conditions_.warm_seconds > 0 || conditions_.others != nullptr ? found.size() / 2 : 0];
  }

  Backend& backend_;
  const TimedConditions conditions_;
  int runs_;  // after one that warms up
  Buffer others_;
};

BatchTensors put(Backend& backend, TensorMemory& memory, const BatchArrays& arrays) {
  std::vector<std::byte> host(BatchTensors(arrays, {}, nullptr).bytes);
  const Tensor device = memory.allocate(DType::kI32, {static_cast<int64_t>(host.size() / sizeof(int32_t))});
  const BatchTensors tensors = fill_arrays(arrays, {}, host, device.data);
  backend.upload(device, 0, DType::kI32, host.data(), device.numel());
  return tensors;
}

class Noise {
 public:
  explicit Noise(int64_t count) : values_(static_cast<size_t>(count)) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (float& x : values_) x = normal(generator);
  }
  void fill(Backend& backend, const Tensor& tensor) const {
    const auto most = static_cast<int64_t>(values_.size());
    for (int64_t first = 0; first < tensor.numel(); first += most)
      backend.upload(tensor, first, DType::kF32, values_.data(), std::min(most, tensor.numel() - first));
  }

 private:
  std::vector<float> values_;
};

// A micro-batch of the job: whole samples and the rest of one, or a part of a sample, after `past` tokens of it. Of
// each, `tail` tokens are kept after the last attention layer; 0: all.
BatchArrays batch_of(int64_t length, int64_t past, int64_t tokens, int64_t tail) {
  std::vector<int32_t> pages(static_cast<size_t>(shape_of_caches(past + tokens).pages));
  std::iota(pages.begin(), pages.end(), 0);
  BatchArrays arrays;
  arrays.table_width = std::ssize(pages);
  for (int64_t first = 0; first < tokens; first += length) {
    const int64_t count = std::min(length, tokens - first);
    if (past > 0)
      arrays.add_cached(past, count, pages, 0, 1);
    else
      arrays.add(0, count);
    if (tail > 0) arrays.keep_tail(arrays.sequences() - 1, std::min(count, tail), 0);
  }
  return arrays;
}

// A step of a generation: one token of each of `tokens` sequences, after `cached` tokens in separate pages.
BatchArrays step_of(const CacheShape& caches, int64_t cached, int64_t tokens) {
  std::vector<int32_t> pages(static_cast<size_t>(caches.pages / caches.slots));  // of a sequence
  std::iota(pages.begin(), pages.end(), 0);
  BatchArrays arrays;
  arrays.table_width = std::ssize(pages);
  for (int32_t sequence = 0; sequence < tokens; ++sequence) {
    arrays.add_cached(cached, 1, pages, 2 * sequence, 2 * sequence + 1);
    for (int32_t& page : pages) page += static_cast<int32_t>(std::ssize(pages));
  }
  return arrays;
}

// Caches for such steps, small enough to be filled quickly: many long sequences get fewer cached positions.
constexpr int64_t kStepPage = 256, kMaxStepPages = 1024;
CacheShape shape_of_steps(int64_t& cached, int64_t tokens) {
  const int64_t pages = std::clamp<int64_t>(kMaxStepPages / tokens, 1, cached / kStepPage + 1);
  cached = std::min(cached, pages * kStepPage - 1);
  return {.slots = tokens, .pages = tokens * pages, .page_size = kStepPage};
}

// A stage, random hidden states for it, and caches if the samples need them.
class TimedStage {
 public:
  // `largest`: the most tokens of a pass; `positions`: the most positions of a sample in parts, 0: none is.
  TimedStage(Backend& backend, const Stage& stage, DType compute, TimedSamples samples, int64_t largest,
             int64_t positions, TimedConditions conditions = {})
      : backend_(backend),
        stage_(stage),
        samples_(samples),
        cuts_(samples.last_positions && prunes_tokens(stage.config(), stage.layers())),
        scratch_(
            backend.allocate(stage_memory(stage.config(), stage.layers(), compute, compute, largest, 0).scratch_bytes)),
        memory_(backend),
        residual_(memory_.allocate(compute, {largest, stage.config().hidden})),
        noise_(std::min(residual_.numel(), kMaxNoise)),
        stopwatch_(backend, conditions) {
    cached_ = samples.cached.value_or(0);
    shape_ = samples.cached ? shape_of_steps(cached_, largest) : shape_of_caches(positions);
    if (!samples.cached && positions == 0) return;
    caches_.emplace(backend, stage.config(), stage.layers(), compute, shape_);
    for (const LayerCache& layer : caches_->layers())
      for (const Tensor& cache : {layer.key_values.keys, layer.key_values.values, layer.conv.states})
        if (cache && is_float(cache)) noise_.fill(backend, cache);
  }

  // The seconds of `tokens` tokens, the first of them after `past` others of its sample. `recorded`: as steps that are
  // replayed from a recording.
  double seconds(int64_t tokens, int64_t past, double warm_seconds = 0, bool recorded = false) {
    const ModelConfig& config = stage_.config();
    const BatchTensors arrays =
        put(backend_, memory_,
            samples_.cached ? step_of(shape_, cached_, tokens)
                            : batch_of(samples_.length, past, tokens, cuts_ ? tail_length(config) : 0));
    TokenPruning pruning = arrays.tail;
    if (cuts_) pruning.residual = memory_.allocate(residual_.dtype, {pruning.batch.tokens, config.hidden});
    noise_.fill(backend_, residual_);  // the runs of another size have changed it
    const auto pass = [&] {
      stage_.forward({.ops = backend_.ops(),
                      .scratch = scratch_,
                      .residual = residual_.rows(0, tokens),
                      .batch = arrays.batch,
                      .pruning = cuts_ ? &pruning : nullptr,
                      .caches = samples_.cached || past > 0 ? &*caches_ : nullptr});
    };
    for (const double end = steady_seconds() + warm_seconds; steady_seconds() < end;)
      static_cast<void>(stopwatch_.seconds(pass));
    const double seconds = stopwatch_.seconds(pass);  // a recorded pass must have run before
    return recorded ? stopwatch_.recorded_seconds(pass) : seconds;
  }

 private:
  static constexpr int64_t kMaxNoise = int64_t{16} << 20;  // values; more tokens repeat them

  Backend& backend_;
  const Stage& stage_;
  const TimedSamples samples_;
  const bool cuts_;
  Scratch scratch_;
  TensorMemory memory_;
  Tensor residual_;
  const Noise noise_;
  Stopwatch stopwatch_;
  int64_t cached_ = 0;
  CacheShape shape_;
  std::optional<Caches> caches_;
};

constexpr int64_t kOtherColumns = 1024;
constexpr size_t kMaxOtherBytes = size_t{512} << 20;  // of all ranks of a host

}  // namespace

OtherWeights::OtherWeights(Backend& backend, size_t bytes)
    : memory_(backend),
      row_(memory_.allocate(DType::kF32, {1, kOtherColumns})),
      weights_(memory_.allocate(
          DType::kF32,
          {std::max<int64_t>(1, static_cast<int64_t>(bytes / sizeof(float)) / kOtherColumns), kOtherColumns})),
      product_(memory_.allocate(DType::kF32, {1, weights_.dim(0)})) {
  // Written, because all untouched pages of a process are one page.
  const std::vector<float> ones(static_cast<size_t>(kOtherColumns), 1.0f);
  for (int64_t row = 0; row < weights_.dim(0); ++row)
    backend.upload(weights_, row * kOtherColumns, DType::kF32, ones.data(), kOtherColumns);
  backend.upload(row_, 0, DType::kF32, ones.data(), kOtherColumns);
}

void OtherWeights::read(Ops& ops) const { ops.matmul(row_, weights_, {}, product_, Write::kStore); }

size_t other_weight_bytes(const ModelConfig& config, DType compute, int64_t ranks) {
  const LayerRange all = layers_of_blocks(0, config.layers * kBlocksOfLayer);
  const uint64_t bytes = stage_memory(config, all, compute, compute, 1, 1).weight_bytes;
  return static_cast<size_t>(std::min<uint64_t>(bytes, kMaxOtherBytes)) / static_cast<size_t>(ranks);
}

StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes) {
  const int64_t past = std::max<int64_t>(0, (samples.length - sizes.large) / 2);
  samples.length = std::clamp<int64_t>(samples.length, 1, sizes.large);
  TimedStage timed(backend, stage, compute, samples, sizes.large, past > 0 ? past + sizes.large : 0);
  const double one = timed.seconds(1, past), small = timed.seconds(sizes.small, past),
               large = timed.seconds(sizes.large, past);
  return line_through(sizes, one, small, large);
}

CostCurve measure_stage_curve(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                              std::span<const int64_t> sizes, TimedConditions conditions) {
  CostCurve curve{.sizes = {sizes.begin(), sizes.end()}, .seconds = {}};
  if (samples.cached) {  // each number of sequences in caches for it, because many sequences have room for less
    for (const int64_t sequences : sizes)
      curve.seconds.push_back(
          TimedStage(backend, stage, compute, samples, sequences, 0, conditions)
              .seconds(sequences, 0, sequences == sizes.front() ? conditions.warm_seconds : 0, true));
    return curve;
  }
  TimedStage timed(backend, stage, compute, samples, sizes.back(), sizes.front() < samples.length ? samples.length : 0,
                   conditions);
  for (const int64_t tokens : sizes)
    curve.seconds.push_back(
        timed.seconds(tokens, std::max<int64_t>(0, (samples.length - tokens) / 2), conditions.warm_seconds));
  return curve;
}

int64_t max_timed_sequences(int64_t cached) { return kMaxStepPages / (cached / kStepPage + 1); }

CostCurve measure_head_curve(Backend& backend, const Stage& stage, DType compute, std::span<const int64_t> rows,
                             TimedConditions conditions) {
  const ModelConfig& config = stage.config();
  const int64_t most = rows.back();
  Scratch scratch(backend.allocate(stage_memory(config, stage.layers(), compute, compute, most, most).scratch_bytes));
  TensorMemory memory(backend);
  const Tensor residual = memory.allocate(compute, {most, config.hidden}),
               logits = memory.allocate(DType::kF32, {most, config.vocab});
  Noise(residual.numel()).fill(backend, residual);
  Stopwatch stopwatch(backend, conditions);
  CostCurve curve{.sizes = {rows.begin(), rows.end()}, .seconds = {}};
  for (const int64_t count : rows)
    curve.seconds.push_back(stopwatch.seconds(
        [&] { stage.head(backend.ops(), residual.rows(0, count), {}, scratch, logits.rows(0, count)); }));
  return curve;
}

StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute) {
  constexpr TimedSizes kRows{.small = 32, .large = kHeadRows};
  const CostCurve curve =
      measure_head_curve(backend, stage, compute, std::array<int64_t, 3>{1, kRows.small, kRows.large});
  return line_through(kRows, curve.seconds[0], curve.seconds[1], curve.seconds[2]);
}

}  // namespace lfm2
