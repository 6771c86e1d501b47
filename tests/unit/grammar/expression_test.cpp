#include "grammar/expression/expression.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace lfm2::grammar {
namespace {

// The reference: languages as sets of all their texts up to a length, over three letters.
constexpr size_t kMaxTextLength = 5;
using Language = std::set<std::string>;

Language all_texts() {
  Language all{""};
  std::vector<std::string> last{""};
  for (size_t i = 0; i < kMaxTextLength; ++i) {
    std::vector<std::string> next;
    for (const std::string& text : last)
      for (const char letter : {'a', 'b', 'c'}) next.push_back(text + letter);
    all.insert(next.begin(), next.end());
    last = std::move(next);
  }
  return all;
}

Language joined(const Language& first, const Language& second) {
  Language result;
  for (const std::string& a : first)
    for (const std::string& b : second)
      if (a.size() + b.size() <= kMaxTextLength) result.insert(a + b);
  return result;
}

Language repeated(const Language& part, uint32_t min, uint32_t max) {
  Language power{""}, result;
  std::set<Language> seen;  // powers cycle or die out at this length
  for (uint32_t i = 0; i <= max; ++i) {
    if (i >= min) result.insert(power.begin(), power.end());
    if (i > min + 2 * kMaxTextLength) break;
    power = joined(power, part);
  }
  return result;
}

struct Sample {
  Expr expr;
  Language texts;
};

class RandomExpressions {
 public:
  RandomExpressions(Expressions& expressions, uint32_t seed) : e_(expressions), random_(seed), all_(all_texts()) {
    letters_ = e_.repeat(e_.bytes(ByteSet().set('a').set('b').set('c')), 0);
  }

  Sample next(int depth) {
    switch (depth == 0 ? below(3) : below(11)) {
      case 0:
        return {e_.empty(), {""}};
      case 1:
      case 2: {
        ByteSet set;
        Language texts;
        for (const char letter : {'a', 'b', 'c'})
          if (below(2) == 0) set.set(static_cast<uint8_t>(letter)), texts.insert(std::string(1, letter));
        return {e_.bytes(set), texts};
      }
      case 3:
      case 4: {
        const Sample a = next(depth - 1), b = next(depth - 1), c = next(depth - 1);
        return {e_.concat({a.expr, b.expr, c.expr}), joined(a.texts, joined(b.texts, c.texts))};
      }
      case 5:
      case 6: {
        const Sample a = next(depth - 1), b = next(depth - 1), c = next(depth - 1);
        Language texts = a.texts;
        texts.insert(b.texts.begin(), b.texts.end());
        texts.insert(c.texts.begin(), c.texts.end());
        return {e_.either({a.expr, b.expr, c.expr}), texts};
      }
      case 7: {
        const Sample a = next(depth - 1), b = next(depth - 1);
        Language texts;
        for (const std::string& text : a.texts)
          if (b.texts.contains(text)) texts.insert(text);
        return {e_.both({a.expr, b.expr}), texts};
      }
      case 8: {
        const Sample a = next(depth - 1);
        Language texts;
        for (const std::string& text : all_)
          if (!a.texts.contains(text)) texts.insert(text);
        return {e_.both({letters_, e_.complement(a.expr)}), texts};
      }
      default: {
        const Sample a = next(depth - 1);
        const uint32_t min = below(4), max = below(4) == 0 ? kNoMax : min + below(4);
        return {e_.repeat(a.expr, min, max), repeated(a.texts, min, max)};
      }
    }
  }
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  const Language& all() const { return all_; }

 private:
  Expressions& e_;
  std::mt19937 random_;
  Language all_;
  Expr letters_;
};

TEST(Expressions, RandomOnesMatchWhatSetsOfTextsSay) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Expressions expressions;
    RandomExpressions random(expressions, seed);
    const Sample a = random.next(3), b = random.next(3);
    for (const std::string& text : random.all())
      ASSERT_EQ(expressions.matches(a.expr, text), a.texts.contains(text)) << "seed " << seed << " text " << text;
    ASSERT_TRUE(a.texts.empty() || expressions.possible(a.expr)) << seed;
    bool overlap = false, within = true;
    for (const std::string& text : a.texts) overlap = overlap || b.texts.contains(text);
    for (const std::string& text : b.texts) within = within && a.texts.contains(text);
    // Texts beyond the length may decide otherwise in one direction.
    ASSERT_TRUE(!overlap || expressions.possible(expressions.both({a.expr, b.expr}))) << seed;
    ASSERT_TRUE(within || expressions.possible(expressions.both({b.expr, expressions.complement(a.expr)}))) << seed;
    const Expr short_ones = expressions.both(
        {a.expr, expressions.repeat(expressions.bytes(ByteSet().set('a').set('b').set('c')), 0, kMaxTextLength)});
    ASSERT_EQ(expressions.possible(short_ones), !a.texts.empty()) << seed;
    for (const std::string& text : a.texts) {
      if (text.empty()) continue;
      ASSERT_TRUE(expressions.first(a.expr)[static_cast<uint8_t>(text[0])]) << seed;
    }
  }
}

TEST(Expressions, BeginningsAreThoseOfTexts) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Expressions expressions;
    RandomExpressions random(expressions, 1'000 + seed);
    const Sample a = random.next(2), b = random.next(2);
    const Expr three = expressions.repeat(expressions.bytes(ByteSet().set('a').set('b').set('c')), 0, 3);
    const Expr beginnings = expressions.both({b.expr, three});
    bool all = true;
    for (const std::string& text : b.texts)
      all = all && (text.size() > 3 || expressions.possible(expressions.derivative(a.expr, text)));
    ASSERT_EQ(expressions.begins(a.expr, beginnings), all) << seed;
  }
}

TEST(Expressions, EqualLanguagesOftenAreOneNode) {
  Expressions e;
  const Expr a = e.text("a"), b = e.text("b"), c = e.text("c");
  EXPECT_EQ(e.either({a, e.either({b, c})}), e.either({c, b, a, b}));
  EXPECT_EQ(e.concat(e.concat(a, b), c), e.text("abc"));
  EXPECT_EQ(e.both({e.complement(e.complement(e.text("ab"))), e.anything()}), e.text("ab"));
  EXPECT_EQ(e.either({e.text("ab"), e.complement(e.text("ab"))}), e.anything());
  EXPECT_EQ(e.both({e.text("ab"), e.complement(e.text("ab"))}), e.nothing());
  EXPECT_EQ(e.repeat(e.repeat(a, 2, 3), 4), e.repeat(a, 8));
  EXPECT_EQ(e.concat(e.repeat(a, 2, 3), e.repeat(a, 1, 4)), e.repeat(a, 3, 7));
  EXPECT_EQ(e.either({e.repeat(a, 2, 3), e.repeat(a, 4, 6), a, e.empty()}), e.repeat(a, 0, 6));
  EXPECT_EQ(e.either({e.concat(a, c), e.concat(b, c)}), e.concat(e.either({a, b}), c));
  EXPECT_EQ(e.repeat(e.bytes(ByteSet().set()), 0), e.anything());
  EXPECT_NE(e.repeat(e.repeat(a, 3, 3), 0), e.repeat(a, 0));
  EXPECT_NE(e.repeat(e.repeat(a, 2, 3), 0), e.repeat(a, 0));
}

TEST(Expressions, CountsAreNumbers) {
  Expressions e;
  const Expr letter = e.bytes(ByteSet().set('a').set('b'));
  const Expr million = e.repeat(letter, 1'000'000, 2'000'000'000);
  EXPECT_TRUE(e.possible(million));
  Expr rest = million;
  for (int i = 0; i < 1'000; ++i) rest = e.derivative(rest, 'a');
  EXPECT_EQ(rest, e.repeat(letter, 999'000, 1'999'999'000));
  EXPECT_LT(e.size(), 2'100u);
  // Optional parts: each derivative is one repetition, not one for each way to get there.
  Expr optional = e.repeat(e.repeat(letter, 0, 1), 1'000, 1'000);
  for (int i = 0; i < 500; ++i) optional = e.derivative(optional, 'b');
  EXPECT_EQ(optional, e.repeat(letter, 0, 500));
}

TEST(Expressions, FewOfManyStatesAreMet) {
  Expressions e;
  ByteSet letters;
  for (uint8_t letter = 'a'; letter <= 'z'; ++letter) letters.set(letter);
  const Expr letter = e.bytes(letters), any = e.repeat(letter, 0);
  // An x 40 letters before the end: 2^40 states.
  const uint32_t universe = e.add_universe(any, 0);
  e.note_within(universe, e.text("x"));
  const Expr far = e.concat({any, e.text("x"), e.repeat(letter, 40, 40)});
  EXPECT_TRUE(e.possible(e.both({far, e.repeat(letter, 60, 100'000)})));
  EXPECT_FALSE(e.possible(e.both({far, e.repeat(letter, 0, 40)})));
  EXPECT_FALSE(e.possible(e.both({far, e.complement(any)})));
  EXPECT_LT(e.size(), 20'000u);
}

TEST(Expressions, AutomataAreExpressions) {
  Expressions e;
  // Texts of a with an even number of letters.
  Automaton even;
  even.partition = e.byte_classes().of(ByteSet().set('a'));
  even.classes = 2;
  const uint8_t column = e.byte_classes().classes(even.partition)['a'];
  even.next.assign(4, Automaton::kDead);
  even.next[column] = 1;
  even.next[2 + column] = 0;
  even.accepts = {true, false};
  const Expr expr = e.automaton(even);
  EXPECT_EQ(e.automaton(even), expr);
  EXPECT_TRUE(e.matches(expr, "aaaa"));
  EXPECT_FALSE(e.matches(expr, "aaa"));
  EXPECT_FALSE(e.matches(expr, "aab"));
  EXPECT_TRUE(e.possible(e.both({expr, e.repeat(e.text("a"), 5, 6)})));
  EXPECT_FALSE(e.possible(e.both({expr, e.repeat(e.text("a"), 5, 5)})));
}

TEST(Expressions, ListedTextsAreOneExpression) {
  Expressions e;
  EXPECT_EQ(e.texts({}), e.nothing());
  EXPECT_EQ(e.texts({"", ""}), e.empty());
  const std::vector<std::string> listed = {"ab", "", "abc", "b", "ab", "ad", "\xff"};
  const Expr expr = e.texts(listed);
  for (const std::string& text : listed) EXPECT_TRUE(e.matches(expr, text)) << text;
  for (const char* other : {"a", "abcd", "ba", "c"}) EXPECT_FALSE(e.matches(expr, other)) << other;
  EXPECT_TRUE(e.matches(e.texts({std::string(1'000, 'a'), std::string(999, 'a') + "b"}), std::string(1'000, 'a')));
}

// What was made after the mark is made again as it was, so the same texts match.
TEST(Expressions, ForgetFreesWhatMatchingMade) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Expressions expressions;
    RandomExpressions random(expressions, 2'000 + seed);
    const Sample a = random.next(3);
    const Expressions::Mark mark = expressions.mark();
    const size_t size = expressions.size();
    for (int i = 0; i < 2; ++i) {
      for (const std::string& text : random.all())
        ASSERT_EQ(expressions.matches(a.expr, text), a.texts.contains(text)) << "seed " << seed << " text " << text;
      random.next(3);
      expressions.forget(mark);
      ASSERT_EQ(expressions.size(), size);
    }
  }
}

TEST(Expressions, LimitsRefuse) {
  Limits limits;
  limits.expression_nodes = 1'000;
  Expressions small(limits);
  const Expr before = small.text("ab");
  EXPECT_TRUE(small.matches(before, "ab"));
  EXPECT_THROW(small.text(std::string(500, 'a') + std::string(1'000, 'b')), Refusal);
  EXPECT_TRUE(small.matches(before, "ab"));
  limits = {};
  limits.expression_steps = 100;
  Expressions lazy(limits);
  const Expr letters = lazy.repeat(lazy.text("a"), 0, 100'000);
  EXPECT_THROW(lazy.possible(lazy.both({letters, lazy.complement(lazy.repeat(lazy.text("a"), 0, 99'999))})), Refusal);
  EXPECT_THROW(
      {
        Expr deep = lazy.text("a");
        lazy.refuel(1'000'000);
        for (int i = 0; i < 3'000; ++i) deep = lazy.complement(lazy.concat(deep, lazy.text("b")));
      },
      Refusal);
}

TEST(Expressions, LongTextsAndChainsNeedNoStack) {
  Expressions e;
  const std::string text(100'000, 'x');
  EXPECT_TRUE(e.matches(e.text(text), text));
  std::vector<Expr> parts;
  for (int i = 0; i < 300; ++i) parts.push_back(e.repeat(e.text(i % 2 == 0 ? "a" : "b"), 0, 1));
  EXPECT_TRUE(e.matches(e.concat(parts), "abab"));
}

}  // namespace
}  // namespace lfm2::grammar
