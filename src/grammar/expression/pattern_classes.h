// The characters of regular expressions: the text that is read, classes and escapes. For pattern.cpp alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "text/unicode/unicode_categories.h"

namespace lfm2::grammar {

// An expression as it is read from front to back. Refusals name the byte that was reached.
class PatternInput {
 public:
  explicit PatternInput(std::string_view expression) : rest_(expression), size_(expression.size()) {}

  bool at_end() const { return rest_.empty(); }
  bool next_is(std::string_view text) const { return rest_.starts_with(text); }
  bool accept(std::string_view text) {
    if (!next_is(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  // The next character. Refusal at the end.
  uint32_t next();
  // The character that next() returned before.
  uint32_t last() const { return last_; }
  // Reads *, +, ?, {m}, {m,} or {m,n}, if it comes next. A count beyond 32 bits is the largest one.
  std::optional<std::pair<uint32_t, uint32_t>> counts();
  bool next_is_count() const;

  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const;

 private:
  std::string_view rest_;
  size_t size_;
  uint32_t last_ = 0;
};

// What "." matches: all but line feed, carriage return and the two separators of Unicode.
const CodePointSet& no_line_end();

// The set with the other case of its ASCII letters, and of what Unicode folds to them. Refusal where it has letters
// with case beyond ASCII.
CodePointSet with_case(CodePointSet set, bool any_case, const PatternInput& input);

// An escape, from its backslash: a character, or a class of characters.
CodePointSet escaped_set(PatternInput& input, bool any_case);

// A class, from after its "[".
CodePointSet character_class(PatternInput& input, bool any_case);

}  // namespace lfm2::grammar
