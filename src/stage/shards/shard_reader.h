// The shards of one split, opened and checked against each other and against the model they claim to be. Loading,
// verify, merge and inspect all read through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stage/hdf5/h5_scan.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"
#include "stage/model/tensor_table.h"
#include "stage/support/checked_file.h"
#include "stage/support/checksum.h"

namespace lfm2 {

struct ShardTensor {
  TensorSpec spec;
  DType dtype = DType::kF32;
  size_t file = 0;                 // index into ShardSet::files()
  bool contiguous = true;          // its bytes lie behind one another at `offset`; else HDF5 collects them
  uint64_t offset = 0, bytes = 0;  // in that file
  std::string checksum;
};

// The .h5 files of a folder, by name; there is one at least. Error(kNoInput) where there is none, Error(kData) with the
// command that makes shards where `folder` is a model instead.
std::vector<std::filesystem::path> list_shards(const std::filesystem::path& folder);

class ShardSet {
 public:
  // Opens every shard of `folder`, reads all metadata and no tensor. Error(kNoInput) where there is no shard;
  // Error(kData) naming file, found and expected where a stage is missing, files are of different splits, or a tensor
  // is missing, unknown, of another shape or type, or outside its file.
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

  // `into.size()` bytes of the tensor from `first_byte` on. From any thread.
  void read(const ShardTensor& tensor, uint64_t first_byte, std::span<std::byte> into) const;
  // Error(kData) naming file and tensor where `found`, over all of the tensor's bytes, is not what the shard says.
  void expect_checksum(const ShardTensor& tensor, const Checksum& found) const;
  // Passes the tensor's bytes to `sink` in order, in pieces, then compares the checksum: Error(kData) naming file and
  // tensor.
  using Sink = std::function<void(uint64_t first_byte, std::span<const std::byte> bytes)>;
  void read(const ShardTensor& tensor, const Sink& sink) const;

 private:
  void open_file(const std::filesystem::path& path, std::map<std::string, ShardTensor>& found);
  void match_model(std::map<std::string, ShardTensor>& found);
  void check_gaps();

  ModelConfig config_;
  std::string config_text_, split_id_;
  std::vector<LayerRange> stages_;
  std::vector<CheckedFile> files_;
  std::vector<h5::Scan> scans_;  // of each file, while it is opened
  std::vector<ShardTensor> tensors_;
  std::map<std::string, size_t> index_;
  // For tensors that are not contiguous: open handles by file, under one lock, for HDF5 may not be thread-safe.
  struct Handles;
  std::shared_ptr<Handles> handles_;
};

}  // namespace lfm2
