#include "grammar/call_list.h"

#include <gtest/gtest.h>

#include "tests/unit/grammar/texts_of.h"

namespace lfm2::grammar {
namespace {

constexpr std::string_view kTools = R"([
  {"type": "function", "function": {"name": "ferry.times", "parameters": {"type": "object", "required": ["harbour"],
    "properties": {"harbour": {"type": "string", "maxLength": 4}, "cars": {"type": "integer"}, "in": {"type": ["boolean", "null"]},
                   "stops": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}}}}},
  {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])";

Acceptor calls(const std::string& only = "", bool parallel = true) {
  return Acceptor(call_list_grammar(kTools, {.start = 1, .end = 2, .only = only, .parallel = parallel}));
}

TEST(CallList, ArgumentsInOrderWithTheWordsOfBothLanguages) {
  const Acceptor accepts = calls();
  EXPECT_TRUE(accepts.call_list(R"([ferry.times(harbour='Uig')])"));
  EXPECT_TRUE(accepts.call_list(R"([ferry.times(harbour="Uig",cars=2, in=True)])"));
  EXPECT_TRUE(accepts.call_list(R"([ferry.times(harbour='', in=null), now()])"));
  EXPECT_TRUE(accepts.call_list(R"([ferry.times(harbour='it\'s', stops=[{'name': "a"}, {}])])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times()])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times(cars=2, harbour='a')])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times(harbour='it's')])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times(harbour='abcde')])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times(harbour='a', boats=1)])"));
  EXPECT_FALSE(accepts.call_list(R"([ferry.times(harbour='a', stops=[{'other': 1}])])"));
  EXPECT_FALSE(accepts.call_list(R"([now(a=1)])"));
  EXPECT_FALSE(accepts.call_list(R"([now])"));
  EXPECT_FALSE(accepts.call_list(R"([])"));
}

TEST(CallList, OneCallAndOneFunction) {
  EXPECT_FALSE(calls("", false).call_list("[now(), now()]"));
  EXPECT_TRUE(calls("", false).call_list("[now()]"));
  EXPECT_TRUE(calls("now").call_list("[now(),now()]"));
  EXPECT_FALSE(calls("now").call_list("[ferry.times(harbour='a')]"));
  EXPECT_THROW(calls("later"), Refusal);
}

TEST(CallList, RefusesNamesThatCannotBeWritten) {
  EXPECT_THROW(call_list_grammar(R"([{"function": {"name": "a b"}}])", {}), Refusal);
  EXPECT_THROW(call_list_grammar(R"([{"function": {"name": "a", "parameters": {"properties": {"b=": {}}}}}])", {}),
               Refusal);
  EXPECT_THROW(call_list_grammar(R"([{"function": {"name": "a", "parameters": {"type": "string"}}}])", {}), Refusal);
  EXPECT_THROW(call_list_grammar("[]", {}), Refusal);
}

}  // namespace
}  // namespace lfm2::grammar
