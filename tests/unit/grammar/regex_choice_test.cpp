#include "grammar/regex_choice.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/expression/refusal.h"
#include "grammar/matcher/matcher.h"

namespace lfm2::grammar {
namespace {

bool accepts(Grammar grammar, std::string_view text) {
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"x"});
  Matcher matcher(std::make_shared<CompiledGrammar>(std::move(grammar), tokens), {});
  return matcher.take_bytes(text) && matcher.may_end();
}

TEST(RegexGrammar, MatchesTheWholeText) {
  for (const char* expression : {"[a-c]+", "^[a-c]+$"}) {
    for (const char* text : {"a", "cab"}) EXPECT_TRUE(accepts(regex_grammar(expression), text)) << text;
    for (const char* text : {"", "d", "abd", "xab"}) EXPECT_FALSE(accepts(regex_grammar(expression), text)) << text;
  }
  EXPECT_TRUE(accepts(regex_grammar("(yes|no)"), "yes"));
  EXPECT_FALSE(accepts(regex_grammar("(yes|no)"), "yesno"));
}

TEST(RegexGrammar, CountsCharacters) {
  EXPECT_TRUE(accepts(regex_grammar("[^\"]{0,3}"), "é東🚢"));
  EXPECT_FALSE(accepts(regex_grammar("[^\"]{0,3}"), "abcd"));
  EXPECT_TRUE(accepts(regex_grammar("."), "🚢"));
  EXPECT_FALSE(accepts(regex_grammar("."), "\n"));
  EXPECT_FALSE(accepts(regex_grammar("."), "\xff"));
}

TEST(RegexGrammar, NamesWhatItRefuses) {
  for (const char* expression : {"(?=a)b", "(?<!a)b", "(a)\\1", "a\\bb", "(", "[z-a]"}) {
    try {
      regex_grammar(expression);
      FAIL() << expression;
    } catch (const Refusal& refusal) {
      EXPECT_EQ(refusal.keyword(), "regex");
    }
  }
  EXPECT_THROW(regex_grammar(std::string(100, 'a'), {.text_bytes = 99}), Refusal);
}

TEST(ChoiceGrammar, HasItsTextsAlone) {
  const std::vector<std::string> choices = {"a", "ab", "abc", "(a)", "[b]*", "é\n"};
  for (const std::string& choice : choices) EXPECT_TRUE(accepts(choice_grammar(choices), choice)) << choice;
  for (const char* text : {"", "abcd", "b", "aab"}) EXPECT_FALSE(accepts(choice_grammar(choices), text)) << text;
  EXPECT_TRUE(accepts(choice_grammar(std::vector<std::string>{"", "x"}), ""));
}

TEST(ChoiceGrammar, RefusesAnEmptyList) { EXPECT_THROW(choice_grammar({}), Refusal); }

}  // namespace
}  // namespace lfm2::grammar
