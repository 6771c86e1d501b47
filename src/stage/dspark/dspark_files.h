// The folder of a DSpark drafter as it is published: config.json and model.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/checked_file.h"
#include "stage/dspark/dspark_config.h"
#include "stage/shards/safetensors.h"

namespace lfm2 {

// A tensor of a drafter. Embedding and LM head are those of its target.
struct DsparkTensor {
  std::string name;  // as in the published file
  std::vector<uint64_t> dims;
};

// The tensors that drafts are computed from. Files may also have a confidence head, which is not read.
std::vector<DsparkTensor> dspark_tensors(const DsparkConfig& config);

struct DsparkFiles {
  std::string config_path;
  std::string config_text;
  DsparkConfig config;
  CheckedFile weights;
  RawTensors tensors;   // by the names of dspark_tensors()
  RawTensors left_out;  // of the file, which are not read: the confidence head, and copies of the target's tensors

  // Reads the configuration and the header of the weights, and checks that every tensor is there. Error(kNoInput) for a
  // missing file, kData for one that is no drafter or is not computed.
  static DsparkFiles open(const std::filesystem::path& folder);
};

// Whether a folder holds a drafter: its config.json names the class of drafters. False where it cannot be read.
bool is_dspark_folder(const std::filesystem::path& folder);

// Bytes of keys and values of a position in the drafter's cache, with elements of this type.
uint64_t cache_bytes(const DsparkConfig& config, DType compute);
// Bytes of the drafter's weights on a device that computes in this type, with the padding of feed-forwards.
uint64_t held_bytes(const DsparkFiles& files, DType compute);
// The type in which the device holds a weight that is stored as `stored`: see held_dtype() of shards/shard_weights.h.
constexpr DType held_dtype(DType stored, DType compute) { return compute == DType::kF32 ? stored : compute; }

}  // namespace lfm2
