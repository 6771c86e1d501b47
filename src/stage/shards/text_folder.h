// Reads the text files beside shards (tokenizer, chat templates, defaults of generation), and finds the folder with a
// job's text files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "stage/shards/shard_reader.h"

namespace lfm2 {

// Reads a text file that the shards in `shards_folder` list. Error(kNoInput) if it is missing, Error(kData) if its
// checksum differs; both name file, found and expected.
std::string read_listed_text(const ShardSet& shards, const std::filesystem::path& shards_folder, std::string_view name);

// The folder with the text files of a job: `tokenizer_option` if not empty, else the shards' folder if the shards list
// a tokenizer.json, else an empty path. Error(kNoInput) if the option's folder has no tokenizer.json. In the shards'
// folder, read_listed_text() checks every listed file.
std::filesystem::path text_folder(const ShardSet& shards, const std::filesystem::path& shards_folder,
                                  const std::filesystem::path& tokenizer_option);

}  // namespace lfm2
