// One model, whatever files hold it: what split, merge, verify, inspect and plan read from.
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
  std::string checksum;  // XXH3-128 that the stored bytes must have; empty where the form carries none
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  const ModelConfig& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }        // as it was written
  const std::vector<SourceTensor>& tensors() const { return tensors_; }  // in the order of model_tensors()
  uint64_t total_bytes() const;

  virtual std::string_view form() const = 0;  // "safetensors", "model.bin", "shards", "synthetic"
  // Fills `into` with the tensor's bytes from `first_byte` on. Safe to call from one thread at a time.
  virtual void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const = 0;
  virtual std::string file_of(size_t tensor) const = 0;  // for messages

 protected:
  ModelSource(ModelConfig config, std::string config_text)
      : config_(std::move(config)), config_text_(std::move(config_text)) {}

  ModelConfig config_;
  std::string config_text_;
  std::vector<SourceTensor> tensors_;
};

// Opens model.bin, model.safetensors, a Hugging Face folder or a folder of shards; reads headers, checks them against
// the configuration, reads no tensor. `config_path` replaces the config.json beside the model. Error(kNoInput) for what
// is missing, kData for what disagrees, kUsage where a configuration is given to shards, which carry their own.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path,
                                        const std::optional<std::filesystem::path>& config_path = std::nullopt);

// A folder that open_model reads as shards.
bool is_shard_folder(const std::filesystem::path& path);

// The configuration that --config names: a built-in model, or else a file.
std::string named_config_text(const std::string& name_or_file);

}  // namespace lfm2
