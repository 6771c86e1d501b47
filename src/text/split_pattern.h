// The regular expression of a Split, read and translated for PCRE2. tokenizers matches code points with Oniguruma and
// its own Unicode tables; here each code point becomes one byte, its symbol, and PCRE2 matches bytes. So the classes
// are exactly those of tokenizers, whatever PCRE2's tables know, and matching is as fast as for ASCII.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/unicode_categories.h"

namespace lfm2 {

// A parsed expression: parts that PCRE2 gets unchanged, and sets of code points that become classes of symbols.
class SplitPattern {
 public:
  // Parses an expression in the subset of Oniguruma's syntax that has the same meaning in PCRE2: alternatives, groups,
  // (?i: ), lookahead, repetition, classes, \s, \d, \p{general category}. Error(kData) naming `what` and the first
  // construct outside this subset.
  static SplitPattern parse(std::string_view expression, const std::string& what);
  // A pattern that matches exactly this text.
  static SplitPattern literal(std::string_view text);

  const std::string& expression() const { return expression_; }

 private:
  friend class SplitParser;
  friend class SymbolTable;
  struct Part {
    std::string text;
    CodePointSet set;  // used if `text` is empty
  };

  std::string expression_;
  std::vector<Part> parts_;
};

// Maps code points to symbols: code points that belong to the same sets of all patterns share a symbol. ASCII
// characters are their own symbols.
class SymbolTable {
 public:
  static constexpr uint8_t kInvalid = 0xff;  // for a byte that is not UTF-8; in no set

  // Error(kData) naming `what` if the patterns distinguish too many kinds of characters.
  SymbolTable(const std::vector<SplitPattern>& patterns, const std::string& what);

  uint8_t operator[](uint32_t point) const { return symbols_[point]; }
  // The pattern in PCRE2's syntax, over symbols.
  std::string translated(const SplitPattern& pattern) const;

 private:
  std::string symbol_class(const CodePointSet& set) const;

  std::vector<uint8_t> symbols_;           // [code points]
  std::vector<uint32_t> representatives_;  // a code point of each symbol from 0x80 on
};

}  // namespace lfm2
