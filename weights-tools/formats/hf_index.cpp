// The index is a claim about other files, so all of it is checked against these files.
#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxIndex = uint64_t{16} << 20;
constexpr std::string_view kEnding = ".safetensors";

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& message) {
  throw Error(ExitCode::kData, fmt::format("{}: {}", path.string(), message));
}

// The names of the tensors in each file.
using FileContents = std::map<std::string, std::vector<std::string>>;

FileContents read_weight_map(const Json& json, const std::filesystem::path& index) {
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    refuse(index, "\"weight_map\" is missing or no object");
  FileContents contents;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : std::string();
    if (!file.ends_with(kEnding) || file.size() == kEnding.size() || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos)
      refuse(index, fmt::format("tensor {} is in \"{}\", expected the plain name of a {} file", tensor, file, kEnding));
    contents[file].push_back(tensor);
  }
  if (contents.empty()) refuse(index, "\"weight_map\" names no tensor");
  return contents;
}

void check_total_size(const Json& json, const RawTensors& tensors, const std::filesystem::path& index) {
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
  uint64_t total = 0;
  for (const auto& [tensor, raw] : tensors) total = checked_add(total, raw.bytes, index.string());
  if ((*metadata)["total_size"] != total)
    refuse(index,
           fmt::format("total_size is {}, but the tensors have {} bytes", json_text((*metadata)["total_size"]), total));
}

}  // namespace

IndexedCheckpoint open_indexed_checkpoint(const std::filesystem::path& index) {
  const Json json = parse_json(read_text_file(index, kMaxIndex), index.string());
  IndexedCheckpoint checkpoint;
  for (const auto& [name, tensors] : read_weight_map(json, index)) {
    const size_t file_index = checkpoint.files.size();
    const CheckedFile& file = checkpoint.files.emplace_back(index.parent_path() / name);
    RawTensors held = read_safetensors_header(file, file_index);
    for (const std::string& tensor : tensors) {
      auto node = held.extract(tensor);
      if (node.empty()) refuse(file.path(), fmt::format("holds no tensor {}, which the index places there", tensor));
      checkpoint.tensors.insert(std::move(node));
    }
    if (!held.empty())
      refuse(file.path(), fmt::format("holds tensor {}, which the index does not place there", held.begin()->first));
  }
  check_total_size(json, checkpoint.tensors, index);
  return checkpoint;
}

}  // namespace lfm2
