#include "grammar/expression/text_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace lfm2::grammar {
namespace {

constexpr Spelling kSpellings[] = {Spelling::kRaw, Spelling::kJson, Spelling::kPythonSingle, Spelling::kPythonDouble};
// One of each kind: plain, quoted, escaped by a letter and by digits, of two, three and four bytes.
constexpr std::u32string_view kAlphabet = U"a\"'\\\n\x01\u00e9\u20ac\U0001f600";
constexpr size_t kMaxCodePoints = 3;

using Texts = std::set<std::u32string>;

Texts all_code_point_texts() {
  Texts all{U""};
  for (size_t i = 0; i < kMaxCodePoints; ++i) {
    Texts longer = all;
    for (const std::u32string& text : all)
      for (const char32_t point : kAlphabet)
        if (text.size() < kMaxCodePoints) longer.insert(text + point);
    all = std::move(longer);
  }
  return all;
}

Texts joined(const Texts& first, const Texts& second) {
  Texts result;
  for (const std::u32string& a : first)
    for (const std::u32string& b : second)
      if (a.size() + b.size() <= kMaxCodePoints) result.insert(a + b);
  return result;
}

struct SampleSet {
  TextSet set;
  Texts texts;
};

class RandomSets {
 public:
  explicit RandomSets(uint32_t seed) : random_(seed), all_(all_code_point_texts()) {}

  SampleSet next(int depth) {
    switch (depth == 0 ? below(3) : below(10)) {
      case 0:
        return {any_text(), all_};
      case 1: {
        const std::u32string text(1 + below(2), kAlphabet[below(kAlphabet.size())]);
        return {grammar::text(std::u32string_view(text)), {text}};
      }
      case 2: {
        CodePointSet set;
        Texts texts;
        for (const char32_t point : std::set<char32_t>(kAlphabet.begin(), kAlphabet.end()))
          if (below(2) == 0) set.push_back({point, point}), texts.insert(std::u32string(1, point));
        return {one_of(set), texts};
      }
      case 3:
      case 4: {
        const SampleSet a = next(depth - 1), b = next(depth - 1);
        return {concat({a.set, b.set}), joined(a.texts, b.texts)};
      }
      case 5:
      case 6: {
        const SampleSet a = next(depth - 1), b = next(depth - 1);
        Texts texts = a.texts;
        texts.insert(b.texts.begin(), b.texts.end());
        return {either({a.set, b.set}), texts};
      }
      case 7: {
        const SampleSet a = next(depth - 1), b = next(depth - 1);
        Texts texts;
        for (const std::u32string& text : a.texts)
          if (b.texts.contains(text)) texts.insert(text);
        return {both({a.set, b.set}), texts};
      }
      case 8: {
        const SampleSet a = next(depth - 1);
        Texts texts;
        for (const std::u32string& text : all_)
          if (!a.texts.contains(text)) texts.insert(text);
        return {complement(a.set), texts};
      }
      default: {
        const SampleSet a = next(depth - 1);
        const uint32_t min = below(3), max = below(3) == 0 ? kNoMax : min + below(3);
        Texts power{U""}, texts;
        for (uint32_t i = 0; i <= std::min<uint32_t>(max, min + 4); ++i) {
          if (i >= min) texts.insert(power.begin(), power.end());
          power = joined(power, a.texts);
        }
        return {repeat(a.set, min, max), texts};
      }
    }
  }
  uint32_t below(size_t end) { return static_cast<uint32_t>(random_() % end); }
  const Texts& all() const { return all_; }

 private:
  std::mt19937 random_;
  Texts all_;
};

TEST(TextSet, RandomOnesHaveTheirTextsInEverySpelling) {
  for (uint32_t seed = 0; seed < 80; ++seed) {
    RandomSets random(seed);
    const SampleSet sample = random.next(3);
    Expressions expressions;  // of all spellings at once, as a list of calls has both quotes
    for (const Spelling spelling : kSpellings) {
      const Expr expr = lower(sample.set, spelling, expressions);
      for (const std::u32string& text : random.all())
        ASSERT_EQ(expressions.matches(expr, spell(text, spelling)), sample.texts.contains(text))
            << "seed " << seed << " text " << spell(text, Spelling::kJson);
      const Expr none = expressions.complement(lower(any_text(), spelling, expressions));
      ASSERT_FALSE(expressions.possible(expressions.both({expr, none}))) << seed;
    }
  }
}

TEST(TextSet, ASpellingIsWhatTheHeaderSays) {
  EXPECT_EQ(spell("\"'\\/\b\f\n\r\t\x01\x1f\x7f\u00e9", Spelling::kJson),
            "\\\"'\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u00e9");
  EXPECT_EQ(spell("\"'\\\n", Spelling::kPythonSingle), "\"\\'\\\\\\n");
  EXPECT_EQ(spell("\"'\\\n", Spelling::kPythonDouble), "\\\"'\\\\\\n");
  EXPECT_EQ(spell("\"'\\\n", Spelling::kRaw), "\"'\\\n");
}

TEST(TextSet, BytesAreUtf8AndSpellingsAreUnique) {
  Expressions e;
  const Expr any = lower(any_text(), Spelling::kJson, e);
  for (const char* valid : {"", "abc", "\u00e9\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff", "\\u001f\\n\\\\"})
    EXPECT_TRUE(e.matches(any, valid)) << valid;
  for (const char* invalid : {"\x80",
                              "\xc0\x80",
                              "\xc1\xbf",
                              "\xe0\x9f\xbf",
                              "\xed\xa0\x80",
                              "\xed\xbf\xbf",
                              "\xf0\x8f\xbf\xbf",
                              "\xf4\x90\x80\x80",
                              "\xf5\x80\x80\x80",
                              "\xff",
                              "\xc3",
                              "\n",
                              "\"",
                              "\\",
                              "\\/",
                              "\\u000a",
                              "\\u001F",
                              "\\u0041",
                              "\\ud83d\\ude00",
                              "\\x"})
    EXPECT_FALSE(e.matches(any, invalid)) << invalid;
  for (uint32_t point = 0; point <= kMaxCodePoint; point += point < 0x3000 ? 1 : 97) {
    if (point >= 0xd800 && point <= 0xdfff) continue;
    const char32_t character = point;
    ASSERT_TRUE(e.matches(any, spell({&character, 1}, Spelling::kJson))) << point;
  }
}

TEST(TextSet, RangesEndWhereTheyShould) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const uint32_t limit = i % 2 == 0 ? 0x3000 : kMaxCodePoint;
    auto first = static_cast<uint32_t>(random() % limit), last = static_cast<uint32_t>(random() % limit);
    if (first > last) std::swap(first, last);
    Expressions e;
    const Expr expr = lower(one_of({{first, last}}), Spelling::kJson, e);
    for (const int64_t edge : {int64_t{first}, int64_t{last}})
      for (int64_t point = std::max<int64_t>(edge - 70, 0); point <= std::min<int64_t>(edge + 70, kMaxCodePoint);
           ++point) {
        if (point >= 0xd800 && point <= 0xdfff) continue;
        const auto character = static_cast<char32_t>(point);
        ASSERT_EQ(e.matches(expr, spell({&character, 1}, Spelling::kJson)), first <= point && point <= last) << point;
      }
  }
}

TEST(TextSet, LengthsCountCodePoints) {
  Expressions e;
  const Expr two = lower(length(2, 2), Spelling::kJson, e);
  for (const char* text : {"ab", "\u00e9\u20ac", "\U0001f600\\n", "\\\"\\u0000"})
    EXPECT_TRUE(e.matches(two, text)) << text;
  for (const char* text : {"a", "abc", "\\n", "\U0001f600"}) EXPECT_FALSE(e.matches(two, text)) << text;
  EXPECT_EQ(lower(both({length(2), length(0, 4)}), Spelling::kJson, e), lower(length(2, 4), Spelling::kJson, e));
}

TEST(TextSet, AFoundTextLeavesAnythingBehind) {
  Expressions e;
  const Expr any = lower(any_text(), Spelling::kJson, e);
  const Expr found = lower(concat({any_text(), text("b\u00e9"), any_text()}), Spelling::kJson, e);
  EXPECT_EQ(e.derivative(found, "ab\u00e9"), any);
  EXPECT_EQ(e.derivative(found, "b\u00e9x\xc3"), e.derivative(any, "\xc3"));
  const Expr lost = lower(complement(concat({any_text(), text("b\u00e9"), any_text()})), Spelling::kJson, e);
  EXPECT_FALSE(e.possible(e.derivative(lost, "ab\u00e9")));
  // All keys but two: after a letter that begins neither, any text.
  const Expr keys = lower(complement(either({text("id"), text("name")})), Spelling::kJson, e);
  EXPECT_EQ(e.derivative(keys, "x"), any);
  EXPECT_FALSE(e.matches(keys, "id"));
  EXPECT_TRUE(e.matches(keys, "ida"));
}

TEST(TextSet, WhatIsNoTextIsRefused) {
  EXPECT_THROW(text("\xff"), Refusal);
  EXPECT_THROW(
      {
        TextSet deep = text("a");
        for (int i = 0; i < 3'000; ++i) deep = complement(concat({deep, any_text()}));
      },
      Refusal);
}

}  // namespace
}  // namespace lfm2::grammar
