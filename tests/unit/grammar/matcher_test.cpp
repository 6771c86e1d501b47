#include "grammar/matcher/matcher.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/grammar/random_grammar.h"

namespace lfm2::grammar {
namespace {

using Words = std::vector<uint32_t>;

Words mask_of(Matcher& matcher, size_t words) {
  Words mask(words, 0xffffffffu);
  matcher.mask(mask);
  return mask;
}

// What mask() should say: each token is tried.
Words tried(const Matcher& matcher, size_t tokens) {
  Words mask((tokens + 31) / 32);
  for (size_t id = 0; id < tokens; ++id) {
    Matcher copy = matcher;
    if (copy.take(static_cast<TokenId>(id))) mask[id / 32] |= 1u << (id % 32);
  }
  return mask;
}

std::vector<TokenId> ids_of(const Words& mask) {
  std::vector<TokenId> ids;
  for (size_t id = 0; id < mask.size() * 32; ++id)
    if (mask[id / 32] >> (id % 32) & 1) ids.push_back(static_cast<TokenId>(id));
  return ids;
}

std::vector<std::string> all_texts(std::string_view alphabet, size_t length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == length) break;
    for (const char c : alphabet) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(Matcher, AcceptsWhatTheGrammarHas) {
  const std::vector<std::string> texts = all_texts("abc", 5);
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a", "b", "c"});
  size_t grammars = 0, accepted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomGrammar random(seed, "abc"), same(seed, "abc");
    if (!random.finish()) continue;
    ++grammars;
    const auto grammar = std::make_shared<CompiledGrammar>(std::move(random.grammar), tokens);
    for (const std::string& text : texts) {
      Matcher matcher(grammar, {});
      const bool accepts = matcher.take_bytes(text) && matcher.may_end();
      ASSERT_EQ(accepts, same.has(text)) << "seed " << seed << ", text \"" << text << '"';
      accepted += accepts;
    }
  }
  EXPECT_GT(grammars, 100u);
  EXPECT_GT(accepted, 1000u);
}

// A text that was let through so far can always be completed.
TEST(Matcher, HasNoDeadEnds) {
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a", "b", "c"});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomGrammar random(seed, "abc");
    if (!random.finish()) continue;
    const auto grammar = std::make_shared<CompiledGrammar>(std::move(random.grammar), tokens);
    for (const std::string& text : all_texts("abc", 4)) {
      Matcher matcher(grammar, {});
      if (!matcher.take_bytes(text)) continue;
      ASSERT_TRUE(can_end(matcher)) << "seed " << seed << ", text \"" << text << '"';
    }
  }
}

// Takes random tokens and compares each mask with what a copy can take.
void check_masks(uint64_t seed, const std::shared_ptr<CompiledGrammar>& grammar, TokenId end, Random& numbers) {
  const TokenTable& tokens = grammar->tokens();
  Matcher matcher(grammar, {end});
  for (int step = 0; step < 8; ++step) {
    const Words expected = tried(matcher, tokens.size());
    for (int again = 0; again < 3; ++again)  // from the cache, too
      ASSERT_EQ(mask_of(matcher, tokens.mask_words()), expected) << "seed " << seed << ", step " << step;
    const std::vector<TokenId> allowed = ids_of(expected);
    if (allowed.empty()) break;
    ASSERT_TRUE(matcher.take(allowed[numbers(allowed.size())]));
  }
}

TEST(Matcher, MasksAreWhatCanBeTaken) {
  size_t walks = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomGrammar random(seed, "abc");
    if (!random.finish()) continue;
    Random numbers(seed + 1000);
    const auto tokens = std::make_shared<TokenTable>(random_vocabulary(numbers, 40));
    const auto grammar = std::make_shared<CompiledGrammar>(std::move(random.grammar), tokens);
    for (int walk = 0; walk < 3; ++walk) {
      try {
        check_masks(seed, grammar, 40, numbers);
        ++walks;
      } catch (const OutOfFuel&) {  // some of these grammars are ambiguous beyond measure
      }
    }
  }
  EXPECT_GT(walks, 300u);
}

TEST(Matcher, SlicesChangeNoMask) {
  const std::vector<std::string> texts = text_vocabulary();
  const auto sliced = std::make_shared<TokenTable>(texts), plain = std::make_shared<TokenTable>(texts, false);
  ASSERT_GE(sliced->slices().size(), 4u);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomGrammar first(seed, ""), second(seed, "");  // of strings, numbers and names
    if (!first.finish() || !second.finish()) continue;
    const auto one = std::make_shared<CompiledGrammar>(std::move(first.grammar), sliced);
    const auto other = std::make_shared<CompiledGrammar>(std::move(second.grammar), plain);
    Matcher with(one, {}), without(other, {});
    Random numbers(seed);
    for (int step = 0; step < 12; ++step) {
      const Words mask = mask_of(with, sliced->mask_words());
      ASSERT_EQ(mask, mask_of(without, plain->mask_words())) << "seed " << seed << ", step " << step;
      ASSERT_EQ(mask, tried(with, sliced->size())) << "seed " << seed << ", step " << step;
      const std::vector<TokenId> allowed = ids_of(mask);
      if (allowed.empty()) break;
      const TokenId token = allowed[numbers(allowed.size())];
      ASSERT_TRUE(with.take(token));
      ASSERT_TRUE(without.take(token));
    }
  }
}

TEST(Matcher, UndoRestores) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomGrammar random(seed, "abc");
    if (!random.finish()) continue;
    Random numbers(seed);
    const auto tokens = std::make_shared<TokenTable>(random_vocabulary(numbers, 40));
    const auto grammar = std::make_shared<CompiledGrammar>(std::move(random.grammar), tokens);
    Matcher matcher(grammar, {40});
    std::vector<Words> masks = {mask_of(matcher, tokens->mask_words())};
    for (int step = 0; step < 40; ++step) {
      if (numbers(3) == 0 && matcher.taken() > 0) {
        const size_t count = 1 + numbers(matcher.taken());
        matcher.undo(count);
        masks.resize(masks.size() - count);
        ASSERT_EQ(mask_of(matcher, tokens->mask_words()), masks.back());
      } else if (matcher.take(static_cast<TokenId>(numbers(41)))) {
        masks.push_back(mask_of(matcher, tokens->mask_words()));
      } else {
        ASSERT_EQ(mask_of(matcher, tokens->mask_words()), masks.back());  // a refused token changes nothing
      }
    }
  }
}

TEST(Matcher, TakesTokensById) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  const Symbol a = Symbol::text(grammar.expressions().text("a"));
  grammar.set_alternatives(start, {{Symbol::token(2), a, Symbol::token(3)}, {a, a}});
  grammar.set_start(start);
  grammar.finish();
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a", "aa", "", "", ""});
  Matcher matcher(std::make_shared<CompiledGrammar>(std::move(grammar), tokens), {4});
  EXPECT_EQ(mask_of(matcher, 1), Words{0b00111});
  EXPECT_FALSE(matcher.take(3));
  EXPECT_FALSE(matcher.take(4));
  EXPECT_FALSE(matcher.take(-1));
  EXPECT_FALSE(matcher.take(5));
  ASSERT_TRUE(matcher.take(2));
  EXPECT_EQ(mask_of(matcher, 1), Words{0b00001});
  ASSERT_TRUE(matcher.take(0));
  EXPECT_EQ(mask_of(matcher, 1), Words{0b01000});
  EXPECT_FALSE(matcher.may_end());
  ASSERT_TRUE(matcher.take(3));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_TRUE(matcher.must_end());
  EXPECT_EQ(mask_of(matcher, 1), Words{0b10000});
  ASSERT_TRUE(matcher.take(4));
  EXPECT_TRUE(matcher.ended());
  EXPECT_EQ(mask_of(matcher, 1), Words{0});
  EXPECT_FALSE(matcher.take(4));
  matcher.undo(2);
  EXPECT_FALSE(matcher.ended());
  EXPECT_EQ(mask_of(matcher, 1), Words{0b01000});
}

TEST(Matcher, MustEndWhereNothingFollows) {
  Grammar grammar;
  const RuleId start = grammar.add_rule();
  Expressions& expressions = grammar.expressions();
  grammar.set_alternatives(start, {{Symbol::text(expressions.repeat(expressions.text("a"), 1, 2))}});
  grammar.set_start(start);
  grammar.finish();
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a"});
  Matcher matcher(std::make_shared<CompiledGrammar>(std::move(grammar), tokens), {});
  EXPECT_FALSE(matcher.must_end());
  ASSERT_TRUE(matcher.take(0));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(matcher.must_end());
  ASSERT_TRUE(matcher.take(0));
  EXPECT_TRUE(matcher.must_end());
}

// The places of (a|aa|…|a^n)* grow with the text's length only to n; those of all ways to nest brackets without end.
TEST(Matcher, RunsOutOfFuelAlone) {
  Limits limits;
  limits.max_places = 100;
  Grammar grammar(limits);
  const RuleId start = grammar.add_rule(), other = grammar.add_rule();
  Expressions& expressions = grammar.expressions();
  const Symbol a = Symbol::text(expressions.text("a"));
  // After a text of n letters, each of them may or may not have opened a bracket.
  grammar.set_alternatives(start,
                           {{a, Symbol::rule(start), Symbol::text(expressions.text(")"))}, {Symbol::rule(other)}});
  grammar.set_alternatives(other, {{a, Symbol::rule(start)}, {Symbol::text(expressions.text("b"))}});
  grammar.set_start(start);
  grammar.finish();
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a", "b"});
  const auto compiled = std::make_shared<CompiledGrammar>(std::move(grammar), tokens);
  Matcher matcher(compiled, {}), beside(compiled, {});
  size_t taken = 0;
  EXPECT_THROW(while (matcher.take(0)) ASSERT_LT(++taken, 1000u), OutOfFuel);
  EXPECT_EQ(matcher.taken(), taken);
  EXPECT_TRUE(beside.take(0));
  EXPECT_TRUE(matcher.take(1));  // where it was, it may go on elsewhere
}

// [ab]*a[ab]{12} has 2^12 states; a text meets few of them, all texts together more than fit.
TEST(Matcher, OtherTextsDoNotFillItsMemory) {
  Limits limits;
  limits.expression_nodes = 2'000;
  Grammar grammar(limits);
  const RuleId start = grammar.add_rule();
  Expressions& e = grammar.expressions();
  const Expr letter = e.bytes(ByteSet().set('a').set('b'));
  grammar.set_alternatives(start,
                           {{Symbol::text(e.concat({e.repeat(letter, 0), e.text("a"), e.repeat(letter, 12, 12)}))}});
  grammar.set_start(start);
  grammar.finish();
  const auto tokens = std::make_shared<TokenTable>(std::vector<std::string>{"a", "b"});
  const auto compiled = std::make_shared<CompiledGrammar>(std::move(grammar), tokens);
  Random numbers(1);
  Matcher long_lived(compiled, {});
  for (int text = 0; text < 400; ++text) {
    Matcher matcher(compiled, {});
    std::string letters;
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(mask_of(matcher, 1), Words{0b11});
      const auto token = static_cast<TokenId>(numbers(2));
      letters += token == 0 ? 'a' : 'b';
      ASSERT_TRUE(matcher.take(token));
    }
    ASSERT_EQ(matcher.may_end(), letters[letters.size() - 13] == 'a') << letters;
    ASSERT_TRUE(long_lived.take(1));
  }
  EXPECT_FALSE(long_lived.may_end());
}

// A call that runs out of work leaves nothing half done, so the next one says the same.
TEST(Matcher, AFailureLeavesNoTrace) {
  Limits limits;
  limits.mask_steps = 3'000;
  Grammar grammar(limits);
  const RuleId start = grammar.add_rule();
  Expressions& e = grammar.expressions();
  const Expr letter = e.bytes(ByteSet().set('a').set('b'));
  const Expr far = e.concat({e.text("a"), e.repeat(letter, 0), e.text("a"), e.repeat(letter, 9, 9), e.text("b")});
  const Expr other = e.concat({e.repeat(letter, 0), e.text("b"), e.repeat(letter, 7, 7), e.text("b")});
  grammar.set_alternatives(start, {{Symbol::text(e.either({e.text("bb"), e.both({far, e.complement(other)})}))}});
  grammar.set_start(start);
  grammar.finish();
  std::vector<std::string> texts = {"a", "b"};
  for (uint32_t bits = 0; bits < 4'096; ++bits) {
    texts.emplace_back("a");
    for (uint32_t i = 0; i < 12; ++i) texts.back() += bits >> i & 1 ? 'a' : 'b';
  }
  const auto tokens = std::make_shared<TokenTable>(texts, false);
  const auto compiled = std::make_shared<CompiledGrammar>(std::move(grammar), tokens);
  Words words(tokens->mask_words());
  for (int i = 0; i < 3; ++i) {
    Matcher matcher(compiled, {});
    EXPECT_THROW(matcher.mask(words), OutOfFuel) << i;
    EXPECT_TRUE(matcher.take(1));
    EXPECT_EQ(ids_of(mask_of(matcher, words.size())), std::vector<TokenId>{1});
  }
}

TEST(Matcher, ManyThreadsShareAGrammar) {
  RandomGrammar random(3, "abc");
  ASSERT_TRUE(random.finish());
  Random numbers(1);
  const auto tokens = std::make_shared<TokenTable>(random_vocabulary(numbers, 40));
  const auto grammar = std::make_shared<CompiledGrammar>(std::move(random.grammar), tokens);
  const auto run = [&](uint64_t seed) {
    Random own(seed);
    std::vector<Words> masks;
    Matcher matcher(grammar, {40});
    for (int step = 0; step < 200; ++step) {
      if (matcher.taken() > 10) matcher.undo(own(10));
      matcher.take(static_cast<TokenId>(own(41)));
      masks.push_back(mask_of(matcher, tokens->mask_words()));
    }
    return masks;
  };
  std::vector<std::vector<Words>> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) threads.emplace_back([&, i] { results[i] = run(i / 2); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[2], results[3]);
  EXPECT_EQ(results[0], run(0));
}

}  // namespace
}  // namespace lfm2::grammar
