// Stop texts in bytes that come piece by piece: wherever the pieces are cut, as if the text were looked at as a whole.
#include "text/stop_text.h"

#include <gtest/gtest.h>

#include <random>

namespace lfm2::test {
namespace {

TEST(StopTextTest, AcrossPiecesAndInside) {
  StopText across({"\n\nUser:"});
  EXPECT_FALSE(across.feed("Hello\n"));
  EXPECT_EQ(across.settled(), 5);
  EXPECT_FALSE(across.feed("\nUse"));
  EXPECT_EQ(across.settled(), 5);
  EXPECT_EQ(across.feed("r: what"), 5);
  StopText inside({"b"});
  EXPECT_EQ(inside.feed("aabaa"), 2);
  StopText character({"\xc3\xa9"});  // a character in two pieces
  EXPECT_FALSE(character.feed("a\xc3"));
  EXPECT_EQ(character.feed("\xa9"), 1);
}

TEST(StopTextTest, TheFirstOfSeveral) {
  StopText both({"cd", "bcde"});
  EXPECT_EQ(both.feed("abcdef"), 1);
  StopText other({"bcde", "cd"});
  EXPECT_FALSE(other.feed("abc"));
  EXPECT_EQ(other.feed("d"), 2);  // the longer one is not complete yet
}

TEST(StopTextTest, WhatEndsTooEarlyDoesNotCount) {
  StopText stop({"ab"});
  EXPECT_FALSE(stop.feed("ab", false));
  EXPECT_EQ(stop.settled(), 2);
  EXPECT_FALSE(stop.feed("a", false));
  EXPECT_EQ(stop.feed("b"), 2);  // it began before, and ends where it may
}

TEST(StopTextTest, WithoutTextsNothingStops) {
  StopText none({});
  EXPECT_FALSE(none.feed("anything"));
  EXPECT_EQ(none.settled(), 8);
}

TEST(StopTextTest, AnyPiecesFindTheSame) {
  std::mt19937 random(1);
  const auto text_of = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (size_t count = 1 + random() % 3; stops.size() < count;) stops.push_back(text_of(2 + random() % 7));
    const std::string text = text_of(40);
    StopText stop(stops);
    for (size_t fed = 0; fed < text.size();) {
      const size_t before = fed;
      fed = std::min(text.size(), fed + random() % 6);
      std::optional<int64_t> expected;  // the first that ends in this piece
      for (const std::string& one : stops)
        for (size_t at = text.find(one); at != std::string::npos && at + one.size() <= fed; at = text.find(one, at + 1))
          if (at + one.size() > before && (!expected || static_cast<int64_t>(at) < *expected))
            expected = static_cast<int64_t>(at);
      const int64_t settled = stop.settled();
      const auto at = stop.feed(std::string_view(text).substr(before, fed - before));
      ASSERT_EQ(at, expected) << text;
      if (!at) continue;
      EXPECT_GE(*at, settled);  // what was settled stays
      ++found;
      break;
    }
  }
  EXPECT_GT(found, 500);
}

}  // namespace
}  // namespace lfm2::test
