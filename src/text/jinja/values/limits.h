// The resource limits of one rendering of a chat template, since templates are untrusted.
#pragma once

#include <atomic>
#include <cstddef>

namespace lfm2::jinja {

struct Limits {
  size_t steps = 20'000'000;                // about one for each expression, item and 64 bytes: a second or so
  size_t memory_bytes = size_t{256} << 20;  // of all values together, from the first to the last
  size_t output_bytes = size_t{64} << 20;
  int processor_seconds = 10;               // for work that the steps do not count
  const std::atomic<bool>* stop = nullptr;  // if it becomes true, rendering ends soon with Error(kStopped)
  int depth = 1000;                         // of calls and of nested expressions and statements
  int value_depth = 200;                    // of lists in lists
};

}  // namespace lfm2::jinja
