#include "grammar/schema/notation.h"

#include <algorithm>
#include <span>

namespace lfm2::grammar {
namespace {

constexpr uint32_t kMaxIndent = 64;
constexpr int kMaxTrieDepth = 64;

// One of the sorted texts from byte `at` on, with common beginnings written once, so that a step through many texts
// looks at those alone that still fit.
Expr one_of(std::span<const std::string> texts, size_t at, int depth, Expressions& expressions) {
  const std::string& first = texts.front();
  if (texts.size() == 1) return expressions.text(std::string_view(first).substr(at));
  const auto different = std::mismatch(first.begin() + static_cast<std::ptrdiff_t>(at), first.end(),
                                       texts.back().begin() + static_cast<std::ptrdiff_t>(at), texts.back().end());
  const size_t split = static_cast<size_t>(different.first - first.begin());
  std::vector<Expr> parts;
  for (size_t begin = 0; begin < texts.size();) {
    size_t end = begin + 1;
    const bool ends = texts[begin].size() == split;
    while (depth < kMaxTrieDepth && !ends && end < texts.size() && texts[end][split] == texts[begin][split]) ++end;
    parts.push_back(one_of(texts.subspan(begin, end - begin), split, depth + 1, expressions));
    begin = end;
  }
  return expressions.concat(expressions.text(std::string_view(first).substr(at, split - at)),
                            expressions.either(parts));
}

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
    std::sort(spelled.begin(), spelled.end());
    inner = one_of(spelled, 0, 0, expressions_);
  } else {
    inner = lower(texts.set(), spelling, expressions_);
  }
  return expressions_.concat({mark, inner, mark});
}

}  // namespace lfm2::grammar
