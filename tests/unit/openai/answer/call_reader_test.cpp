// Calls out of the text between the tokens that begin and end them.
#include "openai/answer/call_reader.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace lfm2 {
namespace {

using Calls = std::vector<ToolCall>;
using Parts = std::vector<CallPart>;

Parts read(std::string_view text, size_t piece, bool cut = false) {
  CallReader reader;
  Parts parts;
  for (size_t at = 0; at < text.size(); at += piece)
    for (CallPart& part : reader.feed(text.substr(at, piece))) parts.push_back(std::move(part));
  for (CallPart& part : reader.end(cut)) parts.push_back(std::move(part));
  EXPECT_EQ(reader.text(), text);
  return parts;
}

// The same however the text comes.
Parts parts_of(std::string_view text, bool cut = false) {
  Parts parts = read(text, std::max<size_t>(1, text.size()), cut);
  for (const size_t piece : {1, 2, 3, 7}) EXPECT_EQ(read(text, piece, cut), parts) << text;
  return parts;
}

// Nothing where a part is no call.
std::optional<Calls> calls_of(std::string_view text) {
  Calls calls;
  for (const CallPart& part : parts_of(text)) {
    if (std::holds_alternative<std::string>(part)) {
      EXPECT_EQ(parts_of(text), (Parts{std::string(text)})) << "all of the text";
      return {};
    }
    calls.push_back(std::get<ToolCall>(part));
  }
  return calls.empty() ? std::nullopt : std::optional(calls);
}

TEST(CallReaderTest, AsLfm2WritesThem) {
  EXPECT_EQ(calls_of(R"([get_weather(city="Zürich", days=3, hourly=False, unit=None)])"),
            (Calls{{"get_weather", R"({"city":"Zürich","days":3,"hourly":false,"unit":null})"}}));
  EXPECT_EQ(calls_of(R"( [ a.b() , c(x=[1, -2.5, 'it\'s'], y={"k": (True,), 2: {}}) ] )"),
            (Calls{{"a.b", "{}"}, {"c", R"({"x":[1,-2.5,"it's"],"y":{"k":[true],"2":{}}})"}}));
  EXPECT_EQ(calls_of(R"(f(text="a\nb\\c", n=1e3))"), (Calls{{"f", R"({"text":"a\nb\\c","n":1000.0})"}}));
  EXPECT_EQ(calls_of("[c(a=1, # one\n b=2)]"), (Calls{{"c", R"({"a":1,"b":2})"}}));
}

TEST(CallReaderTest, EscapesArePythonsAndJsons) {
  EXPECT_EQ(calls_of(R"(f(a="Z\u00fcrich", b='caf\xe9', c='\U0001f600\ud83d\ude00', d='\0\101\7\v', e="x\
y\q"))"),
            (Calls{{"f", R"({"a":"Zürich","b":"café","c":"😀😀","d":"\u0000A\u0007\u000b","e":"xy\\q"})"}}));
  EXPECT_EQ(calls_of(R"(f(a="x\/y"))"), (Calls{{"f", R"({"a":"x\\/y"})"}}));
  EXPECT_EQ(calls_of(R"({"name": "f", "arguments": {"a": "x\/y"}})"), (Calls{{"f", R"({"a":"x/y"})"}}));
  for (const char* text : {R"(f(a="\u00g0"))", R"(f(a="\ud83d"))", R"(f(a="\ude00"))", R"(f(a="\ud83d\u0041"))",
                           R"(f(a="\x4"))", R"(f(a="\U00110000"))", R"(f(a="\u00)"})
    EXPECT_EQ(calls_of(text), std::nullopt) << text;
}

TEST(CallReaderTest, StringsOfAllKinds) {
  EXPECT_EQ(calls_of(R"(f(a=r'\d\'', b='''it's''', c="x" 'y', d=f'{{}}', e=rf"\n", g=u'', h=""))"),
            (Calls{{"f", R"({"a":"\\d\\'","b":"it's","c":"xy","d":"{}","e":"\\n","g":"","h":""})"}}));
  for (const char* text : {"f(a=b'x')", "f(a=f'{x}')", "f(a=f'}')", "f(a='''x'')", "f(a='x' + 'y')", "f(a='x'.y)"})
    EXPECT_EQ(calls_of(text), std::nullopt) << text;
}

TEST(CallReaderTest, NumbersToTheLastDigit) {
  EXPECT_EQ(calls_of("f(a=1234567890123456789012345, b=-00, c=1_0.5_0, d=0xFFFFFFFFFFFFFFFFFFFFFFFF, e=0b101, g=.5e1)"),
            (Calls{{"f", R"({"a":1234567890123456789012345,"b":0,"c":10.5,"d":79228162514264337593543950335,"e":5,)"
                         R"("g":5.0})"}}));
  EXPECT_EQ(calls_of("f(a=0.12345678901234567890, b=- 1.0e-400, c=999999999999999999, d=-1000000000000000000)"),
            (Calls{{"f", R"({"a":0.12345678901234567890,"b":-0.0,"c":999999999999999999,"d":-1000000000000000000})"}}));
  for (const char* text :
       {"f(a=1__0)", "f(a=_1)", "f(a=1_)", "f(a=0x)", "f(a=0xg)", "f(a=0b2)", "f(a=1e)", "f(a=1.2.3)", "f(a=.)",
        "f(a=1j)", "f(a=--1)", "f(a=1e400)", "f(a=-inf)", "f(a=~1)", "f(a=1 2)"})
    EXPECT_EQ(calls_of(text), std::nullopt) << text;
}

TEST(CallReaderTest, AsJson) {
  EXPECT_EQ(calls_of(R"([{"name": "f", "arguments": {"b": 1, "a": "x"}}, {"name": "g"}])"),
            (Calls{{"f", R"({"b":1,"a":"x"})"}, {"g", "{}"}}));
  EXPECT_EQ(calls_of(R"({"name": "f", "parameters": {"a": 1}})"), (Calls{{"f", R"({"a":1})"}}));
  EXPECT_EQ(calls_of(R"({"name": "f", "arguments": ""}{"name": "g", "arguments": "null"})"),
            (Calls{{"f", "{}"}, {"g", "{}"}}));
  EXPECT_EQ(calls_of(R"({"name": "f", "arguments": "{\"a\": 1, \"a\": 12345678901234567890123}"})"),
            (Calls{{"f", R"({"a":12345678901234567890123})"}}));
  EXPECT_EQ(calls_of(R"({"name": "f", "arguments": {"a": "say "hi" twice", "b": 1}})"),
            (Calls{{"f", R"({"a":"say \"hi\" twice","b":1})"}}));
  for (const char* text : {R"({"name": ""})",
                           R"({"name": "f", "arguments": "[1]"})",
                           R"({"name": "f", "arguments": "x"})",
                           R"({"function": "f"})",
                           R"({"name": "f"} and)",
                           R"({"name": "f"})]"})
    EXPECT_EQ(calls_of(text), std::nullopt) << text;
}

TEST(CallReaderTest, WhatIsNone) {
  for (const char* text :
       {"[]", "hello", "f", "f(", "f(a)",
                           "f(a=)",
                           "f(a=b)",
                           "f(a=1",
                           "[f()",
                           "f() g()",
                           "[1, 2]",
                           "f(a=\"x)",
                           "f(a=1..2)",
                           R"({"name": 1})",
                           R"([{"name": "f", "arguments": []}])",
                           "f(**1)",
                           "f(**{'a': 1}, 2)",
                           "f(,)",
                           "[[f()]]",
                           "f(a={1: 2, 3})",
                           " ",
                           "f(a=(1)",
                           "[f(a=1]",
                           "f(a={,})"})
    EXPECT_EQ(calls_of(text), std::nullopt) << text;
  // Depth has an end.
  EXPECT_EQ(calls_of("f(a=" + std::string(3000, '[') + ")"), std::nullopt);
  EXPECT_EQ(calls_of(std::string(3000, '[')), std::nullopt);
  EXPECT_EQ(calls_of("f(a=" + std::string(3000, '{') + ")"), std::nullopt);
  EXPECT_EQ(parts_of(""), Parts{});
}

TEST(CallReaderTest, SeveralListsAndLines) {
  const Calls both{{"f", "{}"}, {"g", R"({"a":1})"}};
  for (const char* text :
       {"[f(), g(a=1)]", "[f()][g(a=1)]", "[f()],[g(a=1)]", "f()\n\ng(a=1)", "f(), g(a=1)", "[f(),\n g(a=1),\n]\n",
        "[f()]\ng(a=1)", "[f()]\n{\"name\": \"g\", \"arguments\": {\"a\": 1}}"})
    EXPECT_EQ(calls_of(text), both) << text;
}

// A call comes as soon as the next one begins.
TEST(CallReaderTest, CallsComeEarly) {
  CallReader reader;
  EXPECT_EQ(reader.feed("[f(a='),'), "), Parts{});
  EXPECT_EQ(reader.feed("g"), Parts{});
  EXPECT_EQ(reader.feed("("), (Parts{ToolCall{"f", R"({"a":"),"})"}}));
  EXPECT_EQ(reader.feed(")]"), Parts{});
  EXPECT_EQ(reader.end(false), (Parts{ToolCall{"g", "{}"}}));
}

TEST(CallReaderTest, GoodCallsAmongOtherText) {
  const ToolCall f{"f", "{}"}, g{"g", "{}"};
  EXPECT_EQ(parts_of("[f(), h(a=), g()]"), (Parts{f, "h(a=)", g}));
  EXPECT_EQ(parts_of("[h(a=), f()]"), (Parts{"h(a=)", f}));
  EXPECT_EQ(parts_of("[f(), g()] and so on"), (Parts{f, g, "and so on"}));
  EXPECT_EQ(parts_of("[f(), g()"), (Parts{f, g}));
  EXPECT_EQ(parts_of("[f(), h(a="), (Parts{f, "h(a="}));
  EXPECT_EQ(parts_of("[f()] and so on"), (Parts{"[f()] and so on"}));
}

TEST(CallReaderTest, CutText) {
  const ToolCall f{"f", "{}"};
  EXPECT_EQ(parts_of("[f()", true), Parts{f});
  EXPECT_EQ(parts_of("[f(), ", true), Parts{f});
  EXPECT_EQ(parts_of("[f(), g", true), (Parts{f, "g"}));
  EXPECT_EQ(parts_of("[f(), g(a='", true), (Parts{f, "g(a='"}));
  EXPECT_EQ(parts_of("[f(", true), Parts{"[f("});
}

TEST(CallReaderTest, MissingBackslashes) {
  const auto argument = [](const std::string& text) {
    const std::optional<Calls> calls = calls_of(text);
    return calls ? calls->front().arguments : "none";
  };
  EXPECT_EQ(argument("[sh(c='sed -n '3,9p' log.txt')]"), R"({"c":"sed -n '3,9p' log.txt"})");
  EXPECT_EQ(argument("[t(a='it's late', b='fr')]"), R"({"a":"it's late","b":"fr"})");
  EXPECT_EQ(argument("[t(a=['men's', 'kids'], b={'k': 'it's'})]"), R"({"a":["men's","kids"],"b":{"k":"it's"}})");
  EXPECT_EQ(argument("[t(a={'men's', 'kids'})]"), R"({"a":["men's","kids"]})");
  EXPECT_EQ(argument("[t(a='the dogs' in the yard')]"), R"({"a":"the dogs' in the yard"})");
  EXPECT_EQ(argument("[sh(c=\"python -c \"print(\"hi\")\"\")]"), R"({"c":"python -c \"print(\"hi\")\""})");
  // What Python would compute is no text.
  for (const char* text : {"[f(a='x' + 'y')]", "[f(a='x'+'y')]", "[f(a='%s' % 'y')]", "[f(a='x' if b else 'y')]",
                           "[f(a='x'.upper(), b='y')]", "[f(a='x', b=two, c='z')]", "[f('x', b='y')]"})
    EXPECT_EQ(argument(text), "none") << text;
}

// Each repair may look at all of the text, so there are not many of them.
TEST(CallReaderTest, ManyBrokenCalls) {
  std::string text = "[f()";
  for (int i = 0; i < 3000; ++i) text += ", g(a='x'y'z, b=)";
  EXPECT_EQ(std::get<ToolCall>(read(text + ']', 1).front()), (ToolCall{"f", "{}"}));
}

}  // namespace
}  // namespace lfm2
