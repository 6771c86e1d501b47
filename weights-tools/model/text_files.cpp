// The files of a model depend on its format: shards list theirs, other formats have them beside the weights.
#include "weights-tools/model/text_files.h"

#include "base/checked_file.h"
#include "base/json/json.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/text_folder.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

std::vector<TextFile> files_in(const fs::path& folder) {
  std::vector<TextFile> files;
  for (const std::string_view name : shard::kTextFiles) {
    const fs::path path = folder / name;
    std::error_code error;
    // A broken link counts as a file, so that it is refused and not skipped.
    if (!fs::exists(fs::symlink_status(path, error))) continue;
    files.push_back({std::string(name), read_text_file(path, shard::kMaxTextFileBytes), path});
  }
  return files;
}

std::vector<TextFile> listed_files(const fs::path& folder) {
  const ShardSet shards = ShardSet::open(folder);
  std::vector<TextFile> files;
  for (const auto& [name, checksum] : shards.text_files())
    files.push_back({name, read_listed_text(shards, folder, name), folder / name});
  return files;
}

}  // namespace

std::vector<TextFile> read_text_files(const ModelSource& source, const fs::path& model,
                                      const std::optional<fs::path>& config_path) {
  if (source.form() == "shards") return listed_files(model);
  std::error_code error;
  std::vector<TextFile> files = files_in(fs::is_directory(model, error) ? model : model.parent_path());
  if (files.empty() && config_path) files = files_in(config_path->parent_path());
  return files;
}

std::string text_files_attribute(const std::vector<TextFile>& files) {
  Json json = Json::object();
  for (const TextFile& file : files) json[file.name] = checksum_of(file.content);
  return json_text(json);
}

}  // namespace lfm2
