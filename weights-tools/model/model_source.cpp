// Determines the format of a path, and opens it.
#include "weights-tools/model/model_source.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "stage/shards/shard_folder.h"
#include "stage/shards/shard_reader.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfig = uint64_t{1} << 20;
constexpr size_t kComparedBytes = size_t{1} << 20;
constexpr std::string_view kAssumedModel = "lfm2-8b-a1b";

// A model whose tensors are at known places of open files.
class FileSource : public ModelSource {
 public:
  FileSource(std::string_view form, ModelConfig config, std::string config_text, std::vector<CheckedFile> files,
             RawTensors found, const std::string& what)
      : ModelSource(std::move(config), std::move(config_text)), form_(form), files_(std::move(files)) {
    MatchedTensors matched = match_tensors(config_, std::move(found), what);
    places_ = std::move(matched.raw);
    for (size_t i = 0; i < places_.size(); ++i)
      tensors_.push_back(
          {std::move(matched.specs[i]), places_[i].dtype, places_[i].bytes, {}, std::move(places_[i].checkpoint_name)});
    left_out_ = std::move(matched.left_out);
    if (matched.tied_head) check_tied_head(*matched.tied_head, what);
  }
  std::string_view form() const override { return form_; }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override {
    files_[places_[tensor].file].read(places_[tensor].offset + first_byte, into);
  }
  std::string file_of(size_t tensor) const override { return files_[places_[tensor].file].path().string(); }

 private:
  // Some writers also store the tied LM head. It may be ignored only if it equals the embedding.
  void check_tied_head(const RawTensor& head, const std::string& what) const {
    const RawTensor& embedding = places_.front();
    bool equal = head.bytes == embedding.bytes && head.dtype == embedding.dtype;
    std::vector<std::byte> a(kComparedBytes), b(kComparedBytes);
    for (uint64_t done = 0; equal && done < head.bytes; done += a.size()) {
      a.resize(std::min<uint64_t>(a.size(), head.bytes - done));
      b.resize(a.size());
      files_[head.file].read(head.offset + done, a);
      files_[embedding.file].read(embedding.offset + done, b);
      equal = std::memcmp(a.data(), b.data(), a.size()) == 0;
    }
    if (!equal)
      throw Error(ExitCode::kData, fmt::format("{}: lm_head.weight differs from the embedding, but the configuration "
                                               "says that they are tied",
                                               what));
  }

  std::string_view form_;
  std::vector<CheckedFile> files_;
  std::vector<RawTensor> places_;
};

class ShardSource : public ModelSource {
 public:
  explicit ShardSource(ShardSet shards)
      : ModelSource(shards.config(), shards.config_text()), shards_(std::move(shards)) {
    adapters_ = shards_.adapters();
    for (const ShardTensor& tensor : shards_.tensors())
      tensors_.push_back({tensor.spec, tensor.dtype, tensor.bytes, tensor.checksum, tensor.checkpoint_name});
  }
  std::string_view form() const override { return "shards"; }
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override {
    shards_.read(shards_.tensors()[tensor], first_byte, into);
  }
  std::string file_of(size_t tensor) const override {
    return shards_.files()[shards_.tensors()[tensor].file].path().string();
  }

 private:
  ShardSet shards_;
};

struct FoundConfig {
  std::string text, what;
};

FoundConfig read_config(const fs::path& path) { return {read_text_file(path, kMaxConfig), path.string()}; }

// An interrupted download leaves links to missing files.
void refuse_dangling(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error) || fs::exists(path, error)) return;
  throw Error(ExitCode::kNoInput, fmt::format("{}: is a link to {}, which does not exist: was the download complete?",
                                              path.string(), fs::read_symlink(path, error).string()));
}

FoundConfig find_config(const fs::path& beside, const std::optional<fs::path>& given) {
  if (given) return read_config(*given);
  refuse_dangling(beside);
  std::error_code error;
  if (!fs::exists(beside, error))
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: missing, expected beside the model or given as --config", beside.string()));
  return read_config(beside);
}

std::unique_ptr<ModelSource> make_source(std::string_view form, FoundConfig config, std::vector<CheckedFile> files,
                                         RawTensors found, const std::string& what) {
  ModelConfig parsed = parse_model_config(config.text, config.what);
  return std::make_unique<FileSource>(form, std::move(parsed), std::move(config.text), std::move(files),
                                      std::move(found), what);
}

std::vector<CheckedFile> single(CheckedFile file) {
  std::vector<CheckedFile> files;
  files.push_back(std::move(file));
  return files;
}

std::unique_ptr<ModelSource> open_safetensors(const fs::path& path, const std::optional<fs::path>& config_path) {
  CheckedFile file(path);
  RawTensors found = read_safetensors_header(file, 0);
  return make_source("safetensors", find_config(path.parent_path() / "config.json", config_path),
                     single(std::move(file)), std::move(found), path.string());
}

std::unique_ptr<ModelSource> open_model_bin(const fs::path& path, const std::optional<fs::path>& config_path) {
  CheckedFile file(path);
  RawTensors found = read_model_bin_header(file);
  const fs::path beside = path.parent_path() / "config.json";
  std::error_code error;
  FoundConfig config;
  std::string what = path.string();
  if (config_path || fs::exists(beside, error)) {
    config = find_config(beside, config_path);
  } else {
    config = {std::string(builtin_model_config(kAssumedModel)), std::string(kAssumedModel)};
    what += fmt::format(" (taken as {}, there is no config.json)", kAssumedModel);
  }
  return make_source("model.bin", std::move(config), single(std::move(file)), std::move(found), what);
}

std::unique_ptr<ModelSource> open_complete_shards(const fs::path& folder, const std::optional<fs::path>& config_path) {
  if (config_path)
    throw Error(ExitCode::kUsage, fmt::format("--config {}: {} holds shards, which carry their configuration",
                                              config_path->string(), folder.string()));
  return open_shards(folder);
}

// Whether `matches` is true of the name of a file in the folder.
bool holds(const fs::path& folder, bool (*matches)(const fs::path& name)) {
  std::error_code error;
  return std::any_of(fs::directory_iterator(folder, error), fs::directory_iterator(),
                     [&](const fs::directory_entry& entry) { return matches(entry.path().filename()); });
}

// A name that split uses. Other .h5 files beside a model may be anything.
bool is_numbered_shard(const fs::path& name) { return is_shard_name(name) && name.string().starts_with("stage-"); }

// The error that names what the folder lacks to be a model.
[[noreturn]] void refuse_without_model(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && !name.starts_with('.')) others.push_back(name);
  }
  std::string found = "holds no model";
  if (others.size() == 1)
    found = fmt::format("holds {0} and no model.safetensors: name {1} itself, if that is the model", others[0],
                        (folder / others[0]).string());
  else if (others.size() > 1)
    found = fmt::format("holds {} .safetensors files without model.safetensors.index.json", others.size());
  throw Error(ExitCode::kNoInput, fmt::format("{}: {}, expected model.safetensors, model.safetensors.index.json, "
                                              "model.bin or shards (*.h5)",
                                              folder.string(), found));
}

std::unique_ptr<ModelSource> open_folder(const fs::path& folder, const std::optional<fs::path>& config_path,
                                         FolderForm first) {
  if (first == FolderForm::kShards && holds(folder, is_numbered_shard))
    return open_complete_shards(folder, config_path);
  std::error_code error;
  const fs::path one = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  for (const fs::path& path : {one, index, folder / "model.bin"}) refuse_dangling(path);
  if (fs::exists(one, error) && fs::exists(index, error))
    throw Error(ExitCode::kData, fmt::format("{}: holds both {} and {}, expected one of them", folder.string(),
                                             one.filename().string(), index.filename().string()));
  if (fs::exists(one, error)) return open_safetensors(one, config_path);
  if (fs::exists(index, error)) {
    IndexedCheckpoint checkpoint = open_indexed_checkpoint(index);
    return make_source("safetensors", find_config(folder / "config.json", config_path), std::move(checkpoint.files),
                       std::move(checkpoint.tensors), folder.string());
  }
  if (holds(folder, is_shard_name)) return open_complete_shards(folder, config_path);
  if (fs::exists(folder / "model.bin", error)) return open_model_bin(folder / "model.bin", config_path);
  refuse_without_model(folder);
}

}  // namespace

uint64_t ModelSource::total_bytes() const {
  uint64_t total = 0;
  for (const SourceTensor& tensor : tensors_) total += tensor.bytes;
  return total;
}

bool holds_fp8(const ModelSource& source) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [](const SourceTensor& tensor) { return tensor.dtype == DType::kF8; });
}

std::unique_ptr<ModelSource> open_shards(const fs::path& folder) {
  return std::make_unique<ShardSource>(ShardSet::open(folder));
}

std::unique_ptr<ModelSource> open_model(const fs::path& path, const std::optional<fs::path>& config_path,
                                        FolderForm first) {
  std::error_code error;
  refuse_dangling(path);
  if (!fs::exists(path, error))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such file or folder", path.string()));
  if (fs::is_directory(path, error)) return open_folder(path, config_path, first);
  if (path.extension() == ".safetensors") return open_safetensors(path, config_path);
  if (path.extension() == ".bin") return open_model_bin(path, config_path);
  refuse_other_kind(CheckedFile(path));
  throw Error(ExitCode::kData,
              fmt::format("{}: not a model, expected a .bin or .safetensors file or a folder", path.string()));
}

std::string named_config_text(const std::string& name_or_file) {
  if (const std::string_view builtin = builtin_model_config(name_or_file); !builtin.empty())
    return std::string(builtin);
  std::error_code error;
  if (!fs::exists(name_or_file, error))
    throw Error(ExitCode::kNoInput, fmt::format("{}: neither a file nor a built-in configuration, expected {}",
                                                name_or_file, builtin_models()));
  return read_text_file(name_or_file, kMaxConfig);
}

}  // namespace lfm2
