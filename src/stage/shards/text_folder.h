// The text files beside shards (tokenizer, chat templates, defaults of generation): reading those that the shards list,
// and the folder from which a job takes them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "stage/shards/shard_reader.h"

namespace lfm2 {

// Reads a text file that the shards in `shards_folder` list. Error(kNoInput) where it is missing, Error(kData) where it
// has another checksum; both name file, found and expected.
std::string read_listed_text(const ShardSet& shards, const std::filesystem::path& shards_folder, std::string_view name);

// The folder with the text files of a job: `tokenizer_option` where that is not empty, else the shards' own folder
// where they list a tokenizer.json, else an empty path. Error(kNoInput) where the option's folder has no
// tokenizer.json. In the shards' folder every listed file is compared with its checksum, as read_listed_text() does.
std::filesystem::path text_folder(const ShardSet& shards, const std::filesystem::path& shards_folder,
                                  const std::filesystem::path& tokenizer_option);

}  // namespace lfm2
