// One model, whatever files hold it. The commands split, quantize, merge, verify, inspect and plan read from it.
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

namespace lfm2 {

struct SourceTensor {
  TensorSpec spec;
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  std::string checksum;           // the XXH3-128 of the stored bytes; empty where the form carries none
  std::string checkpoint_name{};  // in the checkpoint, where it is not spec.name; see is_checkpoint_name()
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  const ModelConfig& config() const { return config_; }
  // The text of config.json: that which was read, or, where weights become fp8 or are dequantised on the way, the one
  // that describes what read() gives.
  const std::string& config_text() const { return config_text_; }
  // In the order of model_tensors(). After each weight that is fp8 come its scales.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  // Scales of the checkpoint that belong to no fp8 weight, by their names: they mean nothing, so they are left out.
  const std::vector<std::string>& left_out() const { return left_out_; }
  uint64_t total_bytes() const;

  // The form that the model is stored in: "safetensors", "model.bin", "shards" or "synthetic".
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
};

bool holds_fp8(const ModelSource& source);

// Opens model.bin, model.safetensors, a Hugging Face folder or a folder of shards. Reads the headers, checks them
// against the configuration, and reads no tensor. `config_path` replaces the config.json beside the model.
// Error(kNoInput) where something is missing, kData where things disagree, kUsage where a configuration is given for
// shards, which carry their own. A folder may hold shards beside the model that they were split from: `first` says
// which of both is read.
enum class FolderForm { kModel, kShards };
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path,
                                        const std::optional<std::filesystem::path>& config_path = std::nullopt,
                                        FolderForm first = FolderForm::kModel);

// Opens a folder of shards, whatever else it holds; the errors are those of ShardSet::open().
std::unique_ptr<ModelSource> open_shards(const std::filesystem::path& folder);

// The text of the configuration that --config names: a built-in model, or else a file.
std::string named_config_text(const std::string& name_or_file);

}  // namespace lfm2
