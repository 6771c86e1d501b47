// What one grammar may cost. All limits count input, memory or work, never time, so that they do not depend on the
// machine. Whatever passes a limit throws Refusal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lfm2::grammar {

struct Limits {
  size_t text_bytes = size_t{1} << 20;         // of a schema, a pattern or a grammar as text
  uint32_t depth = 100;                        // of values, schemas and groups inside each other
  size_t expression_nodes = 1'000'000;         // of an Expressions
  size_t expression_bytes = size_t{64} << 20;  // memory of an Expressions, tables included
  uint64_t expression_steps = 5'000'000;       // work of an Expressions while a grammar is compiled
  uint64_t mask_steps = 1'000'000;             // the same for one token or mask
  size_t max_places = 4'096;                   // of a matcher at once
  size_t max_rules = 500'000;                  // of a grammar
  size_t max_state_bytes = size_t{64} << 20;   // of the matcher states of one grammar
  size_t max_mask_bytes = size_t{16} << 20;    // of the masks that one grammar keeps
  uint64_t mask_fuel = 2'000'000;              // nodes of the token trie that one mask may visit
};

// The states of the remainder automaton of one multipleOf.
inline constexpr uint64_t kMaxMultipleStates = 10'000;
// The digits of one number, written without exponent.
inline constexpr size_t kMaxDigits = 2'000;

}  // namespace lfm2::grammar
