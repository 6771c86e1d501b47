#include "stage/shards/shard_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace lfm2 {

namespace {

bool is_hidden(const std::filesystem::path& name) { return name.string().starts_with('.'); }

bool is_model_file(const std::filesystem::path& path) {
  return (path.extension() == ".safetensors" && !is_hidden(path.filename())) || path.filename() == "model.bin";
}

[[noreturn]] void refuse_model(const std::filesystem::path& model, const char* what) {
  throw Error(ExitCode::kData,
              fmt::format("{0}: is {1}, expected shards: weights-tools split {0} --out shards/", model.string(), what));
}

}  // namespace

bool is_shard_name(const std::filesystem::path& name) { return name.extension() == ".h5" && !is_hidden(name); }

std::vector<std::filesystem::path> list_shards(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_regular_file(folder, error)) {
    if (is_model_file(folder) || folder.extension() == ".bin") refuse_model(folder, "a model in one file");
    throw Error(ExitCode::kNoInput, fmt::format("{}: is a file, expected the folder of the shards", folder.string()));
  }
  if (!std::filesystem::is_directory(folder, error))
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: no such folder, expected one made by weights-tools split", folder.string()));
  std::vector<std::filesystem::path> paths;
  bool holds_model = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_shard_name(entry.path().filename())) paths.push_back(entry.path());
    holds_model = holds_model || is_model_file(entry.path());
  }
  if (error) throw Error(ExitCode::kIo, fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  if (paths.empty() && holds_model)
    refuse_model(folder, std::filesystem::exists(folder / "model.bin", error) ? "the folder of a model.bin"
                                                                              : "a Hugging Face model");
  if (paths.empty())
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: no .h5 file found, expected the shards of weights-tools split", folder.string()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace lfm2
