// One entry point for each parser of files that strangers may have made. libFuzzer calls them with what it invents, the
// unit tests with the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lfm2::fuzz {

struct Target {
  std::string_view name;                    // also of its folder in the corpus
  void (*run)(std::span<const std::byte>);  // returns, or refuses with an Error that it swallows; else there is a bug
};

std::span<const Target> targets();
const Target& find_target(std::string_view name);

}  // namespace lfm2::fuzz
