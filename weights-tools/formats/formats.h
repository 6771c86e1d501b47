// Readers of headers, and layouts for writing, of all model file formats except shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "stage/shards/safetensors.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// model.bin, the original project's form: a table of names, shapes and offsets, then fp32 data.

// The tensors of a file under their Hugging Face names (the file omits the leading "model."). Checks limits on counts,
// names and ranks, that sizes are shape x 4, and that data lie inside the file and do not overlap. Error(kData).
RawTensors read_model_bin_header(const CheckedFile& file);

// The layout of the model in the order of model_tensors(), all fp32, with the data directly after the table.
FileLayout model_bin_layout(const ModelSource& source);

// The layout of the model as one file, in the order of Hugging Face's library: types of larger alignment first, then by
// name. Rewriting a checkpoint of that library reproduces it byte for byte.
FileLayout safetensors_layout(const ModelSource& source);

// model.safetensors.index.json: which file of a Hugging Face folder holds which tensor.
struct IndexedCheckpoint {
  std::vector<CheckedFile> files;
  RawTensors tensors;
};

// Opens every file that the index names, and reads the headers. Checks that the names are plain file names, that each
// tensor is in the file that the index says and in no other, and that the total size is right. Error(kData);
// Error(kNoInput) for a missing file.
IndexedCheckpoint open_indexed_checkpoint(const std::filesystem::path& index);

// The tensors of a file, matched with those of the model. Older and fused names are resolved; missing, unknown and
// misshapen tensors are refused.
struct MatchedTensors {
  std::vector<TensorSpec> specs;      // in the order of ModelSource::tensors()
  std::vector<RawTensor> raw;         // in the same order
  std::vector<std::string> left_out;  // see ModelSource::left_out()
  // The stored LM head of a model whose LM head is tied; it must equal the embedding.
  std::optional<RawTensor> tied_head;
};

// LFM3's gates of heads: transformers saves them as gate_proj, and calls them g_proj in memory, as PEFT and some
// writers of files do.
inline constexpr std::string_view kGatesInFiles = "gate_proj", kGatesInMemory = "g_proj";

// `found` has Hugging Face names. The experts of a layer may be called gate_proj, up_proj and down_proj, or be fused
// (gate_up_proj, down_proj); fused ones are returned one by one. expert_bias may be named expert_bias.weight. Scales of
// fp8 may be called weight_scale_inv, and be fused. `what` names the model in messages. Error(kData).
MatchedTensors match_tensors(const ModelConfig& config, RawTensors found, const std::string& what);

}  // namespace lfm2
