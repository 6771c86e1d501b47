// One pass of tokens through the layers of a stage: the residual stream, the batch, and the caches.
#pragma once

#include <optional>
#include <span>

#include "stage/model/caches.h"
#include "stage/model/scratch.h"
#include "stage/model/token_pruning.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

// An RMSNorm at the input of a block.
struct Norm {
  Tensor weight;  // [hidden]
  float eps = 0;
  // Set if all products that read the result multiply fp8: the number of elements that share a scale (0: whole rows).
  std::optional<int64_t> fp8_group{};
  bool feeds_fp8 = false;  // whether any of these products multiplies fp8
};

// The projection at the end of a block, whose result is added to the residual stream.
struct OutProjection {
  Tensor weight, bias{};  // [hidden, k], [hidden] or empty
  Norm norm{};            // of the result before it is added; without a weight: none
};
// The norm of a block's result, if the model has such norms.
inline Norm load_post_norm(WeightSource& weights, const ModelConfig& config, const std::string& name) {
  if (!config.sandwich_norms) return {};
  return {weights.load({name + ".weight"}, {config.hidden}), config.norm_eps};
}

// Hidden states that a drafter reads: the residual stream after some of the model's layers.
struct Taps {
  std::span<const int64_t> layers;  // ascending, of the whole model
  Tensor rows;                      // [layers, tokens, hidden] act; a stage writes those of its own layers
};

struct Pass {
  Ops& ops;
  Scratch& scratch;
  Tensor residual;  // [tokens, hidden] act: each block is added to it in place
  Batch batch;
  // After the last attention the pass continues with pruning->residual and pruning->batch.
  const TokenPruning* pruning = nullptr;
  // Set if the tokens continue cached sequences. After pruning, the kept tokens also continue them if their batch has
  // states.
  const Caches* caches = nullptr;
  // The feed-forward of the model's last layer continues with output->residual.
  const OutputRows* output = nullptr;
  LayerSpan span = {};  // restricts the pass to some of the stage's layers
  // With caches: the page table of layers with a window (WindowPages); empty: that of the batch.
  Tensor window_table = {};
  // The batch by which attention reads the caches; null: `batch`. In a drafter's block every token reads all of them.
  const Batch* reads = nullptr;
  const Taps* taps = nullptr;  // hidden states that are kept for a drafter

  // Set during the pass by Stage and the layers, which also change residual, batch and caches when tokens are dropped.
  const LayerCache* cache = nullptr;  // of the current layer, if there are caches
  Tensor normed = {};                 // [tokens, hidden] act: the memory for the norm before a block
  bool is_normed = false;             // whether `normed` holds that norm

  // Copies these rows of the residual stream to `into` and continues with them.
  // rows [count] int32, into [count, hidden] act
  void keep(const Tensor& rows, const Tensor& into) {
    ops.gather_rows(residual, rows, into);
    residual = into;
    normed = normed.rows(0, into.dim(0));
  }
  // Continues with the kept tokens only. Returns their rows of `mixed` [tokens, columns] act.
  Tensor prune_tokens(const Tensor& mixed) {
    const Tensor kept = scratch.allocate(mixed.dtype, {pruning->rows.dim(0), mixed.dim(1)});
    ops.gather_rows(mixed, pruning->rows, kept);
    keep(pruning->rows, pruning->residual);
    batch = pruning->batch;
    if (!batch.states) caches = nullptr;
    return kept;
  }
  // Whether the norm before a token mixer should be fused into the following product.
  // With fp8, only for so few rows that the experts' down product may be fused with the sum of the experts.
  bool fuses(const Norm& norm) const {
    constexpr int64_t kFp8Rows = 2;
    return ops.fuses_norm(residual) && (!norm.feeds_fp8 || (norm.fp8_group == 0 && residual.dim(0) <= kFp8Rows));
  }
  // The tensor to which this norm is written: [tokens, hidden] act, or fp8 if all its readers multiply fp8.
  Tensor normed_by(const Norm& norm) const { return norm.fp8_group ? as_fp8_rows(normed, *norm.fp8_group) : normed; }
  // Computes the norm before a token mixer, unless it exists or should be fused into the following product.
  void norm_before_mixer(const Norm& norm) {
    if (is_normed || fuses(norm)) return;
    ops.rms_norm(residual, norm.weight, norm.eps, normed_by(norm));
    is_normed = true;
  }
  // Whether x must be rounded to fp8 before its product with w.
  bool must_round(const Tensor& x, const Tensor& w) const {
    return w.dtype == DType::kF8 && x.dtype != DType::kF8 && !ops.rounds_operand(x, w);
  }
  // The operand of a product with w: x [tokens, k] act itself or, if w is fp8, x quantised to fp8 to match w's scales.
  Tensor operand(const Tensor& x, const Tensor& w) const {
    if (!must_round(x, w)) return x;
    const Tensor rounded = scratch.allocate_quantized({x.dim(0), x.dim(1)}, w.scales.group);
    ops.quantize(x, rounded);
    return rounded;
  }
  // residual += x wᵀ + bias, or the norm of that; then, if `next` is given, normed = next(residual).
  void add(const Tensor& x, const OutProjection& out, const Norm* next) const {
    const Tensor& w = out.weight;
    if (!out.norm.weight) {
      ops.matmul(operand(x, w), w, out.bias, residual, Write::kAdd);
      if (next != nullptr) ops.rms_norm(residual, next->weight, next->eps, normed_by(*next));
      return;
    }
    const Tensor result = scratch.allocate(residual.dtype, {residual.dim(0), residual.dim(1)});
    ops.matmul(operand(x, w), w, out.bias, result, Write::kStore);
    ops.add_norm(result, out.norm.weight, out.norm.eps, residual, next != nullptr ? next->weight : Tensor(),
                 next != nullptr ? next->eps : 0, next != nullptr ? normed_by(*next) : Tensor());
  }
  // out = norm(residual) wᵀ + bias
  void project(const Norm& norm, const Tensor& w, const Tensor& bias, const Tensor& out) const {
    if (!is_normed) return ops.norm_matmul(residual, norm.weight, norm.eps, w, bias, normed, out);
    ops.matmul(operand(normed_by(norm), w), w, bias, out, Write::kStore);
  }
};

}  // namespace lfm2
