// Where a model is written to: the interface that split, merge and synth copy into, and the file that grows under it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stage/support/checked_file.h"
#include "weights-tools/model/model_source.h"

namespace lfm2 {

// One tensor of the result.
struct TargetTensor {
  size_t source = 0;  // index into ModelSource::tensors()
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  size_t file = 0;
  uint64_t offset = 0;  // in that file
};

// Nothing appears under a final name before commit(); without commit() nothing stays behind.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  const std::vector<TargetTensor>& tensors() const { return tensors_; }  // in the order of the files
  uint64_t total_bytes() const;

  virtual void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) = 0;
  virtual void finish(size_t target, const std::string& checksum) = 0;  // all bytes of the tensor were written
  virtual void commit() = 0;

 protected:
  std::vector<TargetTensor> tensors_;
};

// The type a tensor gets: its own where none is wanted; tensors that are fp32 in every checkpoint stay so.
DType target_dtype(const SourceTensor& tensor, std::optional<DType> wanted);

// A file being written whose space is reserved at once (a full disk shows before the work, not after it), and whose
// pages go to the disk while later ones are made.
class GrowingFile {
 public:
  explicit GrowingFile(const std::filesystem::path& path) : file_(path) {}
  const std::filesystem::path& path() const { return file_.path(); }
  const std::filesystem::path& temporary_path() const { return file_.temporary_path(); }
  void reserve(uint64_t bytes) { file_.reserve(bytes); }
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void sync() { file_.sync(); }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  uint64_t unsent_first_ = 0, unsent_end_ = 0;  // written, and not yet on its way to the disk
};

// A folder for results: made where it is missing, and removed again where keep() is not reached. Error(kCantCreate)
// where it cannot be made, or holds anything and `force` is not given.
class OutputFolder {
 public:
  OutputFolder(std::filesystem::path path, bool force);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();
  const std::filesystem::path& path() const { return path_; }
  void keep();  // durably: Error(kIo)

 private:
  std::filesystem::path path_;
  bool created_ = false;
};

// A model that is one file: what comes before the data, and where each tensor lies.
struct FileLayout {
  std::string header;
  std::vector<TargetTensor> tensors;
  uint64_t bytes = 0;  // of the whole file

  void place_tensors();  // one after the other, directly behind the header
};

// .bin and .safetensors make a file with config.json beside it, any other ending a Hugging Face folder. What exists is
// refused without `force`: Error(kCantCreate).
std::unique_ptr<ModelWriter> create_model(const ModelSource& source, const std::filesystem::path& path, bool force);
// The file that create_model() puts the tensors into.
std::filesystem::path model_file(const std::filesystem::path& path);

}  // namespace lfm2
