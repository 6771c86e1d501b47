#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/expression/refusal.h"
#include "grammar/matcher/matcher.h"

namespace lfm2::grammar {
namespace {

void expect_texts(std::string_view grammar, const std::vector<std::string>& texts,
                  const std::vector<std::string>& others) {
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"x"});
  const auto compiled = std::make_shared<CompiledGrammar>(gbnf_grammar(grammar), tokens);
  const auto accepts = [&](const std::string& text) {
    Matcher matcher(compiled, {});
    return matcher.take_bytes(text) && matcher.may_end();
  };
  for (const std::string& text : texts) EXPECT_TRUE(accepts(text)) << grammar << '\n' << text;
  for (const std::string& text : others) EXPECT_FALSE(accepts(text)) << grammar << '\n' << text;
}

TEST(Gbnf, ReadsRulesTextsAndClasses) {
  expect_texts("root ::= \"a\" b\nb ::= [0-9]+ (\",\" [0-9]+)*\n", {"a1", "a1,22,3"}, {"a", "a1,", "b1"});
  expect_texts("# a remark\nroot ::= \"\\\"\" [^\"\\\\\\n]* \"\\\"\" # another\n", {"\"abc é\"", "\"\""},
               {"\"a\nb\"", "abc"});
  expect_texts("root ::= \"a\"{2,3} \"b\"? .", {"aabz", "aaax", "aay", "aa🚢"}, {"ab", "aa"});
  expect_texts("root ::= [\\u00e0-\\u00ff]+", {"éà"}, {"e"});
  expect_texts("root ::= [a-]+ [-b] [\\]\\x41]", {"a--]", "-bA"}, {"b-]"});
}

TEST(Gbnf, ReadsRecursion) {
  expect_texts(
      "root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+\n",
      {"1", "(1+2)-3", "((1))"}, {"1+", "(1", "1 + 2"});
  expect_texts("root ::= root \"a\" | \"b\"", {"b", "baa"}, {"a", ""});
  expect_texts("root ::= (\"x\" | \"\")* \"y\"", {"y", "xxy"}, {"x"});
  expect_texts("root ::= item{2} | item{4,}\nitem ::= \"a\" | \"(\" root \")\"", {"aa", "aaaa", "a(aaaaa)"},
               {"a", "aaa"});
}

// Thousands of alternatives without rules are one place of a text.
TEST(Gbnf, ManyTextsAreOneAlternative) {
  std::string grammar = "root ::= word root | \"\"\nword ::= \"w0;\"";
  for (int i = 1; i < 5'000; ++i) grammar += " | \"w" + std::to_string(i) + "\" \";\"";
  expect_texts(grammar, {"", "w0;w4999;", "w123;"}, {"w5000;", "w;", "w1"});
}

TEST(Gbnf, BreaksLinesWhereARuleGoesOn) {
  expect_texts("root ::=\n  \"a\" |\n  \"b\"\n  | (\n \"c\"\n \"d\" )\nx ::= \"x\"", {"a", "b", "cd"}, {"x", "c"});
}

TEST(Gbnf, NamesWhatItRefuses) {
  for (const char* grammar :
       {"root ::= \"a\" missing\n", "start ::= \"a\"\n", "root ::= root\n", "root ::= \"a\n", "root ::= <|im_end|>\n",
        "root ::= [a", "root ::= (\"a\"", "root ::= \"a\"{2,1}", "root ::= \"a\"{", "root = \"a\"", "root ::= [z-a]",
        "root ::= \"\\q\"", "root ::= \"\\ud800\"", "root ::= \"a\"\nroot ::= \"b\"", "root ::= \"\xff\"", ""}) {
    try {
      gbnf_grammar(grammar);
      FAIL() << grammar;
    } catch (const Refusal& refusal) {
      EXPECT_EQ(refusal.keyword(), "grammar");
    }
  }
  const std::string deep = "root ::= " + std::string(1000, '(') + "\"a\"" + std::string(1000, ')');
  EXPECT_THROW(gbnf_grammar(deep), Refusal);
}

}  // namespace
}  // namespace lfm2::grammar
