// Operators that only count, and weights without memory.
#include "stage/model/memory_plan.h"

#include <algorithm>

#include "kernels/counting_ops.h"
#include "stage/model/stage.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

namespace {

class CountedWeights : public WeightSource {
 public:
  CountedWeights(const ModelConfig& config, DType held) : config_(config), held_(held) {}
  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows) override {
    const bool fp8 = config_.fp8_weights.contains(names.front());
    Tensor tensor(nullptr, fp8 ? DType::kF8 : held_, dims);
    if (fp8 && config_.quantization.scheme == Quantization::Scheme::kBlock) tensor.scales.group = kScaleBlock;
    bytes_ += tensor.bytes();
    return tensor;
  }
  bool load_together(const std::vector<std::string>& names) const override {
    return are_loaded_together(config_, names);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  const ModelConfig& config_;
  DType held_;
  uint64_t bytes_ = 0;
};

}  // namespace

size_t result_pieces(int64_t max_rows) {
  constexpr int64_t kFewest = 3;
  return static_cast<size_t>(std::clamp((max_rows + kHeadRows - 1) / kHeadRows, kFewest, kMaxResultRows / kHeadRows));
}

StageMemory stage_memory(const ModelConfig& config, LayerRange layers, DType compute, DType held, int64_t tokens,
                         int64_t result_rows) {
  CountedWeights weights(config, held);
  const Stage stage(weights, config, layers);
  Scratch scratch;
  CountingOps layer_ops, head_ops;
  const Tensor residual(nullptr, compute, {tokens, config.hidden});
  stage.forward({.ops = layer_ops, .scratch = scratch, .residual = residual, .batch = {}});
  // A tail of all tokens, the worst case.
  const TokenPruning pruning{Tensor(nullptr, DType::kI32, {tokens}), residual, {}};
  CountingOps not_counted;
  if (prunes_tokens(config, layers))
    stage.forward({.ops = not_counted, .scratch = scratch, .residual = residual, .batch = {}, .pruning = &pruning});
  StageMemory cost;
  const int64_t rows = std::min(result_rows, kHeadRows);
  const Tensor chosen(nullptr, DType::kI32, {rows});
  if (stage.last() && rows > 0 && config.end != ModelEnd::kLmHead) {
    stage.hidden_states(head_ops, residual, chosen, scratch);
    cost.result_bytes =
        result_pieces(result_rows) * static_cast<uint64_t>(rows * config.hidden) * sizeof(float);  // on the host
  } else if (stage.last() && rows > 0) {
    const Tensor logits(nullptr, DType::kF32, {rows, config.vocab});
    stage.head(head_ops, residual, chosen, scratch, logits);
    cost.result_bytes = 2 * result_pieces(result_rows) * logits.bytes();  // once on the device, once on the host
    cost.head_flops = head_ops.flops() / static_cast<double>(rows);
  }
  cost.weight_bytes = weights.bytes();
  cost.residual_bytes = residual.bytes();
  cost.scratch_bytes = scratch.peak_bytes();
  cost.layer_flops = layer_ops.flops();
  return cost;
}

StageMemory stage_memory(const ModelConfig& config, std::span<const LayerRange> pieces, DType compute, DType held,
                         int64_t tokens, int64_t result_rows) {
  StageMemory all;
  for (const LayerRange& piece : pieces) {
    const StageMemory one = stage_memory(config, piece, compute, held, tokens, result_rows);
    all.weight_bytes += one.weight_bytes;
    all.residual_bytes = std::max(all.residual_bytes, one.residual_bytes);
    all.scratch_bytes = std::max(all.scratch_bytes, one.scratch_bytes);
    all.result_bytes = std::max(all.result_bytes, one.result_bytes);
    all.layer_flops += one.layer_flops;
    all.head_flops = std::max(all.head_flops, one.head_flops);
  }
  return all;
}

}  // namespace lfm2
