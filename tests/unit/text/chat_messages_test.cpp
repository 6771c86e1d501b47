// Conversations of OpenAI's interface in the form that templates take.
#include "text/chat/chat_messages.h"

#include "support/weights_support.h"

namespace lfm2 {
namespace {

OrderedJson conversation(const std::string& text) { return parse_ordered_json(text, "conversation"); }

TEST(ChatMessagesTest, CallsOfToolsComeBackAsObjects) {
  const OrderedJson given = conversation(R"([
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"Z\\u00fcrich\"}"}},
      {"function": {"name": "g", "arguments": {"c": 2}}}, {"function": {"name": "h", "arguments": "no JSON"}},
      {"function": {"name": "i", "arguments": "[1]"}}, {"name": "j"}, 7]},
    {"role": "assistant", "tool_calls": []}])");
  for (const bool parts : {false, true})
    EXPECT_EQ(template_messages(given, parts)->dump(), conversation(R"([
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "Zürich"}}},
      {"function": {"name": "g", "arguments": {"c": 2}}}, {"function": {"name": "h", "arguments": "no JSON"}},
      {"function": {"name": "i", "arguments": "[1]"}}, {"name": "j"}, 7]},
    {"role": "assistant", "tool_calls": [], "content": ""}])")
                                                           .dump());
}

TEST(ChatMessagesTest, WhatIsNoMessageIsRefusedWithItsPlace) {
  for (const auto& [message, reason] :
       {std::pair{R"({"role": "user"})", R"("messages[1].content" is missing, expected text or a list of parts)"},
        {R"({"content": "x"})", R"("messages[1].role" is missing, expected text)"},
        {R"({"role": 1, "content": "x"})", R"("messages[1].role" is 1, expected text)"},
        {R"({"role": "user", "content": 5})", R"("messages[1].content" is 5, expected text or a list of parts)"},
        {R"("hi")", R"("messages[1]" is "hi", expected an object)"}})
    test::expect_error(
        [&, message = message] {
          template_messages(conversation(R"([{"role": "user", "content": "x"}, )" + std::string(message) + "]"), false);
        },
        ExitCode::kData, {reason});
}

TEST(ChatMessagesTest, PartsBecomeTextWhereTheTemplateDoesNotTakeThem) {
  const OrderedJson given = conversation(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "user", "content": []}])");
  EXPECT_EQ(template_messages(given, false)->dump(),
            R"([{"role":"user","content":"a\nb"},{"role":"user","content":""}])");
  EXPECT_EQ(*template_messages(given, true), given);
  for (const char* part : {R"({"type": "image_url", "image_url": {"url": "x"}})", R"({"type": "text"})",
                           R"({"type": "text", "text": 1})", R"("a")", "null", R"({"text": "a"})"})
    for (const bool parts : {false, true})
      test::expect_error(
          [&] {
            template_messages(conversation(R"([{"role": "user", "content": "x"}, {"role": "user", "content": [)" +
                                           std::string(part) + "]}]"),
                              parts);
          },
          ExitCode::kData, {"\"messages\": a part of message 2 has \"type\" "});
}

TEST(ChatMessagesTest, TemplatesThatTakeParts) {
  EXPECT_TRUE(
      accepts_parts(R"({% for item in content %}{% if item["type"] == "text" %}{{ item["text"] }}{% endif %})"));
  EXPECT_TRUE(accepts_parts("{% if item.type == 'text' %}"));
  EXPECT_FALSE(accepts_parts("{% if content is not string %}{% set content = content | tojson %}{% endif %}"));
}

}  // namespace
}  // namespace lfm2
