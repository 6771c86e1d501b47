// Thoughts apart from answers, however the text comes.
#include "openai/answer/thought_reader.h"

#include <gtest/gtest.h>

namespace lfm2 {
namespace {

using Kind = ThoughtReader::Kind;

struct Split {
  std::string thought, answer, all;
  bool operator==(const Split&) const = default;
};

Split split(std::string_view text, bool in_thought, size_t piece) {
  ThoughtReader reader(in_thought);
  Split split;
  const auto add = [&](const std::vector<ThoughtReader::Piece>& pieces) {
    for (const auto& [kind, bytes] : pieces) {
      split.all += bytes;
      if (kind == Kind::kThought) split.thought += bytes;
      if (kind == Kind::kAnswer) split.answer += bytes;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) add(reader.feed(text.substr(at, piece)));
  add(reader.flush());
  EXPECT_EQ(split.all, text) << "nothing is lost";
  return split;
}

TEST(ThoughtReaderTest, EveryCutIsTheSame) {
  for (const char* text :
       {"<think>a</think>b", " \n<think>a</think></think>b", "<thin", "<think>a</thin", "a<think>b</think>",
        "</think>b", "a", "", " ", "<think>", "<think><think>a<</think>b", "<<think>a</think>b", "<think>a</</think>"})
    for (const bool in_thought : {false, true})
      for (size_t piece = 2; piece < 20; ++piece)
        EXPECT_EQ(split(text, in_thought, piece), split(text, in_thought, 1)) << text << piece;
}

TEST(ThoughtReaderTest, WhatIsHeldBack) {
  ThoughtReader reader(false);
  EXPECT_TRUE(reader.feed("\n<thi").empty());
  EXPECT_FALSE(reader.thought());
  EXPECT_EQ(reader.feed("nk>so </th").at(1).bytes, "so ");
  EXPECT_TRUE(reader.thinks());
  EXPECT_EQ(reader.feed("us").front().bytes, "</thus");
  EXPECT_FALSE(reader.in_answer());
  reader.feed("</think>");
  EXPECT_TRUE(reader.in_answer());
  EXPECT_TRUE(reader.thought());
}

TEST(ThoughtReaderTest, SpecialTokens) {
  ThoughtReader reader(false);
  EXPECT_TRUE(reader.feed(" ").empty());
  EXPECT_EQ(reader.begin_tag().front().bytes, " <think>");
  EXPECT_EQ(reader.feed("a<").front().bytes, "a");
  const auto pieces = reader.end_tag();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].bytes, "<");
  EXPECT_EQ(pieces[0].kind, Kind::kThought);
  EXPECT_EQ(pieces[1].kind, Kind::kTag);
  EXPECT_EQ(reader.begin_tag().front().kind, Kind::kAnswer) << "one that comes later is text";
}

TEST(ThoughtReaderTest, PromptsThatEndInAThought) {
  for (const char* text : {"<think>", "x<think>\n", "</think><think> \n"}) EXPECT_TRUE(ends_in_thought(text)) << text;
  for (const char* text : {"", " ", "<think>x", "<think>\n\n</think>\n\n", "think>"})
    EXPECT_FALSE(ends_in_thought(text)) << text;
}

}  // namespace
}  // namespace lfm2
