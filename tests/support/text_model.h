// A golden case's model with text files beside it, and its split. Used by the tests of text files.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/weights_support.h"
#include "weights-tools/commands/commands.h"

namespace lfm2::test {

inline const Console kSilent{ProgressMode::kOff, true};

// The text files of `small_model`: name -> content.
inline const std::map<std::string, std::string>& small_texts() {
  static const std::map<std::string, std::string> texts = {
      {"additional_chat_templates/tool_use.jinja", "{{ bos_token }}{{ tools }}"},
      {"chat_template.jinja", "{{ bos_token }}{{ messages }}"},
      {"generation_config.json", R"({"temperature": 0.5})"},
      {"tokenizer.json", read_bytes(golden_dir() / "text/tokenizer.json")},
      {"tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})"}};
  return texts;
}

inline void write_texts(const std::filesystem::path& folder, const std::map<std::string, std::string>& texts) {
  for (const auto& [name, content] : texts) {
    std::filesystem::create_directories((folder / name).parent_path());
    write_bytes(folder / name, content);
  }
}

// A Hugging Face folder with the weights of tiny-dense.
inline void write_text_model(const std::filesystem::path& folder,
                             const std::map<std::string, std::string>& texts = small_texts()) {
  std::filesystem::create_directories(folder);
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(golden_dir() / "tiny-dense" / name, folder / name);
  write_texts(folder, texts);
}

inline void split_model(const std::filesystem::path& model, const std::filesystem::path& out, int64_t stages = 2,
                        bool force = false) {
  run_split({.model = model, .out = out, .dtype = "keep", .config = {}, .stages = stages, .layers = {}, .force = force},
            kSilent);
}

// All files below a folder: name -> content.
inline std::map<std::string, std::string> files_below(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder)] = read_bytes(entry.path());
  return files;
}

// The files below a folder that are no shards and no weights.
inline std::map<std::string, std::string> texts_below(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files = files_below(folder);
  std::erase_if(files, [](const auto& file) {
    return file.first.ends_with(".h5") || file.first.starts_with("model.") || file.first == "config.json";
  });
  return files;
}

// Compares the names and then the contents, which are too long for messages.
inline void expect_files(const std::map<std::string, std::string>& found,
                         const std::map<std::string, std::string>& expected) {
  std::set<std::string> names, expected_names;
  for (const auto& [name, content] : found) names.insert(name);
  for (const auto& [name, content] : expected) expected_names.insert(name);
  EXPECT_EQ(names, expected_names);
  for (const auto& [name, content] : expected) EXPECT_TRUE(!found.contains(name) || found.at(name) == content) << name;
}

}  // namespace lfm2::test
