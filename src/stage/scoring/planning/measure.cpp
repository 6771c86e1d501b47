// Random hidden states go through the layers in the same way as the job's.
#include "stage/scoring/planning/measure.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
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
  explicit Stopwatch(Backend& backend) : backend_(backend), runs_(backend.memory_is_host_memory() ? 2 : 4) {
    const bool has_room = backend.free_bytes() > 4 * kOtherBytes;
    if (!backend.memory_is_host_memory() && has_room) others_ = backend.allocate(kOtherBytes);
  }

  // The time of a pass of `work` among other passes. Only the first pass begins with a pause, because later a layer's
  // first kernel starts while the previous layer ends.
  double seconds(const std::function<void()>& work) {
    if (backend_.memory_is_host_memory()) return least_seconds(work, 1);
    constexpr int kPasses = 3;
    return (least_seconds(work, kPasses) - least_seconds(work, 1)) / (kPasses - 1);
  }

 private:
  static constexpr size_t kOtherBytes = size_t{128} << 20;  // more than a cache holds

  double least_seconds(const std::function<void()>& work, int passes) {
    Stream& stream = backend_.compute();
    stream.drain();
    static_cast<void>(stream.pop_finished());
    for (int run = 0; run <= runs_; ++run) {
      // Between two uses of a layer's weights other layers are computed, so the weights must come from the device's
      // memory, not its L2.
      if (others_.data()) backend_.copy(stream, others_.data(), others_.data() + kOtherBytes / 2, kOtherBytes / 2);
      stream.submit(
          [&] {
            for (int pass = 0; pass < passes; ++pass) work();
          },
          run);
    }
    stream.drain();
    stream.check();
    double least = std::numeric_limits<double>::infinity();
    for (const Span& span : stream.pop_finished())
      if (span.tag > 0) least = std::min(least, span.end - span.start);
    return least;
  }

  Backend& backend_;
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
CacheShape shape_of_steps(int64_t& cached, int64_t tokens) {
  constexpr int64_t kPage = 256, kMaxPages = 1024;
  const int64_t pages = std::clamp<int64_t>(kMaxPages / tokens, 1, cached / kPage + 1);
  cached = std::min(cached, pages * kPage - 1);
  return {.slots = tokens, .pages = tokens * pages, .page_size = kPage};
}

}  // namespace

StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes) {
  const ModelConfig& config = stage.config();
  const int64_t length = std::clamp<int64_t>(samples.length, 1, sizes.large);
  const int64_t past = std::max<int64_t>(0, (samples.length - sizes.large) / 2);
  int64_t cached = samples.cached.value_or(0);
  const CacheShape shape =
      samples.cached ? shape_of_steps(cached, sizes.large) : shape_of_caches(past > 0 ? past + sizes.large : 0);
  const bool cuts = samples.last_positions && prunes_tokens(config, stage.layers());
  const StageMemory cost = stage_memory(config, stage.layers(), compute, compute, sizes.large, 0);
  Scratch scratch(backend.allocate(cost.scratch_bytes));
  TensorMemory memory(backend);
  const Tensor residual = memory.allocate(compute, {sizes.large, config.hidden});
  const Noise noise(residual.numel());
  std::optional<Caches> caches;
  if (shape.pages > 0) {
    caches.emplace(backend, config, stage.layers(), compute, shape);
    for (const LayerCache& layer : caches->layers())
      for (const Tensor& cache : {layer.key_values.keys, layer.key_values.values, layer.conv.states})
        if (cache && is_float(cache)) noise.fill(backend, cache);
  }
  Stopwatch stopwatch(backend);
  const auto seconds = [&](int64_t tokens) {
    const BatchTensors arrays = put(backend, memory,
                                    samples.cached ? step_of(shape, cached, tokens)
                                                   : batch_of(length, past, tokens, cuts ? tail_length(config) : 0));
    TokenPruning pruning = arrays.tail;
    if (cuts) pruning.residual = memory.allocate(compute, {pruning.batch.tokens, config.hidden});
    noise.fill(backend, residual);  // the runs of another size have changed it
    return stopwatch.seconds([&] {
      stage.forward({.ops = backend.ops(),
                     .scratch = scratch,
                     .residual = residual.rows(0, tokens),
                     .batch = arrays.batch,
                     .pruning = cuts ? &pruning : nullptr,
                     .caches = caches ? &*caches : nullptr});
    });
  };
  const double small = seconds(sizes.small), large = seconds(sizes.large);
  return line_through(sizes, small, large);
}

StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute) {
  const ModelConfig& config = stage.config();
  constexpr TimedSizes kRows{.small = 32, .large = kHeadRows};
  Scratch scratch(
      backend.allocate(stage_memory(config, stage.layers(), compute, compute, kRows.large, kRows.large).scratch_bytes));
  TensorMemory memory(backend);
  const Tensor residual = memory.allocate(compute, {kRows.large, config.hidden}),
               logits = memory.allocate(DType::kF32, {kRows.large, config.vocab});
  Noise(residual.numel()).fill(backend, residual);
  Stopwatch stopwatch(backend);
  const auto seconds = [&](int64_t rows) {
    return stopwatch.seconds(
        [&] { stage.head(backend.ops(), residual.rows(0, rows), {}, scratch, logits.rows(0, rows)); });
  };
  const double small = seconds(kRows.small), large = seconds(kRows.large);
  return line_through(kRows, small, large);
}

BlockKinds block_kinds(const ModelConfig& config) {
  BlockKinds kinds;
  // The kind of a block: for a token mixer its type and whether it prunes tokens; for a feed-forward whether it is
  // dense.
  std::vector<std::tuple<std::optional<LayerType>, bool>> known;
  for (int64_t block = 0; block < config.layers * kBlocksOfLayer; ++block) {
    const int64_t layer = block / kBlocksOfLayer;
    const bool mixes = block % kBlocksOfLayer == 0;
    const std::tuple kind{mixes ? std::optional(config.layer_types[static_cast<size_t>(layer)]) : std::nullopt,
                          mixes ? layer == last_attention_layer(config) : config.is_dense(layer)};
    const auto found = static_cast<size_t>(std::find(known.begin(), known.end(), kind) - known.begin());
    if (found == known.size()) {
      known.push_back(kind);
      kinds.examples.push_back(block);
    }
    // Loading the first block also loads the embedding, which is not needed.
    if (kinds.examples[found] == 0) kinds.examples[found] = block;
    kinds.kind_of.push_back(found);
  }
  return kinds;
}

}  // namespace lfm2
