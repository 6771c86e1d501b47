// Where a model is written to: the interface that split, merge, synth and quantize copy into, and the files below it.
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

// No file has its final name before commit(); without commit() no file stays.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  const std::vector<TargetTensor>& tensors() const { return tensors_; }  // in the order of the files
  uint64_t total_bytes() const;

  virtual void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) = 0;
  // Called when all bytes of the tensor were written.
  virtual void finish(size_t target, const std::string& checksum) = 0;
  virtual void commit() = 0;

 protected:
  std::vector<TargetTensor> tensors_;
};

// The type that a tensor is written in: `wanted`, or its own where nothing is wanted. Tensors that are fp32 in every
// checkpoint stay fp32.
DType target_dtype(const SourceTensor& tensor, std::optional<DType> wanted);

// A file that is being written. Its space is reserved at once, so that a full disk shows before the work and not after
// it, and its pages go to the disk while later ones are made.
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
  // Bytes that were written and are not yet on their way to the disk.
  uint64_t unsent_first_ = 0, unsent_end_ = 0;
};

// A folder, made with those above it where they are missing. What was made is removed again, where it is empty, unless
// keep() is called.
class NewFolders {
 public:
  NewFolders() = default;
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders();
  void make(const std::filesystem::path& path);  // Error(kCantCreate)
  void keep();                                   // makes them durable; Error(kIo)
  void leave() { made_.clear(); }                // to another command, which writes into them

 private:
  std::vector<std::filesystem::path> made_;  // outermost first
};

// A folder for results, locked, so that two commands do not mix their files in it. Error(kCantCreate) where it cannot
// be made, another command writes into it, or it is not empty and `force` is not given.
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

// Writes text files beside a model. They have temporary names until commit(); without it none stays.
class TextFileWriter {
 public:
  // Leaves a file that is there with the same content alone. Error(kCantCreate) where there is another one and `force`
  // is not given.
  TextFileWriter(const std::vector<TextFile>& files, const std::filesystem::path& folder, bool force);
  void commit();  // gives the files their names, in their order, and makes them durable; Error(kIo)

 private:
  // Folders below `folder`, and the files. The folders are destroyed last, because they are removed only once empty.
  std::vector<std::unique_ptr<OutputFolder>> folders_;
  std::vector<AtomicFile> files_;
};

// The layout of a model that is one file: the bytes before the data, and the place of each tensor.
struct FileLayout {
  std::string header;
  std::vector<TargetTensor> tensors;
  uint64_t bytes = 0;  // size of the whole file

  void place_tensors();  // places the tensors one after the other, directly after the header
};

// Names that end in .bin or .safetensors give a file with config.json and `text_files` beside it, any other name a
// Hugging Face folder. Error(kCantCreate) where the target exists and `force` is not given.
std::unique_ptr<ModelWriter> create_model(const ModelSource& source, const std::filesystem::path& path, bool force,
                                          std::vector<TextFile> text_files = {});
// The file inside `path` that holds the tensors which create_model() writes.
std::filesystem::path model_file(const std::filesystem::path& path);

}  // namespace lfm2
