#include "grammar/expression/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "grammar/expression/limits.h"
#include "grammar/expression/pattern_classes.h"

namespace lfm2::grammar {

namespace {

// Part of an expression as the texts that it matches, with the anchors that they ask for.
struct Piece {
  bool starts, ends;  // nothing may precede the texts, nothing may follow them
  TextSet texts;
};
// At most one piece for each pair of anchors.
using Pieces = std::vector<Piece>;

Pieces merged(const Pieces& pieces) {
  Pieces result;
  for (const bool starts : {false, true})
    for (const bool ends : {false, true}) {
      std::vector<TextSet> same;
      for (const Piece& piece : pieces)
        if (piece.starts == starts && piece.ends == ends) same.push_back(piece.texts);
      if (!same.empty()) result.push_back({starts, ends, either(same)});
    }
  return result;
}

// The empty text where `texts` has it.
TextSet empty_of(const TextSet& texts) { return has_empty_text(texts) ? text(std::u32string_view()) : no_text(); }

// What `^` follows must be empty, and what follows `$`.
Pieces joined(const Pieces& first, const Pieces& second) {
  Pieces result;
  for (const Piece& a : first)
    for (const Piece& b : second) {
      if ((b.starts && !has_empty_text(a.texts)) || (a.ends && !has_empty_text(b.texts))) continue;
      const TextSet before = b.starts ? empty_of(a.texts) : a.texts, after = a.ends ? empty_of(b.texts) : b.texts;
      result.push_back({a.starts || b.starts, a.ends || b.ends, concat({before, after})});
    }
  return merged(result);
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view expression) : input_(expression) {}

  Pieces parse() {
    Pieces pieces = alternatives(0, false);
    if (!input_.at_end()) input_.refuse("a \")\" that closes nothing", "\"\\)\" for the character");
    return pieces;
  }

 private:
  Pieces alternatives(uint32_t depth, bool any_case) {
    if (depth > Limits().depth)
      input_.refuse("groups inside each other", fmt::format("at most {} levels", Limits().depth));
    Pieces pieces = sequence(depth, any_case);
    if (!input_.next_is("|")) return pieces;
    while (input_.accept("|")) {
      Pieces more = sequence(depth, any_case);
      std::ranges::move(more, std::back_inserter(pieces));
    }
    return merged(pieces);
  }

  Pieces sequence(uint32_t depth, bool any_case) {
    Pieces whole = plain(text(std::u32string_view()));
    std::vector<TextSet> run;  // parts without anchors, so that long texts are joined once
    const auto flush = [&] {
      if (!run.empty()) whole = joined(whole, plain(concat(run)));
      run.clear();
    };
    while (!input_.at_end() && !input_.next_is("|") && !input_.next_is(")")) {
      Pieces next = quantified(atom(depth, any_case));
      if (next.size() == 1 && !next[0].starts && !next[0].ends) {
        run.push_back(std::move(next[0].texts));
        continue;
      }
      flush();
      whole = joined(whole, next);
    }
    flush();
    return whole;
  }

  static Pieces plain(TextSet texts) { return {{false, false, std::move(texts)}}; }

  Pieces atom(uint32_t depth, bool any_case) {
    if (input_.accept("^")) return {{true, false, text(std::u32string_view())}};
    if (input_.accept("$")) return {{false, true, text(std::u32string_view())}};
    if (input_.accept(".")) return plain(one_of(no_line_end()));
    if (input_.accept("[")) return plain(one_of(character_class(input_, any_case)));
    if (input_.accept("(")) return group(depth, any_case);
    if (input_.next_is("*") || input_.next_is("+") || input_.next_is("?") || input_.next_is_count())
      input_.refuse("a repetition of nothing", "a character, a class or a group before it");
    if (input_.next_is("\\")) return plain(one_of(escaped_set(input_, any_case)));
    return plain(one_of(with_case({{input_.next(), input_.last()}}, any_case, input_)));
  }

  Pieces group(uint32_t depth, bool any_case) {
    for (const auto& [begin, name] :
         {std::pair{"?=", "a look-ahead"}, {"?!", "a look-ahead"}, {"?<=", "a look-behind"}, {"?<!", "a look-behind"}})
      if (input_.next_is(begin)) input_.refuse(name, "an expression without look-around");
    if (input_.accept("?i:")) {
      any_case = true;
    } else if (input_.accept("?<")) {
      while (!input_.accept(">")) input_.next();
    } else if (!input_.accept("?:") && input_.next_is("?")) {
      input_.refuse("an unknown kind of group", "(…), (?:…), (?i:…) or (?<name>…)");
    }
    Pieces pieces = alternatives(depth + 1, any_case);
    if (!input_.accept(")")) input_.refuse("a group without an end", "\")\"");
    return pieces;
  }

  // Reads what counts the pieces. Lazy forms match the same texts.
  Pieces quantified(Pieces pieces) {
    const std::optional<std::pair<uint32_t, uint32_t>> counts = input_.counts();
    if (!counts) return pieces;
    input_.accept("?");
    const auto [min, max] = *counts;
    if (input_.next_is("*") || input_.next_is("+") || input_.next_is("?") || input_.next_is_count())
      input_.refuse("a repetition of a repetition", "one \"*\", \"+\", \"?\" or {m,n}, optionally with \"?\"");
    const bool has_anchors = pieces.size() != 1 || pieces[0].starts || pieces[0].ends;
    if (!has_anchors) return plain(repeat(pieces[0].texts, min, max));
    if (max == 0) return plain(text(std::u32string_view()));
    if (max > 1) input_.refuse("an anchor in a repeated group", "\"^\" and \"$\" outside of repetitions");
    if (min == 0) pieces.push_back({false, false, text(std::u32string_view())});
    return merged(pieces);
  }

  PatternInput input_;
};

}  // namespace

TextSet parse_pattern(std::string_view expression, Anchors anchors) {
  if (expression.size() > Limits().text_bytes)
    throw Refusal("", "", fmt::format("an expression of {} bytes", expression.size()),
                  fmt::format("at most {}", Limits().text_bytes));
  std::vector<TextSet> ways;
  for (const Piece& piece : PatternParser(expression).parse()) {
    const bool is_whole = anchors == Anchors::kWhole;
    const TextSet before = is_whole || piece.starts ? text(std::u32string_view()) : any_text();
    const TextSet after = is_whole || piece.ends ? text(std::u32string_view()) : any_text();
    ways.push_back(concat({before, piece.texts, after}));
  }
  return either(ways);
}

}  // namespace lfm2::grammar
