// Options of the command line whose values are names.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lfm2 {

// For CLI::Option::transform(). CLI11's own transformer prints each value beside its name in --help and messages. The
// values of a small enum would print as control characters and cut the text off.
template <class T>
CLI::Validator one_of(const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  const auto check = [choices, names](std::string& text) {
    for (const auto& [name, value] : choices)
      if (text == name) {
        text = std::to_string(static_cast<int>(value));
        return std::string();
      }
    return fmt::format("\"{}\", expected {}", text, fmt::join(names, ", "));
  };
  return CLI::Validator(check, fmt::format("{{{}}}", fmt::join(names, ",")));
}

}  // namespace lfm2
