// The parts that all formats share, and the one-file models: model.bin and model.safetensors.
#include "weights-tools/model/model_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

constexpr uint64_t kSendBytes = uint64_t{32} << 20;

void refuse_existing(const std::filesystem::path& path, bool force) {
  expect_name_of_file(path);
  std::error_code error;
  if (std::filesystem::exists(path, error) && !force)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: exists, expected a new name or --force", path.string()));
}

// A folder with this file and the index of several would be two models.
void refuse_index_beside(const std::filesystem::path& file) {
  const auto index = file.parent_path() / "model.safetensors.index.json";
  if (file.filename() == "model.safetensors" && std::filesystem::exists(index))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: exists, expected a folder without a checkpoint in several files", index.string()));
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
  void finish(size_t /*target*/, const std::string& /*checksum*/) override {}  // these formats have no checksums
  // The configuration gets its name first, because a model.bin without one would count as LFM2-8B-A1B.
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
  if (!wanted) return tensor.kept_dtype.value_or(tensor.dtype);
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

void NewFolders::make(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (auto at = path; !at.empty() && !std::filesystem::exists(at, error); at = at.parent_path()) missing.push_back(at);
  for (; !missing.empty(); missing.pop_back()) {
    if (std::filesystem::create_directory(missing.back(), error)) made_.push_back(missing.back());
    if (error)
      throw Error(ExitCode::kCantCreate,
                  fmt::format("{}: folder cannot be created: {}", missing.back().string(), error.message()));
  }
}

// The folders' content is already durable; this syncs their names, each of which is in its parent.
void NewFolders::keep() {
  for (const std::filesystem::path& path : made_) sync_path(path / "..");
  made_.clear();
}

NewFolders::~NewFolders() {
  std::error_code ignored;
  for (; !made_.empty(); made_.pop_back()) std::filesystem::remove(made_.back(), ignored);
}

namespace {

// Whether the folder is empty, except for entries that new file systems of some kinds have.
bool is_unused(const std::filesystem::path& folder) {
  std::error_code error;
  return std::all_of(std::filesystem::directory_iterator(folder, error), std::filesystem::directory_iterator(),
                     [](const auto& entry) { return entry.path().filename() == "lost+found"; });
}

// If the file system has no locks, the user must ensure that only one command writes.
FileDescriptor lock_folder(const std::filesystem::path& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) throw_failed_call(ExitCode::kCantCreate, "open", path, errno);
  struct stat ours {};
  struct stat named {};
  const bool taken = ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  // A command that ends without a result removes the folder that it made.
  const bool removed =
      ::fstat(folder.get(), &ours) == 0 &&
      (::stat(path.c_str(), &named) != 0 || ours.st_dev != named.st_dev || ours.st_ino != named.st_ino);
  if (taken || removed)
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: another weights-tools is writing into it, expected none", path.string()));
  return folder;
}

}  // namespace

OutputFolder::OutputFolder(std::filesystem::path path, bool force)
    : path_(path.has_filename() ? std::move(path) : path.parent_path()) {
  std::error_code error;
  made_.make(path_);
  if (!std::filesystem::is_directory(path_, error))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: exists and is no folder", path_.string()));
  try {
    lock_ = lock_folder(path_);
  } catch (const Error&) {
    made_.leave();  // removing an empty folder would take it away from the command that holds the lock
    throw;
  }
  if (!force && !is_unused(path_))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: exists and is not empty, expected a new name or --force", path_.string()));
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
    refuse_index_beside(path);
    TextFileWriter texts(text_files, path.parent_path(), force);
    return std::make_unique<SingleFileWriter>(is_bin ? model_bin_layout(source) : safetensors_layout(source), path,
                                              std::move(texts), nullptr);
  }
  auto folder = std::make_unique<OutputFolder>(path, force);
  refuse_index_beside(model_file(path));
  TextFileWriter texts(text_files, path, force);
  return std::make_unique<SingleFileWriter>(safetensors_layout(source), model_file(path), std::move(texts),
                                            std::move(folder));
}

}  // namespace lfm2
