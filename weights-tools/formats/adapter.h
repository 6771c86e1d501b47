// A LoRA adapter in PEFT's form: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/adapter_id.h"
#include "weights-tools/formats/adapter_config.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

// One factor of a low-rank product, as a matrix inside a tensor of the file: its element (i, k), where k counts ranks,
// is element first + i * stride + k * rank_stride of the tensor.
struct AdapterFactor {
  std::string tensor;
  uint64_t first = 0, stride = 0, rank_stride = 0;
};

// Adds scale · Σ_k rows(x, k) · columns(y, k) to element [x, y] of a weight.
struct LowRankTerm {
  AdapterFactor rows, columns;
  uint64_t rank = 0;
  float scale = 0;
};

// Elements of a tensor of the file, from number `first` on, that take the place of a tensor of the model.
struct Replacement {
  std::string tensor;
  uint64_t first = 0;
};

// What an adapter does to one tensor of the model: replaces it, or some of its rows, then adds terms.
struct TensorUpdate {
  std::optional<Replacement> replacement;
  std::map<uint64_t, Replacement> rows;  // by row
  std::vector<LowRankTerm> terms;
};

class Adapter {
 public:
  // Opens the folder, and finds for each tensor of the file the weight of a model with this configuration that it
  // changes. Error(kNoInput) for missing files. Error(kData), naming the tensor, if it belongs to no weight, lacks its
  // partner, or has another shape than weight and configuration ask for.
  Adapter(const std::filesystem::path& folder, const ModelConfig& model);

  const AdapterId& id() const { return id_; }
  // Whether the LM head, which was the embedding, becomes a tensor of its own: where modules_to_save had one of the two
  // trained, or both apart.
  bool unties_head() const { return unties_head_; }
  // By name of the model's tensor.
  const std::map<std::string, TensorUpdate>& updates() const { return updates_; }
  std::string path() const { return file_.path().string(); }
  // Elements of a tensor of the file, from number `first` on, as fp32.
  void read(const std::string& tensor, uint64_t first, std::span<float> into) const;
  std::vector<float> read(const std::string& tensor) const;

 private:
  void resolve_tied_head(const AdapterConfig& config);
  bool are_equal(const RawTensor& a, const RawTensor& b) const;

  AdapterId id_;
  CheckedFile file_;
  RawTensors tensors_;
  std::map<std::string, TensorUpdate> updates_;
  bool unties_head_ = false;
};

inline constexpr std::string_view kEmbeddingWeight = "model.embed_tokens.weight", kHeadWeight = "lm_head.weight";

// The tensors of an adapter's file, matched with the model's. `what` names the file. A replaced LM head may be among
// them even if the model's is tied. Error(kData) as of Adapter.
std::map<std::string, TensorUpdate> match_adapter(const RawTensors& tensors, const AdapterConfig& config,
                                                  const ModelConfig& model, const std::string& what);

}  // namespace lfm2
