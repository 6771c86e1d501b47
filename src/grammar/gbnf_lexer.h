// Characters of GBNF: blanks, names, and characters of texts and classes with their escapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2::grammar {

class GbnfLexer {
 public:
  // Refusal where the text is no UTF-8.
  explicit GbnfLexer(std::string_view text);

  bool at_end() const { return at_ == text_.size(); }
  // The next byte, 0 at the end.
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  // Whether the text continues with `expected`, which is then consumed.
  bool consume(std::string_view expected);
  // Skips blanks and remarks, and line feeds too with `lines`.
  void skip_blanks(bool lines);
  // Skips blanks, remarks and line feeds if a | follows, which continues the rule. Otherwise skips nothing.
  void skip_to_alternative();
  // A name; empty where none begins here.
  std::string_view name();
  // A number of a repetition, Refusal where it is none or above 2^32 - 2.
  uint32_t number();
  // The next character of a text or class, with its escape resolved.
  uint32_t character();

  // Refusal naming the line.
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  uint32_t hexadecimal(size_t digits);

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace lfm2::grammar
