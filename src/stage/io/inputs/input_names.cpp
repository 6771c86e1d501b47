#include "stage/io/inputs/input_names.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <memory>
#include <span>
#include <system_error>

#include "base/checksum.h"
#include "base/error.h"
#include "stage/io/lines/line_reader.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

bool stands_for_others(const fs::path& path) {
  std::error_code error;
  return is_pattern(path) && !fs::exists(path, error);
}

std::vector<fs::path> matches(const fs::path& pattern) {
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  // With GLOB_ERR a folder that cannot be read is no match, rather than a part of the files.
  if (::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found) != 0) return {};
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::ranges::sort(names);  // by bytes, whatever the locale
  return {names.begin(), names.end()};
}

}  // namespace

bool is_pattern(const fs::path& path) { return path.native().find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> named_inputs(const std::vector<fs::path>& given) {
  std::vector<fs::path> inputs;
  for (const fs::path& name : given) {
    std::vector<fs::path> found;
    if (stands_for_others(name)) found = matches(name);
    if (found.empty()) found = {name};
    inputs.insert(inputs.end(), found.begin(), found.end());
  }
  for (const fs::path& input : inputs) {
    if (inputs.size() > 1 && (input == "-" || inputs.front() == "-"))
      throw Error(ExitCode::kUsage, "--input - beside other files: expected standard input alone, or files alone");
    if (is_pattern(input.extension())) continue;  // expect_inputs() refuses it where the files are
    if (extension_of_lines(input) != extension_of_lines(inputs.front()) && !is_pattern(inputs.front().extension()))
      throw Error(ExitCode::kUsage, fmt::format("--input {} beside {}: expected files of one form, such as all .jsonl",
                                                input.string(), inputs.front().string()));
  }
  return inputs;
}

void expect_inputs(const std::vector<fs::path>& inputs) {
  for (const fs::path& input : inputs)
    if (stands_for_others(input))
      throw Error(ExitCode::kNoInput,
                  fmt::format("--input {}: no file has such a name, or its folder cannot be read", input.string()));
}

std::string names_text(const std::vector<fs::path>& inputs) {
  Checksum names;
  for (const fs::path& input : inputs) {
    const std::string name = input.filename().string() + '\0';
    names.add(std::as_bytes(std::span(name)));
  }
  return fmt::format("{} files, {} to {}, {}", inputs.size(), inputs.front().filename().string(),
                     inputs.back().filename().string(), names.hex());
}

}  // namespace lfm2
