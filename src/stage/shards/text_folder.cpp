// Checksums detect text files that were edited, or copied from another model, beside unchanged shards.
#include "stage/shards/text_folder.h"

#include <fmt/format.h>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "base/error.h"
#include "stage/shards/shard_format.h"

namespace lfm2 {

namespace fs = std::filesystem;

std::string read_listed_text(const ShardSet& shards, const fs::path& shards_folder, std::string_view name) {
  const auto listed = shards.text_files().find(std::string(name));
  expect(listed != shards.text_files().end(), "read_listed_text: the shards list no such file");
  const fs::path path = shards_folder / name;
  std::error_code error;
  if (!fs::exists(path, error))
    throw Error(ExitCode::kNoInput, fmt::format("{}: missing, expected beside the shards the file with checksum {}",
                                                path.string(), listed->second));
  std::string text = read_text_file(path, shard::kMaxTextFileBytes);
  if (const std::string found = checksum_of(text); found != listed->second)
    throw Error(ExitCode::kData, fmt::format("{}: checksum {}, expected {} as in the shards: the file was changed",
                                             path.string(), found, listed->second));
  return text;
}

fs::path text_folder(const ShardSet& shards, const fs::path& shards_folder, const fs::path& tokenizer_option) {
  if (!tokenizer_option.empty()) {
    std::error_code error;
    if (!fs::is_regular_file(tokenizer_option / shard::kTokenizerFile, error))
      throw Error(ExitCode::kNoInput, fmt::format("--tokenizer {}: no {} there, expected a folder that holds one",
                                                  tokenizer_option.string(), shard::kTokenizerFile));
    return tokenizer_option;
  }
  if (!shards.text_files().contains(std::string(shard::kTokenizerFile))) return {};
  for (const auto& [name, checksum] : shards.text_files()) read_listed_text(shards, shards_folder, name);
  return shards_folder;
}

}  // namespace lfm2
