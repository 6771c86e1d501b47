#include "grammar/expression/pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

namespace lfm2::grammar {
namespace {

bool matches(std::string_view pattern, std::string_view text, Anchors anchors = Anchors::kSearch) {
  Expressions expressions;
  return expressions.matches(lower(parse_pattern(pattern, anchors), Spelling::kRaw, expressions), text);
}

class RandomPatterns {
 public:
  explicit RandomPatterns(uint32_t seed) : random_(seed) {}

  // In the part of the syntax that std::regex reads in the same way.
  std::string alternatives(int depth) {
    std::string pattern = sequence(depth);
    while (below(3) == 0) pattern += "|" + sequence(depth);
    return pattern;
  }
  std::string text() {
    std::string text;
    for (uint32_t i = below(8); i > 0; --i) text += std::string("abAB1_ -.\n")[below(10)];
    return text;
  }

 private:
  std::string sequence(int depth) {
    std::string pattern = below(5) == 0 ? "^" : "";
    for (uint32_t i = below(4); i > 0; --i) pattern += counted(atom(depth));
    return pattern + (below(5) == 0 ? "$" : "");
  }
  std::string atom(int depth) {
    switch (below(depth == 0 ? 4 : 5)) {
      case 0:
        return std::string(1, "abAB1"[below(5)]);
      case 1:
        return std::vector<std::string>{".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\.", "\\-"}[below(9)];
      case 2:
        return std::vector<std::string>{"[ab]", "[^a]", "[a-zA]", "[\\d_]", "[^\\w]", "[-a]", "[A-]"}[below(7)];
      case 3:
        return std::string(1, "ab "[below(3)]);
      default: {
        // Anchors in a group that is counted are refused, so groups have none.
        std::string inner = alternatives(depth - 1);
        std::erase_if(inner, [last = '\0'](char letter) mutable {
          const bool is_anchor = letter == '$' || (letter == '^' && last != '[');
          last = letter;
          return is_anchor;
        });
        return (below(2) == 0 ? "(?:" : "(") + inner + ")";
      }
    }
  }
  std::string counted(const std::string& atom) {
    return atom + std::vector<std::string>{"", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"}[below(11)];
  }
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

  std::mt19937 random_;
};

TEST(Pattern, RandomOnesMatchAsStdRegexDoes) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    RandomPatterns random(seed);
    const std::string pattern = random.alternatives(2);
    const std::regex reference(pattern, std::regex::ECMAScript);
    Expressions expressions;
    const Expr search = lower(parse_pattern(pattern, Anchors::kSearch), Spelling::kRaw, expressions);
    const Expr whole = lower(parse_pattern(pattern, Anchors::kWhole), Spelling::kRaw, expressions);
    for (int i = 0; i < 60; ++i) {
      const std::string text = random.text();
      // libstdc++'s anchors match at line ends inside the text too, unless they are told otherwise.
      if (pattern.find_first_of("^$") != pattern.npos && text.find('\n') != text.npos) continue;
      ASSERT_EQ(expressions.matches(search, text), std::regex_search(text, reference)) << pattern << " in " << text;
      ASSERT_EQ(expressions.matches(whole, text), std::regex_match(text, reference)) << pattern << " is " << text;
    }
  }
}

TEST(Pattern, AnchorsHoldWhereverTheyStand) {
  EXPECT_TRUE(matches("^a|b$", "axx"));
  EXPECT_TRUE(matches("^a|b$", "xxb"));
  EXPECT_FALSE(matches("^a|b$", "xax"));
  EXPECT_TRUE(matches("(?:^|,)a(?:,|$)", "b,a"));
  EXPECT_TRUE(matches("(^|,)a(,|$)", "a,b"));
  EXPECT_FALSE(matches("(^|,)a(,|$)", "ba,b"));
  EXPECT_TRUE(matches("^(^a)?b", "b"));
  EXPECT_FALSE(matches("a^b", "ab"));
  EXPECT_TRUE(matches("a*^b", "b"));
  EXPECT_FALSE(matches("a$b", "ab"));
  EXPECT_TRUE(matches("^$", ""));
  EXPECT_FALSE(matches("^abc$", "abc\n"));
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches("^a", "a", Anchors::kWhole));
}

TEST(Pattern, ClassesAreThoseOfEcma262) {
  for (const char* space : {" ", "\t", "\v", "\f", "\u00a0", "\ufeff", "\n", "\u2029", "\u2003"}) {
    EXPECT_TRUE(matches("^\\s$", space)) << space;
    EXPECT_FALSE(matches("^\\S$", space)) << space;
  }
  for (const char* other : {"\x01", "\u2013", "\u0085", "\u180e"}) EXPECT_TRUE(matches("^\\S$", other)) << other;
  EXPECT_FALSE(matches("^\\d$", "\u07c0"));
  EXPECT_FALSE(matches("^\\w$", "\u00e9"));
  EXPECT_TRUE(matches("^\\W$", "\u00e9"));
  EXPECT_TRUE(matches("^\\p{Letter}\\P{L}\\p{digit}\\p{Lu}\\p{gc=Nd}$", "\u00e91\u09eaA1"));
  EXPECT_TRUE(matches("^.$", "\U0001f600"));
  EXPECT_FALSE(matches("^.$", "\u2028"));
  EXPECT_TRUE(matches("^[^]$", "\n"));
  EXPECT_FALSE(matches("[]", ""));
  EXPECT_TRUE(matches("^[\\s\\S]{2}$", "\n\u00e9"));
  EXPECT_TRUE(matches("^[\\w-.]+$", "a-.b"));
  EXPECT_TRUE(matches("^[\\b]$", "\b"));
  EXPECT_TRUE(matches("^[a\\]-]+$", "]-a"));
}

TEST(Pattern, EscapesAreThoseOfEcma262) {
  EXPECT_TRUE(matches("^\\t\\n\\v\\f\\r\\0\\cA\\x41\\u0042\\u{43}\\u{1f600}$", std::string_view("\t\n\v\f\r\0\x01"
                                                                                                "ABC\U0001f600",
                                                                                                14)));
  EXPECT_TRUE(matches("^\\ud83d\\ude00$", "\U0001f600"));
  EXPECT_TRUE(matches("^[\\ud83d\\ude00-\\ud83d\\ude02]$", "\U0001f601"));
  EXPECT_FALSE(matches("\\ud83d", "\U0001f600"));
  EXPECT_TRUE(matches("^\\$\\^\\.\\*\\/\\-\\@\\\"\\'\\_\\ $", "$^.*/-@\"'_ "));
  EXPECT_TRUE(matches("^{a}]$", "{a}]"));
  EXPECT_TRUE(matches("^x{,2}$", "x{,2}"));
  EXPECT_TRUE(matches("^a{2}{b$", "aa{b"));
}

TEST(Pattern, CaseMayNotMatter) {
  EXPECT_TRUE(matches("^(?i:ab[c-e])f$", "aBDf"));
  EXPECT_FALSE(matches("^(?i:ab)f$", "abF"));
  EXPECT_TRUE(matches("^(?i:s\\w[^k])$", "\u017f\u212a1"));
  EXPECT_FALSE(matches("^(?i:[^k])$", "\u212a"));
  EXPECT_FALSE(matches("^(?i:[^k])$", "K"));
}

TEST(Pattern, WhatCannotBeDoneIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> refused = {{"a(?=b)", "look-ahead"},
                                                                    {"a(?!b)", "look-ahead"},
                                                                    {"(?<=a)b", "look-behind"},
                                                                    {"(?<!a)b", "look-behind"},
                                                                    {"(a)\\1", "back reference"},
                                                                    {"(?<n>a)\\k<n>", "back reference"},
                                                                    {"\\bword", "\\b"},
                                                                    {"\\B", "\\B"},
                                                                    {"\\a", "\\a"},
                                                                    {"a\\Z", "\\Z"},
                                                                    {"(?P<n>a)", "kind of group"},
                                                                    {"(?#c)a", "kind of group"},
                                                                    {"(?i)a", "kind of group"},
                                                                    {"*a", "repetition of nothing"},
                                                                    {"a**", "repetition of a repetition"},
                                                                    {"a++", "repetition of a repetition"},
                                                                    {"(a", "without an end"},
                                                                    {"a)", "closes nothing"},
                                                                    {"[a", "its end"},
                                                                    {"[b-a]", "exchanged"},
                                                                    {"a{2,1}", "exchanged"},
                                                                    {"\\p{Greek}", "property"},
                                                                    {"\\p{Script=Greek}", "property"},
                                                                    {"\\pL", "\\p"},
                                                                    {"\\u12", "end"},
                                                                    {"\\xg0", "digits"},
                                                                    {"a\\", "its end"},
                                                                    {"(^a)*", "anchor"},
                                                                    {"(?i:\u00e9)", "beyond ASCII"},
                                                                    {"\\01", "octal"},
                                                                    {"\xff", "UTF-8"}};
  for (const auto& [pattern, found] : refused) {
    try {
      parse_pattern(pattern, Anchors::kSearch);
      ADD_FAILURE() << pattern << " is not refused";
    } catch (const Refusal& refusal) {
      EXPECT_NE(refusal.found().find(found), std::string::npos) << pattern << ": " << refusal.what();
    }
  }
  EXPECT_THROW(parse_pattern(std::string(200, '(') + std::string(200, ')'), Anchors::kSearch), Refusal);
  EXPECT_NO_THROW(parse_pattern(std::string(90, '(') + std::string(90, ')'), Anchors::kSearch));
}

TEST(Pattern, LargeOnesTakeFewSteps) {
  Limits limits;
  limits.expression_steps = 400'000;
  const std::vector<std::string> patterns = {"^(a?){1000}a{1000}$",     "(a*)*b",   "^(?:.{0,1000}x){0,1000}$",
                                             std::string(100'000, 'a'), "(x+x+)+y", "^.{1000000,2000000000}$"};
  for (const std::string& pattern : patterns) {
    Expressions expressions(limits);
    const Expr expr = lower(parse_pattern(pattern, Anchors::kSearch), Spelling::kJson, expressions);
    EXPECT_TRUE(expressions.possible(expressions.derivative(expr, "aaaa"))) << pattern.substr(0, 40);
  }
}

}  // namespace
}  // namespace lfm2::grammar
