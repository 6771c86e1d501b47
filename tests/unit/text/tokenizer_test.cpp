// The tokenizer against what `tokenizers` gave (tests/reference/tokenizer_golden.py), and what holds for any text.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <time.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "base/utf8.h"
#include "text/stream_decoder.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2 {
namespace {

using test::encode;
using test::parse_tokenizer;
using test::small_tokenizer;
using test::small_tokenizer_json;

const Json& golden() {
  static const Json json = Json::parse(test::read_bytes(std::filesystem::path(LFM2_GOLDEN_DIR) / "text/cases.json"));
  return json;
}

// The small tokenizer with one more added token.
Tokenizer with_added(const Json& token) {
  Json json = small_tokenizer_json();
  Json& tokens = json["added_tokens"];
  Json added = tokens.back();
  int64_t last = 0;
  for (const auto& [text, id] : json["model"]["vocab"].items()) last = std::max(last, id.get<int64_t>());
  for (const Json& other : tokens) last = std::max(last, other["id"].get<int64_t>());
  added.update({{"id", last + 1}, {"special", false}, {"normalized", false}, {"lstrip", false}, {"rstrip", false}});
  added.update({{"single_word", false}});
  added.update(token);
  tokens.push_back(added);
  return parse_tokenizer(json);
}

TEST(TokenizerTest, IdsAreThoseOfTokenizers) {
  size_t compared = 0;
  for (const Json& variant : golden()["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    Json json = small_tokenizer_json();
    json.merge_patch(variant["patch"]);
    for (const char* field : {"normalizer", "post_processor"})
      if (!json.contains(field)) json[field] = nullptr;
    const Tokenizer tokenizer = parse_tokenizer(json);
    for (const Json& one : variant["cases"]) {
      EXPECT_EQ(encode(tokenizer, one[0].get<std::string>(), true), one[1].get<std::vector<TokenId>>()) << one[0];
      ++compared;
    }
  }
  EXPECT_GT(compared, 3000u);
}

TEST(TokenizerTest, EveryCodePoint) {
  const Json& hashes = golden()["points"];
  ASSERT_EQ(hashes.size(), 0x110000u / 4096);
  const auto scratch = small_tokenizer().make_scratch();
  std::vector<TokenId> ids;
  std::string text;
  for (uint32_t block = 0; block < hashes.size(); ++block) {
    uint64_t hash = 0xcbf29ce484222325;
    for (uint32_t point = block * 4096; point < (block + 1) * 4096; ++point) {
      if (point >= 0xd800 && point < 0xe000) continue;
      text.clear();
      for (const char c : std::string_view("a*b * 1*'*\n**  *"))
        if (c == '*')
          append_utf8(text, point);
        else
          text += c;
      ids.clear();
      small_tokenizer().encode(text, false, ids, *scratch);
      for (const TokenId id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 0x100000001b3;
    }
    EXPECT_EQ(fmt::format("{:016x}", hash), hashes[block].get<std::string>()) << "from U+" << std::hex << block * 4096;
  }
}

TEST(TokenizerTest, TextsAreThoseOfTokenizers) {
  for (const Json& one : golden()["texts"]) {
    const auto ids = one[0].get<std::vector<TokenId>>();
    for (const bool skip : {false, true}) {
      StreamDecoder decoder(small_tokenizer(), skip);
      std::string text;
      for (const TokenId id : ids) text += decoder.feed(id);
      text += decoder.flush();
      EXPECT_EQ(text, one[skip ? 2 : 1].get<std::string>()) << one[0];
    }
  }
}

TEST(TokenizerTest, AnyBytesComeBack) {
  std::mt19937 random(1);
  const std::string_view parts[] = {"é",    "你好", "\xf0\x9f",     "\x8c\x8d", "\xff",
                                    "\xc3", "\xa9", "\xed\xa0\x80", " ",        "\n"};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) {
      switch (random() % 4) {
        case 0:
          text += static_cast<char>(random());
          break;
        case 1:
          text += static_cast<char>('a' + random() % 26);
          break;
        case 2:
          text += parts[random() % std::size(parts)];
          break;
        default:
          text += small_tokenizer().bytes(static_cast<TokenId>(random() % small_tokenizer().size()));
          break;
      }
    }
    // <mask> and <sep> take whitespace with them.
    if (text.find("<mask>") != std::string::npos || text.find("<sep>") != std::string::npos) continue;
    const std::vector<TokenId> ids = encode(small_tokenizer(), text);
    ASSERT_EQ(small_tokenizer().decode(ids, false), text) << testing::PrintToString(text);
  }
}

TEST(TokenizerTest, BytesThatAreNotUtf8ArePiecesOfTheirOwn) {
  // Two halves of é: what stands before and behind is encoded as if it were alone.
  const Tokenizer& tokenizer = small_tokenizer();
  for (const std::string bad : {"\xff", "\xc3", "\xa9\xa9", "\xed\xa0\x80", "\xf4\x90"}) {
    std::vector<TokenId> expected = encode(tokenizer, "hello  ");
    for (const auto& more : {encode(tokenizer, bad), encode(tokenizer, "world")})
      expected.insert(expected.end(), more.begin(), more.end());
    EXPECT_EQ(encode(tokenizer, "hello  " + bad + "world"), expected);
  }
}

TEST(TokenizerTest, LookUps) {
  const Tokenizer& tokenizer = small_tokenizer();
  EXPECT_TRUE(tokenizer.is_special(*tokenizer.find("<|im_end|>")));
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.find("python")));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(1 << 30));
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.bytes(*tokenizer.find("Ġthe")), " the");
  EXPECT_EQ(tokenizer.bytes(-1), "");
  EXPECT_EQ(tokenizer.bytes(static_cast<TokenId>(tokenizer.size())), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{1 << 30, -5, *tokenizer.find("a")}, false), "a");
}

TEST(TokenizerTest, AppendsAndBos) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::vector<TokenId> ids = {7};
  tokenizer.encode("a", true, ids);
  tokenizer.encode("", true, ids);
  const TokenId bos = *tokenizer.find("<|startoftext|>");
  EXPECT_EQ(ids, (std::vector<TokenId>{7, bos, *tokenizer.find("a"), bos}));
}

TEST(TokenizerTest, ManyThreadsAtOnce) {
  const Json& cases = golden()["variants"][0]["cases"];
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (const Json& one : cases)
        if (encode(small_tokenizer(), one[0].get<std::string>(), true) != one[1].get<std::vector<TokenId>>()) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Long texts of one kind: the ids of the whole come back as the text, and four times the text takes no more than some
// eight times as long, where a quadratic step would take sixteen times.
TEST(TokenizerTest, HostileTextsTakeLinearTime) {
  std::mt19937 random(2);
  std::string word;
  for (int i = 0; i < 1 << 20; ++i) word += static_cast<char>('a' + random() % 26);
  const auto repeated = [](std::string_view part) {
    std::string text;
    while (text.size() < 1 << 20) text += part;
    return text;
  };
  const std::string texts[] = {word,           repeated("a"),    repeated(" "),         repeated("1234567890"),
                               repeated("日"), repeated("\n "),  repeated("<|im_"),     repeated("aabaa"),
                               repeated("'"),  repeated("\xff"), repeated(" \t") + "x", repeated("tensor_")};
  const auto scratch = small_tokenizer().make_scratch();
  const auto now = [] {  // of this thread alone: the machine may be busy
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const auto seconds = [&](std::string_view text) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      std::vector<TokenId> ids;
      const double begin = now();
      small_tokenizer().encode(text, false, ids, *scratch);
      best = std::min(best, now() - begin);
      EXPECT_EQ(small_tokenizer().decode(ids, false), text);
    }
    return best;
  };
  for (const std::string& text : texts) {
    const double quarter = seconds(std::string_view(text).substr(0, text.size() / 4)), whole = seconds(text);
    EXPECT_LT(whole, 10 * quarter + 0.02) << text.substr(0, 20);
  }
}

TEST(TokenizerTest, PatternsThatGoBackTooOftenAreStopped) {
  Json json = small_tokenizer_json();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+b|a";
  const Tokenizer tokenizer = parse_tokenizer(json);
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "aaab"), false), "aaab");
  try {
    encode(tokenizer, std::string(2000, 'a'));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("(?:a+)+b|a"), std::string::npos) << error.what();
  }
}

// A pattern that looks ahead over all the rest at each place, and added tokens that stand in one another.
TEST(TokenizerTest, FilesThatTakeTooLongForATextAreStopped) {
  const auto refused = [](const Tokenizer& tokenizer, const std::string& text, std::string_view part) {
    try {
      encode(tokenizer, text);
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  for (const char* expression : {"a*c|a", "(?=a*c)a|a"}) {
    Json json = small_tokenizer_json();
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression;
    refused(parse_tokenizer(json), std::string(200'000, 'a'),
            fmt::format("the pattern {} takes more than", expression));
  }
  refused(with_added({{"content", std::string(1000, 'a') + "b"}}), std::string(200'000, 'a'),
          "the search for added tokens takes more than");
}

// Whitespace on either side of each is walked over once.
TEST(TokenizerTest, AddedTokensOfWhitespace) {
  const std::string tabs(500'000, '\t');
  for (const auto& [left, right] : {std::pair{true, false}, {false, true}, {true, true}}) {
    const Tokenizer tokenizer = with_added({{"content", "\t"}, {"lstrip", left}, {"rstrip", right}});
    const TokenId tab = *tokenizer.find("\t"), x = *tokenizer.find("x");
    EXPECT_EQ(encode(tokenizer, tabs), std::vector<TokenId>(tabs.size(), tab));
    EXPECT_EQ(encode(tokenizer, "\t\tx\t"), (std::vector<TokenId>{tab, tab, x, tab}));
  }
}

// How far a match has to look changes nothing of what it finds.
TEST(TokenizerTest, MatchesOfAnyLength) {
  Json json = small_tokenizer_json();
  const auto with = [&](const char* expression) {
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression;
    return parse_tokenizer(json);
  };
  const Tokenizer greedy = with("a*c|a"), ahead = with("(?=a*c)a+|a"), whole = with("[^z]+");
  const TokenId a = *whole.find("a");
  for (const size_t length : {1, 254, 255, 256, 257, 511, 512, 513, 1024, 2000}) {
    const std::string run(length, 'a');
    EXPECT_EQ(encode(greedy, run + "c"), encode(whole, run + "c")) << length;
    EXPECT_EQ(encode(greedy, run), std::vector<TokenId>(length, a)) << length;
    std::vector<TokenId> expected = encode(whole, run);
    expected.push_back(*whole.find("c"));
    EXPECT_EQ(encode(ahead, run + "c"), expected) << length;
    EXPECT_EQ(encode(ahead, run), std::vector<TokenId>(length, a)) << length;
  }
}

TEST(TokenizerTest, StopsWhenAskedTo) {
  std::atomic<bool> stop = false;
  std::vector<TokenId> ids;
  small_tokenizer().encode("hello", false, ids, &stop);
  stop = true;
  try {
    small_tokenizer().encode("hello", false, ids, &stop);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStopped);
  }
}

}  // namespace
}  // namespace lfm2
