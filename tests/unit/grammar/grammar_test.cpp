#include "grammar/matcher/grammar.h"

#include <gtest/gtest.h>

#include <string>

#include "grammar/expression/refusal.h"
#include "grammar/matcher/compiled_grammar.h"
#include "grammar/matcher/matcher.h"

namespace lfm2::grammar {
namespace {

std::shared_ptr<CompiledGrammar> compiled(Grammar grammar) {
  return std::make_shared<CompiledGrammar>(std::move(grammar),
                                           std::make_shared<TokenTable>(std::vector<std::string>{"", "x"}));
}

bool accepts(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  Matcher matcher(grammar, {});
  return matcher.take_bytes(text) && matcher.may_end();
}

bool begins(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  return Matcher(grammar, {}).take_bytes(text);
}

// A grammar with rules by letter, and the symbols of its sequences.
class Rules {
 public:
  Symbol operator()(char name) {
    const auto [found, added] = rules_.try_emplace(name);
    if (added) found->second = grammar.add_rule();
    return Symbol::rule(found->second);
  }
  Symbol text(std::string_view bytes) { return Symbol::text(grammar.expressions().text(bytes)); }
  void set(char name, std::vector<Sequence> alternatives) {
    grammar.set_alternatives((*this)(name).rule_id(), std::move(alternatives));
  }
  std::shared_ptr<CompiledGrammar> finish(char start) {
    grammar.set_start((*this)(start).rule_id());
    grammar.finish();
    return compiled(std::move(grammar));
  }
  Grammar grammar;

 private:
  std::map<char, RuleId> rules_;
};

TEST(Grammar, MatchesNestedBrackets) {
  Rules r;
  r.set('A', {{r.text("["), r('A'), r.text("]")}, {}});
  const auto grammar = r.finish('A');
  for (const char* text : {"", "[]", "[[]]", "[[[]]]"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"[", "[]]", "[][]", "x"}) EXPECT_FALSE(accepts(grammar, text)) << text;
  const std::string deep(100'000, '[');
  EXPECT_TRUE(accepts(grammar, deep + std::string(deep.size(), ']')));
  EXPECT_FALSE(begins(grammar, deep + std::string(deep.size() + 1, ']')));
}

TEST(Grammar, CountsItemsAtBothEnds) {
  for (const uint32_t min : {0u, 1u, 3u}) {
    for (const uint32_t max : {3u, 5u, kNoMax}) {
      Rules r;
      r.grammar.set_repeat(r('A').rule_id(), {r.text("a")}, {r.text(",")}, min, max);
      r.set('S', {{r.text("("), r('A'), r.text(")")}});
      const auto grammar = r.finish('S');
      std::string list;
      for (uint32_t count = 0; count < 9; ++count) {
        EXPECT_EQ(accepts(grammar, "(" + list + ")"), count >= min && count <= max) << list << " " << min;
        EXPECT_FALSE(accepts(grammar, "(" + list + ",)")) << list;
        list += list.empty() ? "a" : ",a";
        EXPECT_EQ(begins(grammar, "(" + list), count + 1 <= max) << list;
      }
    }
  }
}

TEST(Grammar, LargeCountsCostNothing) {
  Rules r;
  r.set('I', {{r.text("a")}, {r.text("b")}});
  r.grammar.set_repeat(r('A').rule_id(), {r('I')}, {}, 1'000'000'000, 2'000'000'000);
  const auto grammar = r.finish('A');
  EXPECT_TRUE(begins(grammar, "abab"));
  EXPECT_FALSE(accepts(grammar, "abab"));
}

TEST(Grammar, RepeatsOfEmptyItemsEnd) {
  for (const uint32_t max : {4u, 1'000'000'000u, kNoMax}) {
    Rules r;
    r.set('I', {{r.text("a")}, {}});
    r.set('C', {{r.text(",")}, {}});
    r.grammar.set_repeat(r('A').rule_id(), {r('I')}, {r('C')}, 2, max);
    const auto grammar = r.finish('A');
    for (const char* text : {"", "a", ",", ",a", "a,", "aa", "a,a", ",,", "aa,a"})
      EXPECT_TRUE(accepts(grammar, text)) << text;
    EXPECT_EQ(accepts(grammar, ",,,,"), max > 4);  // five empty items
    EXPECT_EQ(accepts(grammar, "aaaaa"), max > 4);
  }
}

TEST(Grammar, RewritesRulesThatBeginWithThemselves) {
  Rules r;
  r.set('A', {{r('A'), r.text("a")}, {r.text("b")}, {r('A'), r.text("c"), r('A')}, {r('A')}});
  const auto grammar = r.finish('A');
  for (const char* text : {"b", "baa", "bcb", "bcba", "bacbcb"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"", "a", "bc", "bb"}) EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(Grammar, RefusesCyclesWithoutProgress) {
  {
    Rules r;
    r.set('A', {{r('B'), r.text("a")}, {r.text("x")}});
    r.set('B', {{r('A'), r.text("b")}});
    EXPECT_THROW(r.finish('A'), Refusal);
  }
  {
    Rules r;  // after what may be empty
    r.set('E', {{}, {r.text("e")}});
    r.set('A', {{r('E'), r('A'), r.text("a")}, {r.text("x")}});
    EXPECT_THROW(r.finish('A'), Refusal);
  }
  {
    Rules r;  // through a repeat
    r.grammar.set_repeat(r('L').rule_id(), {r('A')}, {}, 0, kNoMax);
    r.set('A', {{r('L'), r.text("a")}});
    EXPECT_THROW(r.finish('A'), Refusal);
  }
  {
    Rules r;  // not reached from the start
    r.set('A', {{r('B')}, {r.text("x")}});
    r.set('B', {{r('A')}});
    r.set('S', {{r.text("s")}});
    EXPECT_TRUE(accepts(r.finish('S'), "s"));
  }
}

TEST(Grammar, RefusesWhatHasNoText) {
  {
    Rules r;
    r.set('A', {{r('A')}});
    EXPECT_THROW(r.finish('A'), Refusal);
  }
  {
    Rules r;
    r.set('A', {{r.text("a"), Symbol::text(r.grammar.expressions().nothing())}});
    EXPECT_THROW(r.finish('A'), Refusal);
  }
  {
    Rules r;
    r.grammar.set_repeat(r('A').rule_id(), {r.text("a")}, {}, 3, 2);
    EXPECT_THROW(r.finish('A'), Refusal);
  }
}

TEST(Grammar, DropsWhatCannotEnd) {
  Rules r;
  const Symbol never = Symbol::text(r.grammar.expressions().nothing());
  r.set('N', {{r.text("n"), r('N')}});
  r.grammar.set_repeat(r('L').rule_id(), {r.text("l")}, {r.text(","), r('N')}, 0, 5);
  r.grammar.set_repeat(r('M').rule_id(), {r('N')}, {}, 0, 5);
  r.set('S', {{r.text("a"), r('N')}, {r.text("b"), never}, {r.text("c"), r('M'), r('L')}});
  const auto grammar = r.finish('S');
  EXPECT_TRUE(accepts(grammar, "c"));
  EXPECT_TRUE(accepts(grammar, "cl"));
  for (const char* text : {"a", "b", "cn", "cl,"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(Grammar, GrowsAroundAFinishedStart) {
  Rules r;
  r.set('A', {{r('A'), r.text("a")}, {r.text("b")}});
  r.grammar.set_start(r('A').rule_id());
  r.grammar.finish();
  r.set('S',
        {{r.text("("), Symbol::rule(r.grammar.start_rule()), r.text(")")}, {Symbol::rule(r.grammar.start_rule())}});
  const auto grammar = r.finish('S');
  for (const char* text : {"baa", "(ba)", "b"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"(b", "b)", "a"}) EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(Grammar, RightRecursionNeedsNoStack) {
  Rules r;
  r.set('A', {{r.text("a"), r('A')}, {r.text("b")}});
  const auto grammar = r.finish('A');
  Matcher matcher(grammar, {});
  ASSERT_TRUE(matcher.take_bytes("aaaa"));
  const size_t before = grammar->memory();
  ASSERT_TRUE(matcher.take_bytes(std::string(100'000, 'a') + "b"));
  EXPECT_LT(grammar->memory(), before + 4096);
  EXPECT_TRUE(matcher.must_end());
}

}  // namespace
}  // namespace lfm2::grammar
