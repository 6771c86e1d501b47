// The parts that all forms share, and the models that are one file: model.bin and model.safetensors.
#include "weights-tools/model/model_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "weights-tools/formats/model_bin.h"
#include "weights-tools/formats/safetensors.h"

namespace lfm2 {

namespace {

constexpr uint64_t kSendBytes = uint64_t{32} << 20;

void refuse_existing(const std::filesystem::path& path, bool force) {
  expect_name_of_file(path);
  std::error_code error;
  if (std::filesystem::exists(path, error) && !force)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: exists, expected a new name or --force", path.string()));
}

class SingleFileWriter : public ModelWriter {
 public:
  SingleFileWriter(FileLayout layout, const std::filesystem::path& path, TextFileWriter texts,
                   std::unique_ptr<OutputFolder> folder)
      : folder_(std::move(folder)), texts_(std::move(texts)), file_(path) {
    tensors_ = std::move(layout.tensors);
    file_.reserve(layout.bytes);
    file_.write_at(0, std::as_bytes(std::span(layout.header)));
  }
  void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) override {
    file_.write_at(tensors_[target].offset + first_byte, bytes);
  }
  void finish(size_t /*target*/, const std::string& /*checksum*/) override {}  // these forms carry no checksums
  // The configuration is the first that gets its name, because a model.bin without one would be taken for LFM2-8B-A1B.
  void commit() override {
    file_.sync();
    texts_.commit();
    file_.commit();
    if (folder_) folder_->keep();
  }

 private:
  // Destroyed last, because the folder is empty only once the files are gone.
  std::unique_ptr<OutputFolder> folder_;
  TextFileWriter texts_;
  GrowingFile file_;
};

}  // namespace

uint64_t ModelWriter::total_bytes() const {
  uint64_t total = 0;
  for (const TargetTensor& tensor : tensors_) total += tensor.bytes;
  return total;
}

DType target_dtype(const SourceTensor& tensor, std::optional<DType> wanted) {
  if (!wanted) return tensor.dtype;
  return tensor.spec.keep_fp32 ? DType::kF32 : *wanted;
}

void GrowingFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(offset, bytes);
  // After a jump, earlier bytes are written back by the final sync.
  if (offset != unsent_end_) unsent_first_ = offset;
  unsent_end_ = offset + bytes.size();
  if (unsent_end_ - unsent_first_ < kSendBytes) return;
  file_.start_writeback(unsent_first_, unsent_end_ - unsent_first_);
  unsent_first_ = unsent_end_;
}

OutputFolder::OutputFolder(std::filesystem::path path, bool force) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) {
    created_ = std::filesystem::create_directory(path_, error);
    if (!created_)
      throw Error(ExitCode::kCantCreate,
                  fmt::format("{}: folder cannot be created: {}", path_.string(), error.message()));
    return;
  }
  if (!std::filesystem::is_directory(status))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: exists and is no folder", path_.string()));
  if (!force && !std::filesystem::is_empty(path_, error))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: exists and is not empty, expected a new name or --force", path_.string()));
}

// The folder's content is durable already; this syncs the folder's own name, which stands in its parent.
void OutputFolder::keep() {
  if (created_) sync_path(path_ / "..");
  created_ = false;
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (created_) std::filesystem::remove(path_, ignored);  // removes the folder only where it is empty
}

TextFileWriter::TextFileWriter(const std::vector<TextFile>& files, const std::filesystem::path& folder, bool force) {
  for (const TextFile& file : files) {
    const std::filesystem::path path = folder / file.name;
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      const bool regular = std::filesystem::is_regular_file(path, error);
      if (regular && std::filesystem::file_size(path, error) == file.content.size() &&
          read_text_file(path, file.content.size()) == file.content)
        continue;
      if (!regular || !force)
        throw Error(ExitCode::kCantCreate,
                    fmt::format("{}: exists and belongs to another model, expected a folder without it{}",
                                path.string(), regular ? " or --force" : ""));
    }
    if (std::filesystem::path(file.name).has_parent_path())
      folders_.push_back(std::make_unique<OutputFolder>(path.parent_path(), true));
    files_.emplace_back(path).write(std::as_bytes(std::span(file.content)));
  }
}

void TextFileWriter::commit() {
  for (AtomicFile& file : files_) file.commit();
  for (const auto& folder : folders_) folder->keep();
}

void FileLayout::place_tensors() {
  bytes = header.size();
  for (TargetTensor& tensor : tensors) {
    tensor.offset = bytes;
    bytes = checked_add(bytes, tensor.bytes, "the file to write");
  }
}

std::filesystem::path model_file(const std::filesystem::path& path) {
  const bool is_file = path.extension() == ".bin" || path.extension() == ".safetensors";
  return is_file ? path : path / "model.safetensors";
}

std::unique_ptr<ModelWriter> create_model(const ModelSource& source, const std::filesystem::path& path, bool force,
                                          std::vector<TextFile> text_files) {
  text_files.insert(text_files.begin(), {"config.json", source.config_text(), {}});
  if (model_file(path) == path) {
    const bool is_bin = path.extension() == ".bin";
    refuse_existing(path, force);
    TextFileWriter texts(text_files, path.parent_path(), force);
    return std::make_unique<SingleFileWriter>(is_bin ? model_bin_layout(source) : safetensors_layout(source), path,
                                              std::move(texts), nullptr);
  }
  auto folder = std::make_unique<OutputFolder>(path, force);
  const auto index = path / "model.safetensors.index.json";
  if (std::filesystem::exists(index))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: exists, expected a folder without a checkpoint in several files", index.string()));
  TextFileWriter texts(text_files, path, force);
  return std::make_unique<SingleFileWriter>(safetensors_layout(source), model_file(path), std::move(texts),
                                            std::move(folder));
}

}  // namespace lfm2
