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
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  if (std::filesystem::is_directory(path, error))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: is a folder, expected the name of a file", path.string()));
  if (!force)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: exists, expected a new name or --force", path.string()));
}

// The config.json beside a model. An existing one with the same meaning is left alone.
class ConfigFile {
 public:
  ConfigFile(const std::filesystem::path& path, const std::string& text, bool force) : path_(path), text_(text) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return;
    same_ = std::filesystem::is_regular_file(path, error) && std::filesystem::file_size(path, error) == text.size() &&
            read_text_file(path, text.size()) == text;
    if (!same_ && !force)
      throw Error(ExitCode::kCantCreate, fmt::format("{}: exists and describes another model, expected a folder "
                                                     "without it or --force",
                                                     path.string()));
  }
  void commit() const {
    if (same_) return;
    AtomicFile file(path_);
    file.write(std::as_bytes(std::span(text_)));
    file.commit();
  }

 private:
  std::filesystem::path path_;
  std::string text_;
  bool same_ = false;
};

class SingleFileWriter : public ModelWriter {
 public:
  SingleFileWriter(FileLayout layout, const std::filesystem::path& path, ConfigFile config,
                   std::unique_ptr<OutputFolder> folder)
      : folder_(std::move(folder)), config_(std::move(config)), file_(path) {
    tensors_ = std::move(layout.tensors);
    file_.reserve(layout.bytes);
    file_.write_at(0, std::as_bytes(std::span(layout.header)));
  }
  void write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) override {
    file_.write_at(tensors_[target].offset + first_byte, bytes);
  }
  void finish(size_t /*target*/, const std::string& /*checksum*/) override {}  // these forms carry no checksums
  // The configuration gets its name first, because a model.bin without one would be taken for LFM2-8B-A1B.
  void commit() override {
    file_.sync();
    config_.commit();
    file_.commit();
    if (folder_) folder_->keep();
  }

 private:
  // Destroyed last, because the folder is empty only once the file is gone.
  std::unique_ptr<OutputFolder> folder_;
  ConfigFile config_;
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

std::unique_ptr<ModelWriter> create_model(const ModelSource& source, const std::filesystem::path& path, bool force) {
  if (model_file(path) == path) {
    const bool is_bin = path.extension() == ".bin";
    refuse_existing(path, force);
    ConfigFile config(path.parent_path() / "config.json", source.config_text(), force);
    return std::make_unique<SingleFileWriter>(is_bin ? model_bin_layout(source) : safetensors_layout(source), path,
                                              std::move(config), nullptr);
  }
  auto folder = std::make_unique<OutputFolder>(path, force);
  const auto index = path / "model.safetensors.index.json";
  if (std::filesystem::exists(index))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: exists, expected a folder without a checkpoint in several files", index.string()));
  ConfigFile config(path / "config.json", source.config_text(), force);
  return std::make_unique<SingleFileWriter>(safetensors_layout(source), model_file(path), std::move(config),
                                            std::move(folder));
}

}  // namespace lfm2
