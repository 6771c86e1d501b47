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

// An expression in parts: text that PCRE2 takes as it is, and sets of code points that become classes of symbols.
class SplitPattern {
 public:
  // Reads an expression in the part of Oniguruma's syntax whose meaning is known to be the same in PCRE2: alternatives,
  // groups, (?i: ), lookahead, repetition, classes, \s, \d, \p{general category}. Error(kData) naming `what` and the
  // first thing that is outside this part.
  static SplitPattern parse(std::string_view expression, const std::string& what);
  // A pattern that matches this very text.
  static SplitPattern literal(std::string_view text);

  const std::string& expression() const { return expression_; }

 private:
  friend class SplitParser;
  friend class SymbolTable;
  struct Part {
    std::string text;
    CodePointSet set;  // used where text is empty
  };

  std::string expression_;
  std::vector<Part> parts_;
};

// Maps code points to symbols such that no set of the patterns tells code points of one symbol apart. ASCII characters
// are their own symbols.
class SymbolTable {
 public:
  static constexpr uint8_t kInvalid = 0xff;  // for a byte that is not UTF-8; no set holds it

  // Error(kData) naming `what` where the patterns tell too many kinds of characters apart.
  SymbolTable(const std::vector<SplitPattern>& patterns, const std::string& what);

  uint8_t operator[](uint32_t point) const { return symbols_[point]; }
  // The pattern as PCRE2 takes it.
  std::string translated(const SplitPattern& pattern) const;

 private:
  std::string symbol_class(const CodePointSet& set) const;

  std::vector<uint8_t> symbols_;           // [code points]
  std::vector<uint32_t> representatives_;  // a code point of each symbol from 0x80 on
};

}  // namespace lfm2
