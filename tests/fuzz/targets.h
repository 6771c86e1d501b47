// One entry point for each parser of untrusted files. libFuzzer calls them with inputs that it invents, the unit tests
// with the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace lfm2::fuzz {

struct Target {
  std::string_view name;  // also the name of its folder in the corpus
  // Returns where the parser accepts the input or throws an allowed Error; anything else is a bug.
  void (*run)(std::span<const std::byte>);
};

// Ends the program where a parser breaks its word.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

std::span<const Target> targets();
const Target& find_target(std::string_view name);

}  // namespace lfm2::fuzz
