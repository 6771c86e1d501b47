// What untrusted JSON must not be able to do.
#include "base/json/json.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include "base/json/large_json.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;

TEST(JsonTest, ReadsOrdinaryText) {
  const Json json = parse_json(R"({"a": [1, {"b": null}], "c": "é"})", "x.json");
  EXPECT_EQ(json["a"][0], 1);
  EXPECT_EQ(json["c"], "é");
}

TEST(JsonTest, AcceptsEqualKeysInDifferentObjects) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"k": 1}, "b": {"k": 1}, "k": [{"k": 1}, {"k": 1}]})", "x.json"));
}

TEST(JsonTest, RefusesBadText) {
  struct Case {
    std::string text, part;
  };
  const std::vector<Case> cases = {
      {R"({"a": 1, "a": 2})", "\"a\" stands twice"},
      {R"({"x": {"a": 1, "b": 2, "a": 3}})", "\"a\" stands twice"},
      {R"({"a": 1, "\u0061": 2})", "stands twice"},
      {std::string(17, '[') + std::string(17, ']'), "deeper than 16"},
      {std::string(1000000, '['), "deeper than 16"},
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"{} {}", "not valid JSON"},
      {R"({"a": 1,})", "not valid JSON"},
      {R"({"a": NaN})", "not valid JSON"},
      {R"({"a": 1e999})", "not valid JSON"},
      {"{\"a\": \"\xff\xfe\"}", "not valid JSON"},
      {std::string("{}\0{\"a\": 1}", 11), "NUL"},
      {"{\"a\":\n\n\"" + std::string(100000, 'x'), "not valid JSON"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text.substr(0, 40));
    expect_error([&] { parse_json(c.text, "x.json"); }, ExitCode::kData, {"x.json", c.part});
  }
}

TEST(JsonTest, SixteenLevelsAreEnough) {
  EXPECT_NO_THROW(parse_json(std::string(16, '[') + std::string(16, ']'), "x.json"));
}

TEST(JsonTest, OrderedTextKeepsOrderAndDigits) {
  const OrderedJson json = parse_ordered_json(R"({"z": 1, "a": [{"y": -2, "b": {}}, [], 1.5, true, null, "é"]})", "x");
  EXPECT_EQ(json.dump(), R"({"z":1,"a":[{"y":-2,"b":{}},[],1.5,true,null,"é"]})");
  EXPECT_EQ(parse_ordered_json("18446744073709551615", "x").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(parse_ordered_json("-9223372036854775808", "x").get<int64_t>(), INT64_MIN);
  EXPECT_TRUE(parse_ordered_json("1e30", "x").is_number_float());
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(parse_ordered_json(nested(kMaxConversationDepth), "x"));
  const std::vector<std::pair<std::string, std::string>> bad = {{nested(kMaxConversationDepth + 1), "nested deeper"},
                                                                {R"({"a": 1, "b": {}, "a": 2})", "\"a\" stands twice"},
                                                                {"18446744073709551616", "more than 64 bits"},
                                                                {"[1, -9223372036854775809]", "more than 64 bits"},
                                                                {"{\"a\":", "not valid JSON"},
                                                                {"1 2", "not valid JSON"},
                                                                {"1e999", "not valid JSON"},
                                                                {"\"\xff\"", "not valid JSON"},
                                                                {std::string("1\0", 2), "NUL"},
                                                                {"", "not valid JSON"}};
  for (const auto& [text, part] : bad) {
    SCOPED_TRACE(text.substr(0, 40));
    expect_error([&] { parse_ordered_json(text, "x.json"); }, ExitCode::kData, {"x.json", part});
  }
}

// Looking for each key among all before it would take an hour.
TEST(JsonTest, OfRepeatedKeysTheLaterValueCountsWhereItMay) {
  const auto read = [](std::string_view text) {
    return parse_ordered_json(text, "text", LargeIntegers::kRefused, RepeatedKeys::kLastCounts).dump();
  };
  EXPECT_EQ(read(R"({"a": {"b": [1]}, "c": 2, "a": {"d": 3, "d": {}, "e": 4}, "f": 5})"),
            R"({"a":{"d":{},"e":4},"c":2,"f":5})");
  EXPECT_EQ(read(R"([{"a": 1, "a": [2], "a": 3}, {"a": 4}])"), R"([{"a":3},{"a":4}])");
}

TEST(JsonTest, OrderedTextWithManyKeysTakesLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 500'000; ++i) text += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", i, i);
  EXPECT_EQ(parse_ordered_json(text + "}", "x").size(), 500'000u);
}

TEST(JsonTest, UnsignedKeepsToItsLimit) {
  EXPECT_EQ(json_unsigned(Json(7u), 7, "x.json", "k"), 7u);
  EXPECT_EQ(json_unsigned(Json(UINT64_MAX), UINT64_MAX, "x.json", "k"), UINT64_MAX);
  const std::vector<Json> bad = {Json(8u), Json(-1), Json(1.0), Json("7"), Json(true), Json(nullptr), Json::array()};
  for (const Json& value : bad) {
    SCOPED_TRACE(value.dump());
    expect_error([&] { json_unsigned(value, 7, "x.json", "k"); }, ExitCode::kData, {"x.json", "\"k\"", "0 to 7"});
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)  // they take no such limit
TEST(JsonTest, LargeValuesAreLetGoWhereNoMemoryIsLeft) {
  const auto limit = [](rlim_t bytes) {
    const rlimit most{bytes, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &most), 0);
  };
  std::string text = "[[1";
  while (text.size() < (8 << 20)) text += ",1";
  const auto let_go = [&](std::string_view end) {
    LargeJson json = parse_large_json(text + std::string(end), "x");
    limit(0);
    json.reset();
    std::_Exit(0);
  };
  EXPECT_EXIT(let_go("]]"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(let_go("],{\"a\":[],\"b\":{}}]"), testing::ExitedWithCode(0), "");
  // What was parsed so far is let go as well.
  const auto parse = [&] {
    std::ifstream status("/proc/self/statm");
    rlim_t pages = 0;
    status >> pages;
    limit(pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (72 << 20));
    try {
      parse_large_json(text, "x");
    } catch (const std::bad_alloc&) {
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(parse(), testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace lfm2
