// One pass of tokens through the layers of a stage: the residual stream, and what the layers need beside it.
#pragma once

#include "stage/model/caches.h"
#include "stage/model/scratch.h"
#include "stage/model/token_pruning.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

struct Pass {
  Ops& ops;
  Scratch& scratch;
  Tensor residual;  // [tokens, hidden] act: each block is added to it in place
  Batch batch;
  // After the last attention the pass continues with pruning->residual and pruning->batch.
  const TokenPruning* pruning = nullptr;
  // The tokens continue the cached sequences. After the pruning the kept tokens do so, too, where their batch has
  // states.
  const Caches* caches = nullptr;
  // The feed-forward of the model's last layer continues with output->residual.
  const OutputRows* output = nullptr;
  LayerSpan span = {};  // only some of the stage's layers

  // Set on the way, by Stage and the layers.
  const LayerCache* cache = nullptr;  // of this layer, where there are caches
  Tensor normed = {};                 // [tokens, hidden] act: the memory for the norm before a token mixer
  bool is_normed = false;             // whether it is there

  // Continues with these rows of the residual stream, in `into`.  rows [count] int32, into [count, hidden] act
  void keep(const Tensor& rows, const Tensor& into) {
    ops.gather_rows(residual, rows, into);
    residual = into;
    normed = normed.rows(0, into.dim(0));
  }
  // Continues with the tails. Returns their rows of `mixed` [tokens, columns] act.
  Tensor prune_tokens(const Tensor& mixed) {
    const Tensor kept = scratch.allocate(mixed.dtype, {pruning->rows.dim(0), mixed.dim(1)});
    ops.gather_rows(mixed, pruning->rows, kept);
    keep(pruning->rows, pruning->residual);
    batch = pruning->batch;
    if (!batch.states) caches = nullptr;
    return kept;
  }
  // Whether the norm before a token mixer is best left to the product after it.
  bool fuses(const Norm& norm) const { return !norm.fp8_group && ops.fuses_norm(residual); }
  // Where this norm goes: [tokens, hidden] act, or fp8 where all its readers multiply that.
  Tensor normed_by(const Norm& norm) const { return norm.fp8_group ? as_fp8_rows(normed, *norm.fp8_group) : normed; }
  // Computes the norm before a token mixer, unless it is there or best left to the product after it.
  void norm_in_front(const Norm& norm) {
    if (is_normed || fuses(norm)) return;
    ops.rms_norm(residual, norm.weight, norm.eps, normed_by(norm));
    is_normed = true;
  }
  // What a product with w multiplies: x [tokens, k] act itself, or, where w is fp8, x rounded to fp8 as w's scales ask.
  Tensor operand(const Tensor& x, const Tensor& w) const {
    if (w.dtype != DType::kF8 || x.dtype == DType::kF8 || ops.rounds_operand(x, w)) return x;
    const Tensor rounded = scratch.allocate_quantized({x.dim(0), x.dim(1)}, w.scales.group);
    ops.quantize(x, rounded);
    return rounded;
  }
  // out = norm(residual) wᵀ + bias
  void project(const Norm& norm, const Tensor& w, const Tensor& bias, const Tensor& out) {
    if (!is_normed && w.dtype != DType::kF8)
      return ops.norm_matmul(residual, norm.weight, norm.eps, w, bias, normed, out);
    if (!is_normed) ops.rms_norm(residual, norm.weight, norm.eps, normed_by(norm));
    is_normed = true;
    ops.matmul(operand(normed_by(norm), w), w, bias, out, Write::kStore);
  }
};

}  // namespace lfm2
