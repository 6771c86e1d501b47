// Costs of a made-up machine for a small model, as known lines.
#pragma once

#include "stage/planning/machine_costs.h"

namespace lfm2::test {

// Six layers: convolutions, and attention in layers 1 and 4. The first feed-forward is dense.
inline ModelConfig small_model() {
  using enum LayerType;
  ModelConfig config;
  config.type = ModelType::kLfm2Moe;
  config.vocab = 256;
  config.hidden = 64;
  config.layers = 6;
  config.layer_types = {kConv, kAttention, kConv, kConv, kAttention, kConv};
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 128;
  config.dense_layers = 1;
  config.experts = 4;
  config.top_k = 2;
  config.moe_ffn = 32;
  config.conv_length = 3;
  config.max_positions = 4096;
  config.tied_embedding = true;
  return config;
}

// Seconds of a block: fixed + per_token · tokens, times 1 + its kind's number.
struct MadeUpBlock {
  double fixed = 0.5e-3, per_token = 10e-6, head_row = 20e-6;
};

inline CostCurve line(double fixed, double per_token, const std::vector<int64_t>& sizes) {
  CostCurve curve{.sizes = sizes, .seconds = {}};
  for (const int64_t size : sizes) curve.seconds.push_back(fixed + per_token * static_cast<double>(size));
  return curve;
}

// A CPU host of up to four ranks, whose costs do not depend on their number.
inline MachineCosts made_up_costs(const ModelConfig& config, MadeUpBlock block = {}) {
  const BlockKinds kinds = block_kinds(config);
  MachineCosts machine{.program = "lfm2_stage of a test",
                       .device = "a made-up CPU",
                       .transport = "MPI",
                       .host_ranks = 4,
                       .processors = 4,
                       .memory_bytes = uint64_t{1} << 33,
                       .hosts = {},
                       .links = {{"same host", 5e9, 10e-6}}};
  for (const int64_t ranks : {1, 2, 3, 4}) {
    HostCosts host{.ranks = ranks, .samples = {}, .steps = {}, .head = {}};
    for (const int64_t length : {32, 512}) {
      SampleCosts one{.length = length, .blocks = {}, .unpruned = {}};
      for (size_t kind = 0; kind < kinds.examples.size(); ++kind) {
        const auto factor = static_cast<double>(kind + 1);
        one.blocks.push_back(line(factor * block.fixed, factor * block.per_token, saved_token_sizes(false)));
      }
      one.unpruned = line(9 * block.fixed, 9 * block.per_token, saved_token_sizes(false));
      host.samples.push_back(std::move(one));
    }
    for (const int64_t cached : {32, 512}) {
      StepCosts one{.cached = cached, .blocks = {}};
      for (size_t kind = 0; kind < kinds.examples.size(); ++kind) {
        const auto factor = static_cast<double>(kind + 1);
        one.blocks.push_back(line(factor * block.fixed, factor * block.per_token, saved_sequence_sizes(false)));
      }
      host.steps.push_back(std::move(one));
    }
    host.head = line(block.fixed, block.head_row, saved_row_sizes());
    machine.hosts.push_back(std::move(host));
  }
  return machine;
}

}  // namespace lfm2::test
