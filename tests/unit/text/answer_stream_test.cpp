// The text that is shown while tokens come is the text of the finished completion, character by character.
#include "text/answer_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/text_model.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2::test {
namespace {

TEST(AnswerStreamTest, ShowsTheTextOfTheCompletion) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::mt19937 random(1);
  int stopped = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids;  // any tokens: special ones and parts of characters among them
    for (int i = 0; i < 30; ++i) ids.push_back(static_cast<TokenId>(random() % tokenizer.size()));
    const std::string whole = tokenizer.decode(ids, true);
    std::vector<std::string> stops;
    const auto min_tokens = static_cast<int64_t>(random() % 8);
    for (int i = 0; i < 2 && whole.size() > 20; ++i)
      stops.push_back(whole.substr(random() % (whole.size() - 8), 1 + random() % 8));
    StopText stop(stops);
    AnswerStream stream(tokenizer, stops, min_tokens);
    std::string shown;
    std::optional<int64_t> bytes;
    size_t count = 0;
    while (count < ids.size() && !bytes) {
      const TokenId id = ids[count++];
      bytes = stop.feed(tokenizer.is_special(id) ? std::string_view() : tokenizer.bytes(id),
                        static_cast<int64_t>(count) > min_tokens);
      shown += stream.feed(id);
    }
    shown += stream.flush();
    stopped += bytes ? 1 : 0;
    EXPECT_EQ(shown, text_of(tokenizer, std::span(ids).first(count), bytes));
  }
  EXPECT_GT(stopped, 200);
}

TEST(AnswerStreamTest, HoldsBackWhatMayBecomeAStopText) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto id_of = [&](char byte) { return *tokenizer.find(byte_level_character(static_cast<uint8_t>(byte))); };
  AnswerStream stream(tokenizer, {"abc"}, 0);
  EXPECT_EQ(stream.feed(id_of('x')), "x");
  EXPECT_EQ(stream.feed(id_of('a')), "");
  EXPECT_EQ(stream.feed(id_of('b')), "");
  EXPECT_EQ(stream.feed(id_of('a')), "ab");
  EXPECT_EQ(stream.feed(id_of('b')), "");
  EXPECT_EQ(stream.feed(id_of('c')), "");
  EXPECT_EQ(stream.flush(), "");
}

// Tokens without bytes come out between the bytes where they stood, and not once a stop text has begun before them.
TEST(SettledTokensTest, KeepsSpecialTokensInTheirPlaces) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto id_of = [&](char byte) { return *tokenizer.find(byte_level_character(static_cast<uint8_t>(byte))); };
  constexpr TokenId kSpecial = 4;
  const auto text_of = [&](const std::vector<SettledTokens::Piece>& pieces) {
    std::string text;
    for (const SettledTokens::Piece& piece : pieces) text += (piece.begins == kSpecial ? "|" : "") + piece.bytes;
    return text;
  };
  SettledTokens tokens(tokenizer, {"abc"}, 0);
  EXPECT_EQ(text_of(tokens.feed(kSpecial)), "|");
  EXPECT_EQ(text_of(tokens.feed(id_of('a'))), "");
  EXPECT_EQ(text_of(tokens.feed(kSpecial)), "");
  EXPECT_EQ(text_of(tokens.feed(id_of('b'))), "");
  EXPECT_EQ(text_of(tokens.feed(id_of('x'))), "a|bx");
  EXPECT_EQ(text_of(tokens.feed(id_of('a'))), "");
  EXPECT_EQ(text_of(tokens.feed(kSpecial)), "");
  EXPECT_EQ(text_of(tokens.feed(id_of('b'))), "");
  EXPECT_EQ(text_of(tokens.feed(id_of('c'))), "") << "the text has ended";
  EXPECT_EQ(text_of(tokens.flush()), "");
}

// Of a finished text the number of bytes is known: it has the same pieces as while it came.
TEST(SettledTokensTest, ATextOfSoManyBytesIsTheOneThatStopped) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i)
      ids.push_back(static_cast<TokenId>(random() % 10 == 0 ? 4 : random() % tokenizer.size()));
    const std::string whole = tokenizer.decode(ids, true);
    if (whole.size() < 8) continue;
    const std::string stop = whole.substr(random() % (whole.size() - 4), 1 + random() % 4);
    const auto bytes = static_cast<int64_t>(whole.find(stop));
    const auto all = [&](SettledTokens tokens) {
      std::vector<std::pair<TokenId, std::string>> begun;
      const auto add = [&](const std::vector<SettledTokens::Piece>& pieces) {
        for (const SettledTokens::Piece& piece : pieces) {
          if (piece.begins) begun.emplace_back(*piece.begins, "");
          begun.back().second += piece.bytes;
        }
      };
      StopText stops({stop});
      for (const TokenId id : ids) {
        add(tokens.feed(id));
        if (stops.feed(tokenizer.is_special(id) ? std::string_view() : tokenizer.bytes(id))) break;
      }
      add(tokens.flush());
      return begun;
    };
    EXPECT_EQ(all(SettledTokens(tokenizer, {}, 0, bytes)), all(SettledTokens(tokenizer, {stop}, 0)));
  }
}

}  // namespace
}  // namespace lfm2::test
