// The fp8 checkpoints among the golden cases, compared with transformers' results: the whole model on one backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"
#include "stage/shards/shard_weights.h"
#include "support/golden.h"
#include "support/index_cast.h"
#include "support/shards.h"

namespace lfm2::test {

// The logits of the case's samples [samples, length, vocab]. `keep_fp8`: products in fp8, with activations of type
// `act`; otherwise with dequantised weights.
inline std::vector<float> fp8_case_logits(Backend& backend, const std::string& golden_case, DType act, bool keep_fp8) {
  ShardSet shards = ShardSet::open(golden_shards(golden_case, 1));
  shards.choose_dtype(keep_fp8 ? DType::kF8 : act);
  const ModelConfig& config = shards.config();
  Progress progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  ShardWeights weights(shards, backend, act, progress, 2);
  const LayerRange all{0, config.layers};
  const Stage stage(weights, config, all);
  weights.finish();
  weights.expect_all_loaded(stage_tensors(shards, std::vector<LayerRange>{all}));
  // Dequantised, a projection may be fp32 beside bf16 in one tensor, which is fp32 then.
  if (keep_fp8) {
    EXPECT_EQ(weights.bytes(), held_bytes(shards, stage_tensors(shards, std::vector<LayerRange>{all}), act));
  }
  const Array ids = read_array(golden_dir() / golden_case / "golden.h5", "input_ids");
  const int64_t samples = ids.dim(0), length = ids.dim(1), tokens = samples * length;
  std::vector<int32_t> words(ids.values.begin(), ids.values.end());
  for (int64_t token = 0; token < tokens; ++token) words.push_back(static_cast<int32_t>(token % length));
  for (int64_t sample = 0; sample <= samples; ++sample) words.push_back(static_cast<int32_t>(sample * length));
  TensorMemory memory(backend);
  const Tensor arrays = memory.allocate(DType::kI32, {std::ssize(words)});
  backend.upload(arrays, 0, DType::kI32, words.data(), arrays.numel());
  const Tensor residual = memory.allocate(act, {tokens, config.hidden});
  const Tensor logits = memory.allocate(DType::kF32, {tokens, config.vocab});
  const Batch batch{.positions = arrays.rows(tokens, tokens),
                    .offsets = arrays.rows(2 * tokens, samples + 1),
                    .tokens = tokens,
                    .sequences = samples,
                    .max_length = length};
  Scratch scratch(backend.allocate(stage_memory(config, all, act, act, tokens, tokens).scratch_bytes));
  std::vector<float> result(at(logits.numel()));
  backend.compute().submit([&] {
    stage.embed(backend.ops(), arrays.rows(0, tokens), residual);
    stage.forward({.ops = backend.ops(), .scratch = scratch, .residual = residual, .batch = batch});
    stage.head(backend.ops(), residual, {}, scratch, logits);
    backend.copy_to_host(result.data(), logits);
  });
  backend.compute().drain();
  backend.compute().check();
  return result;
}

// With activations in fp32: where rounding to fp8 is stable, the logits are those of the same arithmetic in fp64;
// elsewhere a number near the middle of a step may fall to its other side, and all later logits move.
inline void check_fp8_golden(Backend& backend, const std::string& golden_case) {
  SCOPED_TRACE(golden_case);
  const std::filesystem::path file = golden_dir() / golden_case / "golden.h5";
  const std::vector<double> exact = read_array(file, "logits_f64").values, torch = read_array(file, "logits").values,
                            quantised = read_array(file, "logits_quant_f64").values,
                            stable = read_array(file, "quant_stable").values;
  double torch_error = 0, quantising = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    torch_error = std::max(torch_error, std::fabs(torch[i] - exact[i]));
    quantising += std::fabs(quantised[i] - exact[i]) / static_cast<double>(exact.size());
  }
  const double tolerance = std::min(3 * torch_error, 2e-4);
  const std::vector<float> dequantised = fp8_case_logits(backend, golden_case, DType::kF32, false),
                           fp8 = fp8_case_logits(backend, golden_case, DType::kF32, true),
                           dequantised_bf16 = fp8_case_logits(backend, golden_case, DType::kBf16, false),
                           in_bf16 = fp8_case_logits(backend, golden_case, DType::kBf16, true);
  ASSERT_EQ(fp8.size(), quantised.size());
  const size_t vocab = quantised.size() / stable.size();
  double worst = 0, worst_dequantised = 0, mean = 0, mean_bf16 = 0, rounding = 0;
  size_t strict = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    worst_dequantised = std::max(worst_dequantised, std::fabs(static_cast<double>(dequantised[i]) - exact[i]));
    const double difference = std::fabs(static_cast<double>(fp8[i]) - quantised[i]);
    mean += difference / static_cast<double>(exact.size());
    mean_bf16 += std::fabs(static_cast<double>(in_bf16[i]) - quantised[i]) / static_cast<double>(exact.size());
    rounding += std::fabs(static_cast<double>(dequantised_bf16[i]) - exact[i]) / static_cast<double>(exact.size());
    if (stable[i / vocab] == 0) continue;
    worst = std::max(worst, difference);
    ++strict;
  }
  EXPECT_GE(3 * strict, exact.size());  // a third of the tokens at least is stable
  EXPECT_LE(worst, tolerance);
  EXPECT_LE(worst_dequantised, tolerance);
  EXPECT_LT(mean, quantising);
  EXPECT_LT(mean_bf16, quantising + rounding);  // what quantising changes, and what bf16 changes by itself
}

}  // namespace lfm2::test
