#include "grammar/schema/notation.h"

#include <utility>

namespace lfm2::grammar {
namespace {

constexpr uint32_t kMaxIndent = 64;

}  // namespace

Notation::Notation(Expressions& expressions, Kind kind, bool any_whitespace) : expressions_(expressions), kind_(kind) {
  Expressions& e = expressions;
  const bool python = kind == Kind::kPython;
  const Expr blank = e.text(" ");
  const Expr maybe_blank = e.repeat(blank, 0, 1);
  const Expr indent = e.either({maybe_blank, e.concat(e.text("\n"), e.repeat(blank, 0, kMaxIndent))});
  const Expr inside = python || !any_whitespace ? e.empty() : indent;  // between a bracket and what it encloses
  const Expr before = inside;
  const Expr after = python ? maybe_blank : any_whitespace ? indent : blank;
  words_.null = python ? e.either({e.text("None"), e.text("null")}) : e.text("null");
  words_.no = python ? e.either({e.text("False"), e.text("false")}) : e.text("false");
  words_.yes = python ? e.either({e.text("True"), e.text("true")}) : e.text("true");
  words_.open_list = e.concat(e.text("["), inside);
  words_.close_list = e.concat(inside, e.text("]"));
  words_.open_object = e.concat(e.text("{"), inside);
  words_.close_object = e.concat(inside, e.text("}"));
  words_.comma = e.concat({before, e.text(","), after});
  words_.colon = e.concat({before, e.text(":"), after});
  words_.empty_list = e.concat({e.text("["), inside, e.text("]")});
  words_.empty_object = e.concat({e.text("{"), inside, e.text("}")});
}

Expr Notation::text(const TextForm& texts) const {
  if (texts.empty()) return expressions_.nothing();
  if (kind_ == Kind::kJson) return quoted(texts, '"', Spelling::kJson);
  return expressions_.either(
      {quoted(texts, '\'', Spelling::kPythonSingle), quoted(texts, '"', Spelling::kPythonDouble)});
}

Expr Notation::quoted(const TextForm& texts, char quote, Spelling spelling) const {
  const Expr mark = expressions_.text(std::string_view(&quote, 1));
  Expr inner = expressions_.nothing();
  if (const std::vector<std::string>* listed = texts.listed()) {
    std::vector<std::string> spelled;
    for (const std::string& one : *listed) spelled.push_back(spell(one, spelling));
    inner = expressions_.texts(std::move(spelled));
  } else {
    inner = lower(texts.set(), spelling, expressions_);
  }
  return expressions_.concat({mark, inner, mark});
}

}  // namespace lfm2::grammar
