// Whole characters from parts of them.
#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2 {
namespace {

std::string lossy(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.feed(bytes, text);
  stream.flush(text);
  return text;
}

// The cases of Rust's String::from_utf8_lossy.
TEST(Utf8StreamTest, OneReplacementForEachPartThatIsNoCharacter) {
  const std::pair<std::string, std::string> cases[] = {
      {"hello", "hello"},
      {"Hello\xC2 There\xFF Goodbye", "Hello� There� Goodbye"},
      {"Hello\xC0\x80 There\xE6\x83 Goodbye", "Hello�� There� Goodbye"},
      {"\xF5"
       "foo\xF5\x80"
       "bar",
       "�foo��bar"},
      {"\xF1"
       "foo\xF1\x80"
       "bar\xF1\x80\x80"
       "baz",
       "�foo�bar�baz"},
      {"\xF4"
       "foo\xF4\x80"
       "bar\xF4\xBF"
       "baz",
       "�foo�bar��baz"},
      {"\xF0\x80\x80\x80"
       "foo\xF0\x90\x80\x80"
       "bar",
       "����foo\U00010000bar"},
      {"\xED\xA0\x80"
       "foo\xED\xBF\xBF"
       "bar",
       "���foo���bar"},
      {"\xE4\xBD", "�"},
      {"\xF0\x9F\x98", "�"},
  };
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(lossy(bytes), expected) << testing::PrintToString(bytes);
}

TEST(Utf8StreamTest, AnyCutsGiveTheSameWholeCharacters) {
  std::mt19937 random(1);
  const std::string_view parts[] = {"a", "é", "你", "🌍", "\xff", "\xe4\xbd", "\xf0\x9f\x98", "\xc0"};
  for (int i = 0; i < 5000; ++i) {
    std::string bytes;
    for (size_t n = random() % 12; n > 0; --n) bytes += parts[random() % std::size(parts)];
    Utf8Stream stream;
    std::string text;
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), 1 + random() % 3);
      std::string part;
      stream.feed(rest.substr(0, size), part);
      EXPECT_EQ(lossy(part), part) << "a character was torn";
      text += part;
      rest.remove_prefix(size);
    }
    stream.flush(text);
    EXPECT_EQ(text, lossy(bytes));
  }
}

TEST(StreamDecoderTest, CharactersOfSeveralTokensWait) {
  const Tokenizer& tokenizer = test::small_tokenizer();
  StreamDecoder decoder(tokenizer, true);
  const TokenId first = *tokenizer.find("ð"), second = *tokenizer.find("Ł");  // the first bytes of an emoji
  EXPECT_EQ(decoder.feed(first), "");
  EXPECT_EQ(decoder.feed(second), "");
  EXPECT_EQ(decoder.feed(*tokenizer.find("<|im_end|>")), "");  // left out
  EXPECT_EQ(decoder.feed(*tokenizer.find("a")), "�a");
  EXPECT_EQ(decoder.feed(first), "");
  EXPECT_EQ(decoder.flush(), "�");
  EXPECT_EQ(decoder.flush(), "");
}

}  // namespace
}  // namespace lfm2
