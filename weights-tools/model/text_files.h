// Reads the text files beside a model (tokenizer, chat templates, defaults of generation).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "weights-tools/model/model_source.h"

namespace lfm2 {

struct TextFile {
  std::string name;  // relative to the model's folder
  std::string content;
  std::filesystem::path path;  // the file that was read
};

// Reads the files of shard::kTextFiles that belong to `source`, which open_model() made from `model` and `config_path`.
// For shards these are the listed files, checked by their checksums: Error(kNoInput), Error(kData). For other formats
// they are the files in the model's folder or, if it has none, in the folder of `config_path`.
std::vector<TextFile> read_text_files(const ModelSource& source, const std::filesystem::path& model,
                                      const std::optional<std::filesystem::path>& config_path = std::nullopt);

// The value of shard::kTextFilesAttribute for these files.
std::string text_files_attribute(const std::vector<TextFile>& files);

}  // namespace lfm2
