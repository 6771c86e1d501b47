// Writes a folder of shards, one HDF5 file for each stage, in the form of src/stage/shards/shard_format.h.
#pragma once

#include "stage/hdf5/h5.h"
#include "stage/model/partition.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

class ShardWriter : public ModelWriter {
 public:
  // `dtype` is the type to convert to; if empty, each tensor keeps its type. `text_files` are copied beside the shards.
  // Creates all files under temporary names, with their space reserved. Error(kCantCreate) if the folder cannot be
  // used, kIo if the disk is full.
  ShardWriter(const ModelSource& source, std::vector<LayerRange> stages, std::optional<DType> dtype,
              const std::filesystem::path& folder, bool force, const std::vector<TextFile>& text_files = {});
  void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) override;
  void finish(size_t target, const std::string& checksum) override;
  // Writes checksums and split_id, syncs every file, gives the files their final names, text files first, and removes
  // files of older splits.
  void commit() override;

 private:
  struct StageFile {
    GrowingFile bytes;  // owns the temporary name and removes the file without commit()
    h5::File h5;        // the same file, for all content except the bytes of tensors
  };

  StageFile create_stage(size_t stage, const std::string& text_files);
  static void clear_gaps(StageFile& stage);
  std::string split_id() const;

  const ModelSource& source_;
  std::vector<LayerRange> stages_;
  OutputFolder folder_;
  std::vector<std::filesystem::path> older_;  // files of earlier splits with other names
  TextFileWriter texts_;
  std::vector<StageFile> files_;
  std::vector<std::string> checksums_;  // one for each target
};

}  // namespace lfm2
