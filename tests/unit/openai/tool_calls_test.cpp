#include "openai/tool_calls.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace lfm2::serve {
namespace {

using Calls = std::vector<ToolCall>;

TEST(ToolCallsTest, AsLfm2WritesThem) {
  EXPECT_EQ(parse_tool_calls(R"([get_weather(city="Zürich", days=3, hourly=False, unit=None)])"),
            (Calls{{"get_weather", R"({"city":"Zürich","days":3,"hourly":false,"unit":null})"}}));
  EXPECT_EQ(parse_tool_calls(R"( [ a.b() , c(x=[1, -2.5, 'it\'s'], y={"k": (True,), 2: {}}) ] )"),
            (Calls{{"a.b", "{}"}, {"c", R"({"x":[1,-2.5,"it's"],"y":{"k":[true],"2":{}}})"}}));
  EXPECT_EQ(parse_tool_calls(R"(f(text="a\nb\\c", n=1e3))"), (Calls{{"f", R"({"text":"a\nb\\c","n":1000.0})"}}));
}

TEST(ToolCallsTest, EscapesArePythonsAndJsons) {
  EXPECT_EQ(parse_tool_calls(R"(f(a="Z\u00fcrich", b='caf\xe9', c='\U0001f600\ud83d\ude00', d='\0\101\7\v', e="x\
y\q"))"),
            (Calls{{"f", R"({"a":"Zürich","b":"café","c":"😀😀","d":"\u0000A\u0007\u000b","e":"xy\\q"})"}}));
  for (const char* text : {R"(f(a="\u00g0"))", R"(f(a="\ud83d"))", R"(f(a="\ude00"))", R"(f(a="\ud83d\u0041"))",
                           R"(f(a="\x4"))", R"(f(a="\U00110000"))", R"(f(a="\u00)"})
    EXPECT_EQ(parse_tool_calls(text), std::nullopt) << text;
}

TEST(ToolCallsTest, AsJson) {
  EXPECT_EQ(parse_tool_calls(R"([{"name": "f", "arguments": {"b": 1, "a": "x"}}, {"name": "g"}])"),
            (Calls{{"f", R"({"b":1,"a":"x"})"}, {"g", "{}"}}));
  EXPECT_EQ(parse_tool_calls(R"({"name": "f", "parameters": {"a": 1}})"), (Calls{{"f", R"({"a":1})"}}));
}

TEST(ToolCallsTest, WhatIsNone) {
  for (const char* text :
       {"", "[]", "hello", "f", "f(", "f(a)", "f(a=)", "f(a=b)", "f(a=1", "[f()", "f() g()", "[1, 2]", "f(a=\"x)",
        "f(a=1..2)", R"({"name": 1})", R"([{"name": "f", "arguments": []}])", "f(a=--1)"})
    EXPECT_EQ(parse_tool_calls(text), std::nullopt) << text;
  // Depth has an end.
  EXPECT_EQ(parse_tool_calls("f(a=" + std::string(100000, '[') + ")"), std::nullopt);
  EXPECT_EQ(parse_tool_calls(std::string(100000, '[')), std::nullopt);
}

}  // namespace
}  // namespace lfm2::serve
