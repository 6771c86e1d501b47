// The text that is shown while tokens come is the text of the finished completion, character by character.
#include "text/answer_stream.h"

#include <gtest/gtest.h>

#include <random>

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

TEST(AnswerStreamTest, HiddenBytesCountForStopTexts) {
  const Tokenizer& tokenizer = small_tokenizer();
  const auto id_of = [&](char byte) { return *tokenizer.find(byte_level_character(static_cast<uint8_t>(byte))); };
  AnswerStream apart(tokenizer, {"ac"}, 0);
  EXPECT_EQ(apart.feed(id_of('a')), "");
  EXPECT_EQ(apart.hide(id_of('b')), "a") << "no stop text any more";
  EXPECT_EQ(apart.feed(id_of('c')), "c");
  AnswerStream within(tokenizer, {"abc"}, 0);
  EXPECT_EQ(within.feed(id_of('x')), "x");
  EXPECT_EQ(within.feed(id_of('a')), "");
  EXPECT_EQ(within.hide(id_of('b')), "");
  EXPECT_EQ(within.feed(id_of('d')), "ad");
  EXPECT_EQ(within.flush(), "");
}

}  // namespace
}  // namespace lfm2::test
