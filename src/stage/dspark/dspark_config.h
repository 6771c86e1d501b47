// The dimensions of a DSpark drafter, read from the config.json that is published with it. A drafter is a small model
// that guesses a block of tokens at a time from hidden states of the model that it was trained for, its target. Values
// that are not computed are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stage/model/model_config.h"

namespace lfm2 {

struct DsparkConfig {
  // The drafter's decoder layers, as those of a dense model in which each layer has attention.
  ModelConfig blocks;
  // The target's layers whose hidden states the drafter reads, ascending. The drafter reads the residual stream after
  // each of these layers.
  std::vector<int64_t> taps;
  int64_t target_layers = 0;
  int64_t block_size = 0;  // drafts that it makes at a time
  int32_t mask_token = 0;  // stands for the tokens to guess
  int64_t markov_rank = 0;
  bool rope_pairs = false;  // RoPE turns elements 2i and 2i + 1 together, rather than i and i + head_dim / 2

  int64_t layers() const { return blocks.layers; }
};

// Parses a config.json. `what` names the file in messages. Error(kData) for a missing, impossible or unsupported value.
DsparkConfig parse_dspark_config(std::string_view json_text, const std::string& what);

// Error(kData) unless the drafter was made for a model of these dimensions.
void expect_target(const DsparkConfig& config, const ModelConfig& target, const std::string& what);

}  // namespace lfm2
