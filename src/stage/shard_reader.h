// The shards of one split, opened and checked against each other and against the model they claim to be. Loading,
// verify, merge and inspect all read through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "stage/checked_file.h"
#include "stage/model_config.h"
#include "stage/partition.h"
#include "stage/tensor_table.h"

namespace lfm2 {

struct ShardTensor {
  TensorSpec spec;
  DType dtype = DType::kF32;
  size_t file = 0;                 // index into ShardSet::files()
  uint64_t offset = 0, bytes = 0;  // in that file
  std::string checksum;
};

class ShardSet {
 public:
  // Opens every shard of `folder`, reads all metadata and no tensor. Error(kNoInput) where there is no shard;
  // Error(kData) naming file, found and expected where a stage is missing, files are of different splits, or a tensor
  // is missing, unknown, of another shape or type, not contiguous, or outside its file.
  static ShardSet open(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }
  const std::string& split_id() const { return split_id_; }
  const std::vector<LayerRange>& stages() const { return stages_; }
  const std::vector<CheckedFile>& files() const { return files_; }
  const std::vector<ShardTensor>& tensors() const { return tensors_; }  // in the order of model_tensors()
  const ShardTensor& find(const std::string& name) const;  // Error(kSoftware) where the model has no such tensor
  // The type of the matrices: the one that most bytes have.
  DType dtype() const;
  uint64_t total_bytes() const;

  // Passes the tensor's bytes to `sink` in order, in pieces, then compares the checksum: Error(kData) naming file and
  // tensor.
  using Sink = std::function<void(uint64_t first_byte, std::span<const std::byte> bytes)>;
  void read(const ShardTensor& tensor, const Sink& sink) const;

 private:
  void open_file(const std::filesystem::path& path, std::map<std::string, ShardTensor>& found);
  void match_model(std::map<std::string, ShardTensor>& found);

  ModelConfig config_;
  std::string config_text_, split_id_;
  std::vector<LayerRange> stages_;
  std::vector<CheckedFile> files_;
  std::vector<ShardTensor> tensors_;
  std::map<std::string, size_t> index_;
};

}  // namespace lfm2
