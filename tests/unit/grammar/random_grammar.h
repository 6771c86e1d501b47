// Small random grammars, and an independent answer to what they accept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/expression/refusal.h"
#include "grammar/matcher/grammar.h"
#include "grammar/matcher/matcher.h"

namespace lfm2::grammar {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t operator()(size_t below) { return static_cast<size_t>(engine_() % below); }

 private:
  std::mt19937_64 engine_;
};

// Rules that refer to each other in any way, with ambiguities, empty parts, left recursion and dead ends. `alphabet`
// is that of the terminals; without one, they are pieces of JSON.
class RandomGrammar {
 public:
  RandomGrammar(uint64_t seed, std::string_view alphabet) : alphabet_(alphabet), random_(seed) {
    const size_t count = 1 + random_(4);
    for (size_t i = 0; i < count; ++i) grammar.add_rule();
    for (size_t i = 0; i < count; ++i) {
      Rule rule;
      rule.repeat = random_(4) == 0;
      const size_t sequences = rule.repeat ? 2 : 1 + random_(3);
      for (size_t k = 0; k < sequences; ++k) rule.sequences.push_back(sequence(count));
      rule.min = static_cast<uint32_t>(random_(3));
      rule.max = random_(3) == 0 ? kNoMax : rule.min + static_cast<uint32_t>(random_(3));
      rules_.push_back(rule);
    }
  }

  // False where the grammar is refused.
  bool finish() {
    for (size_t i = 0; i < rules_.size(); ++i) {
      const Rule& rule = rules_[i];
      const auto id = static_cast<RuleId>(i);
      if (rule.repeat)
        grammar.set_repeat(id, rule.sequences[0], rule.sequences[1], rule.min, rule.max);
      else
        grammar.set_alternatives(id, rule.sequences);
    }
    grammar.set_start(RuleId{0});
    try {
      grammar.finish();
    } catch (const Refusal&) {
      return false;
    }
    return true;
  }

  // Whether the start rule has the text. `grammar` must not have been moved away: ask another one of the same seed. The
  // ends of all rules from all places, until nothing is added.
  bool has(std::string_view text) {
    const size_t size = text.size();
    ends_.assign(rules_.size(), std::vector<std::set<size_t>>(size + 1));
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < rules_.size(); ++rule) {
        for (size_t from = 0; from <= size; ++from) {
          const size_t before = ends_[rule][from].size();
          ends_[rule][from].merge(rule_ends(rules_[rule], text, from));
          changed |= ends_[rule][from].size() > before;
        }
      }
    }
    return ends_[0][0].count(size) > 0;
  }

  Grammar grammar;

 private:
  struct Rule {
    bool repeat = false;
    std::vector<Sequence> sequences;
    uint32_t min = 0, max = 0;
  };

  Expr terminal(Expressions& of, Random& random) {
    if (alphabet_.empty()) return json_piece(of, random);
    const auto letter = [&] { return of.text(alphabet_.substr(random(alphabet_.size()), 1)); };
    switch (random(7)) {
      case 0:
        return of.concat({letter(), letter()});
      case 1:
        return of.repeat(letter(), 0, kNoMax);
      case 2:
        return of.repeat(of.either({letter(), letter()}), 1, 3);
      case 3:
        return of.either({letter(), of.concat({letter(), letter()}), of.empty()});
      case 4:
        return random(4) == 0 ? of.nothing()
                              : of.both({of.repeat(of.either({letter(), letter()}), 0, 4), of.complement(letter())});
      default:
        return letter();
    }
  }

  static Expr json_piece(Expressions& of, Random& random) {
    const auto range = [&](unsigned first, unsigned last) {
      ByteSet set;
      for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
      return of.bytes(set);
    };
    const Expr digit = range('0', '9'), word = of.either({range('a', 'z'), range('A', 'Z'), digit, of.text("_")});
    const Expr tail = range(0x80, 0xbf);
    const Expr plain = of.either(
        {range(' ', '!'), range('#', '['), range(']', '~'), of.concat({range(0xc2, 0xdf), tail}),
         of.concat({range(0xe1, 0xec), tail, tail}), of.concat({range(0xee, 0xef), tail, tail}),
         of.concat({of.text("\xe0"), range(0xa0, 0xbf), tail}), of.concat({of.text("\xed"), range(0x80, 0x9f), tail}),
         of.concat({of.text("\xf0"), range(0x90, 0xbf), tail, tail}), of.concat({range(0xf1, 0xf3), tail, tail, tail}),
         of.concat({of.text("\xf4"), range(0x80, 0x8f), tail, tail})});
    const Expr character =
        of.either({plain, of.concat({of.text("\\"), of.either({of.text("n"), of.text("\""), of.text("\\")})})});
    const Expr quote = of.text("\""), blank = of.repeat(range(' ', ' '), 0, 3);
    switch (random(10)) {
      case 0:
        return of.concat({quote, of.repeat(character, 0), quote});
      case 1:
        return of.concat({quote, of.repeat(character, 2, 5), quote});
      case 2:
        return of.concat({quote, of.repeat(word, 1), quote});
      case 3:
        return of.repeat(digit, 1, 4);
      case 4:
        return of.repeat(plain, 0);
      case 5:
        return of.concat(
            {quote, of.both({of.repeat(character, 0), of.complement(of.either({of.text("name"), of.text("na")}))}),
             quote});
      case 6:
        return blank;
      case 7:
        return of.concat({quote, of.repeat(plain, 40), quote});
      case 8:
        return of.text("\"name\": ");
      default:
        return of.text(random(2) == 0 ? "," : "true");
    }
  }

  Sequence sequence(size_t rules) {
    Sequence made;
    for (size_t i = random_(4); i > 0; --i) {
      if (random_(3) == 0)
        made.push_back(Symbol::rule(static_cast<RuleId>(random_(rules))));
      else
        made.push_back(Symbol::text(terminal(grammar.expressions(), random_)));
    }
    return made;
  }

  std::set<size_t> symbol_ends(const Symbol& symbol, std::string_view text, size_t from) {
    if (symbol.kind == Symbol::Kind::kRule) return ends_[static_cast<size_t>(symbol.rule_id())][from];
    std::set<size_t> ends;
    for (size_t to = from; to <= text.size(); ++to)
      if (grammar.expressions().matches(symbol.expression(), text.substr(from, to - from))) ends.insert(to);
    return ends;
  }

  std::set<size_t> sequence_ends(const Sequence& sequence, std::string_view text, size_t from) {
    std::set<size_t> ends = {from};
    for (const Symbol& symbol : sequence) {
      std::set<size_t> next;
      for (const size_t end : ends) next.merge(symbol_ends(symbol, text, end));
      ends = next;
    }
    return ends;
  }

  std::set<size_t> rule_ends(const Rule& rule, std::string_view text, size_t from) {
    std::set<size_t> found;
    if (!rule.repeat) {
      for (const Sequence& sequence : rule.sequences) found.merge(sequence_ends(sequence, text, from));
      return found;
    }
    // More items than bytes and the minimum together reach nothing new.
    const uint32_t most = std::min<uint32_t>(rule.max, rule.min + 2 * static_cast<uint32_t>(text.size()) + 2);
    std::set<size_t> ends = {from};
    for (uint32_t count = 0; count <= most && !ends.empty(); ++count) {
      if (count >= rule.min) found.insert(ends.begin(), ends.end());
      std::set<size_t> starts = ends, next;
      if (count > 0) {
        starts.clear();
        for (const size_t end : ends) starts.merge(sequence_ends(rule.sequences[1], text, end));
      }
      for (const size_t start : starts) next.merge(sequence_ends(rule.sequences[0], text, start));
      ends = next;
    }
    return found;
  }

  std::string_view alphabet_;
  Random random_;
  std::vector<Rule> rules_;
  std::vector<std::vector<std::set<size_t>>> ends_;  // [rule][from]
};

// Whether this number of bytes of "abc" can lead to the end of the text.
inline bool can_end(Matcher& matcher, size_t bytes) {
  if (bytes == 0) return matcher.may_end();
  for (const char* byte : {"a", "b", "c"}) {
    if (!matcher.take_bytes(byte)) continue;
    const bool ends = can_end(matcher, bytes - 1);
    matcher.undo(1);
    if (ends) return true;
  }
  return false;
}

inline bool can_end(Matcher& matcher) {
  for (size_t bytes = 0; bytes < 12; ++bytes)
    if (can_end(matcher, bytes)) return true;
  return false;
}

// Short texts over "abc", some of them twice or empty. The last one is for an end.
inline std::vector<std::string> random_vocabulary(Random& random, size_t tokens) {
  std::vector<std::string> texts(tokens + 1);
  for (size_t i = 0; i < tokens; ++i)
    for (size_t length = random(5); length > 0; --length) texts[i] += "abc"[random(3)];
  return texts;
}

// What tokens of a real vocabulary look like: words, numbers, punctuation of JSON, parts of characters.
inline std::vector<std::string> text_vocabulary() {
  std::vector<std::string> texts = {
      "name", "na",       "me",       " the",     "The",      "_id",    "don't", "'",        "''",   "\\",       "\\n",
      "\\\\", "\\\"",     "\n",       "\t",       "é",        "\xc3",   "\xa9",  "東京",     "\xb1", "\xe6\x9d", "🚢",
      " é",   "\xf0\x9f", "\x9a\xa2", "12",       "123",      "007",    "1a",    "-1",       "true", "tru",      "e",
      ", ",   "\",",      "\", \"",   "\"name",   "\"name\"", "\": \"", "a\"b",  " \"",      "  ",   "   ",      "\x7f",
      "\x01", "",         "\xff",     "\xe0\x80", "\xed\xa0", "'s\"",   "x'\"y", "\"name\":"};
  for (int byte = ' '; byte < 0x7f; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (int i = 0; i < 26; ++i) texts.push_back(std::string(1, static_cast<char>('a' + i)) + "ab");
  texts.emplace_back(40, 'y');
  texts.emplace_back(20, 'z');
  texts.emplace_back(300, 'y');
  return texts;
}

}  // namespace lfm2::grammar
