// One model, whatever its file format. The commands split, quantize, merge, verify, inspect and plan read from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stage/model/model_config.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/adapter_id.h"

namespace lfm2 {

struct SourceTensor {
  TensorSpec spec;
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  std::string checksum;           // the XXH3-128 of the stored bytes; empty if the format has none
  std::string checkpoint_name{};  // in the checkpoint, if it is not spec.name; see is_checkpoint_name()
  // The type that a writer gives it unless another is wanted, if it is not `dtype`: adapted weights are read in fp32.
  std::optional<DType> kept_dtype{};
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  const ModelConfig& config() const { return config_; }
  // The text of config.json, as read or, if weights become fp8 or are dequantised, changed to describe the result of
  // read().
  const std::string& config_text() const { return config_text_; }
  // In the order of model_tensors(). The scales of an fp8 weight follow it.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  // Names of scales in the checkpoint that belong to no fp8 weight. They are not part of the model.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // The adapters that were merged into the weights, in their order.
  const std::vector<AdapterId>& adapters() const { return adapters_; }
  uint64_t total_bytes() const;

  // The format in which the model is stored: "safetensors", "model.bin", "shards" or "synthetic".
  virtual std::string_view form() const = 0;
  // Fills `into` with the tensor's bytes, from `first_byte` on. Only one thread at a time may call it.
  virtual void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const = 0;
  virtual std::string file_of(size_t tensor) const = 0;  // the file that holds the tensor, for messages

 protected:
  ModelSource(ModelConfig config, std::string config_text)
      : config_(std::move(config)), config_text_(std::move(config_text)) {}

  ModelConfig config_;
  std::string config_text_;
  std::vector<SourceTensor> tensors_;
  std::vector<std::string> left_out_;
  std::vector<AdapterId> adapters_;
};

bool holds_fp8(const ModelSource& source);

// Opens model.bin, model.safetensors, a Hugging Face folder or a folder of shards. Reads the headers and checks them
// against the configuration, but reads no tensor. `config_path` replaces the config.json beside the model.
// Error(kNoInput) if a file is missing, kData if files disagree, kUsage if a configuration is given for shards, which
// contain their own. If a folder has both a model and its shards, `first` selects which is opened.
enum class FolderForm { kModel, kShards };
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path,
                                        const std::optional<std::filesystem::path>& config_path = std::nullopt,
                                        FolderForm first = FolderForm::kModel);

// Opens a folder of shards, ignoring other files in it. Errors as of ShardSet::open().
std::unique_ptr<ModelSource> open_shards(const std::filesystem::path& folder);

// The text of the configuration that --config names: a built-in model or a file.
std::string named_config_text(const std::string& name_or_file);

}  // namespace lfm2
