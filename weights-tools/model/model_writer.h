// The interface through which split, merge, synth and quantize write a model, and the files that implement it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checked_file.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/text_files.h"

namespace lfm2 {

// One tensor of the model that is written.
struct TargetTensor {
  size_t source = 0;  // index into ModelSource::tensors()
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  size_t file = 0;
  uint64_t offset = 0;  // place in that file
};

// No file has its final name before commit(). Without commit() all files are removed.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  const std::vector<TargetTensor>& tensors() const { return tensors_; }  // in the order of the files
  uint64_t total_bytes() const;

  virtual void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) = 0;
  // Called after all bytes of the tensor were written.
  virtual void finish(size_t target, const std::string& checksum) = 0;
  virtual void commit() = 0;

 protected:
  std::vector<TargetTensor> tensors_;
};

// The type in which a tensor is written: `wanted`, or its own type if that is empty. Tensors that are fp32 in every
// checkpoint stay fp32.
DType target_dtype(const SourceTensor& tensor, std::optional<DType> wanted);

// A file that is being written. Its space is reserved at once, so that a full disk is an error before the work. Written
// pages go to the disk while later ones are computed.
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
  // Written bytes whose write-back has not started.
  uint64_t unsent_first_ = 0, unsent_end_ = 0;
};

// Creates a folder and its missing parents. Removes the created folders again if they are empty, unless keep() is
// called.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders();
  void make(const std::filesystem::path& path);  // Error(kCantCreate)
  void keep();                                   // makes them durable; Error(kIo)
  void leave() { made_.clear(); }                // leaves them to another command, which writes into them

 private:
  std::vector<std::filesystem::path> made_;  // outermost first
};

// A locked folder for results, so that two commands do not mix their files. Error(kCantCreate) if it cannot be created,
// if another command writes into it, or if it is not empty and `force` is not given.
class OutputFolder {
 public:
  OutputFolder(std::filesystem::path path, bool force);
  const std::filesystem::path& path() const { return path_; }
  void keep() { made_.keep(); }

 private:
  std::filesystem::path path_;
  NewFolders made_;
  FileDescriptor lock_;
};

// Writes text files beside a model. They have temporary names until commit(); without it they are removed.
class TextFileWriter {
 public:
  // Keeps an existing file with the same content. Error(kCantCreate) if a different file exists and `force` is not
  // given.
  TextFileWriter(const std::vector<TextFile>& files, const std::filesystem::path& folder, bool force);
  void commit();  // gives the files their names, in their order, and makes them durable; Error(kIo)

 private:
  // Subfolders of `folder`, and the files. The folders are destroyed last, because only empty ones are removed.
  std::vector<std::unique_ptr<OutputFolder>> folders_;
  std::vector<AtomicFile> files_;
};

// The layout of a one-file model: the bytes before the data, and the place of each tensor.
struct FileLayout {
  std::string header;
  std::vector<TargetTensor> tensors;
  uint64_t bytes = 0;  // size of the whole file

  void place_tensors();  // places the tensors one after another, directly after the header
};

// Names that end in .bin or .safetensors give a file with config.json and `text_files` beside it; any other name gives
// a Hugging Face folder. Error(kCantCreate) if the target exists and `force` is not given.
std::unique_ptr<ModelWriter> create_model(const ModelSource& source, const std::filesystem::path& path, bool force,
                                          std::vector<TextFile> text_files = {});
// The file inside `path` that holds the tensors which create_model() writes.
std::filesystem::path model_file(const std::filesystem::path& path);

}  // namespace lfm2
