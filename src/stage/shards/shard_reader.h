// Opens the shards of one split, and checks them against each other and against the model that they claim to contain.
// Loading, verify, merge and inspect read through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/adapter_id.h"

namespace lfm2 {

struct ShardTensor {
  TensorSpec spec;
  DType dtype = DType::kF32;
  size_t file = 0;  // index into ShardSet::files()
  // Whether the bytes are contiguous at `offset`; else the HDF5 library reads the chunks.
  bool contiguous = true;
  uint64_t offset = 0, bytes = 0;  // place in that file
  std::string checksum;
  std::string checkpoint_name;  // in the split checkpoint; empty if it is spec.name
};

// The attribute text_files in the root attributes `root` of a shard: name of a file -> checksum. Empty if there is no
// such attribute. Error(kData), beginning with `where`, for unknown names and invalid checksums.
std::map<std::string, std::string> text_files_of(const h5::ScannedAttributes& root, const std::string& where);

class ShardSet {
 public:
  // Opens every shard of `folder` and reads all metadata, but no tensor. Error(kNoInput) if there is no shard or a
  // stage is missing. Error(kData), naming file, found and expected, if files belong to different splits or repeat a
  // stage, or if a tensor is missing, unknown, outside its file, or of a wrong shape or type.
  static ShardSet open(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  // From here on config() describes only the first `layers` layers and the parts up to `end`. tensors() still lists
  // all.
  void leave_out_behind(int64_t layers, ModelEnd end);
  const std::string& config_text() const { return config_text_; }
  const std::string& split_id() const { return split_id_; }
  // The text files beside the shards: name -> checksum. open() does not read them.
  const std::map<std::string, std::string>& text_files() const { return text_files_; }
  // The adapters that were merged into the weights, in their order.
  const std::vector<AdapterId>& adapters() const { return adapters_; }
  const std::vector<LayerRange>& stages() const { return stages_; }
  const std::vector<CheckedFile>& files() const { return files_; }
  // In the order of model_tensors(). The scales of an fp8 weight follow it.
  const std::vector<ShardTensor>& tensors() const { return tensors_; }
  // Error(kSoftware) if the model has no such tensor.
  const ShardTensor& find(const std::string& name) const;
  // The scales of an fp8 weight, as fp8_tensors.h describes them; null for other tensors.
  const ShardTensor* scale_of(const ShardTensor& weight) const;
  // Applies --dtype and returns the type of activations: `wanted` or, if that is empty or fp8, the type of the weights
  // that are not fp8. From here on weights stored as fp8 are multiplied as fp8, unless another type is wanted.
  // Error(kUsage) if fp8 is wanted and the shards have none.
  DType choose_dtype(std::optional<DType> wanted);
  // Applies --cache-dtype, the type of cached keys and values; empty means `compute`, the type of activations. From
  // here on config() has it. Error(kUsage) for any type except `compute` and fp8.
  void choose_cache_dtype(std::optional<DType> wanted, DType compute);
  bool products_in_fp8() const { return !config_.fp8_weights.empty(); }
  uint64_t total_bytes() const;

  // Reads `into.size()` bytes of the tensor, from `first_byte` on. Any thread may call it.
  void read(const ShardTensor& tensor, uint64_t first_byte, std::span<std::byte> into) const;
  // Compares `found`, the checksum over all bytes of the tensor, with the shard's. Error(kData) naming file and tensor.
  void expect_checksum(const ShardTensor& tensor, const Checksum& found) const;
  // Passes all bytes of the tensor to `sink`, in order and in pieces, and then compares the checksum: Error(kData)
  // naming file and tensor.
  using Sink = std::function<void(uint64_t first_byte, std::span<const std::byte> bytes)>;
  void read(const ShardTensor& tensor, const Sink& sink) const;

 private:
  void add_file(CheckedFile file, h5::Scan scan, std::map<std::string, ShardTensor>& found);
  void match_model(std::map<std::string, ShardTensor>& found);
  void add_tensor(TensorSpec spec, std::map<std::string, ShardTensor>& found);
  void check_gaps();

  ModelConfig config_;
  std::string config_text_, split_id_;
  std::map<std::string, std::string> text_files_;
  std::vector<AdapterId> adapters_;
  std::vector<LayerRange> stages_;
  std::vector<CheckedFile> files_;
  std::vector<h5::Scan> scans_;  // one for each file; emptied when all shards are open
  std::vector<ShardTensor> tensors_;
  std::map<std::string, size_t> index_;
  // Open handles by file, for tensors that are not contiguous. One lock guards them, because HDF5 may not be
  // thread-safe.
  struct Handles;
  std::shared_ptr<Handles> handles_;
};

}  // namespace lfm2
