// How values are written: as JSON, or as the Python literals in which LFM2 writes its calls.
#pragma once

#include <string>
#include <vector>

#include "grammar/schema/text_form.h"

namespace lfm2::grammar {

class Notation {
 public:
  enum class Kind { kJson, kPython };

  // JSON has nothing, a blank, or a line feed with up to 64 blanks between its tokens; without `any_whitespace` it has
  // ", " and ": " alone. Python has "," or ", ", and ":" or ": ".
  Notation(Expressions& expressions, Kind kind, bool any_whitespace = true);

  Expr null() const { return words_.null; }
  Expr boolean(bool value) const { return value ? words_.yes : words_.no; }
  // Texts between their quotes.
  Expr text(const TextForm& texts) const;
  // Blanks beside the marks included.
  Expr open_list() const { return words_.open_list; }
  Expr close_list() const { return words_.close_list; }
  Expr open_object() const { return words_.open_object; }
  Expr close_object() const { return words_.close_object; }
  Expr comma() const { return words_.comma; }
  Expr colon() const { return words_.colon; }
  Expr empty_list() const { return words_.empty_list; }
  Expr empty_object() const { return words_.empty_object; }
  // Whether an integer that is asked for by its value may be written as 1.0.
  bool points_integers() const { return kind_ == Kind::kJson; }
  Expressions& expressions() const { return expressions_; }

 private:
  Expr quoted(const TextForm& texts, char quote, Spelling spelling) const;

  Expressions& expressions_;
  const Kind kind_;
  struct {
    Expr null, no, yes, open_list, close_list, open_object, close_object, comma, colon, empty_list, empty_object;
  } words_{};
};

}  // namespace lfm2::grammar
