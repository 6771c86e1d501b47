// Conversations of OpenAI's interface in the form that templates take.
#include "text/chat/chat_messages.h"

#include "support/weights_support.h"

namespace lfm2 {
namespace {

OrderedJson conversation(const std::string& text) { return parse_ordered_json(text, "conversation"); }

constexpr TemplateTraits kPlain{}, kParts{.takes_parts = true};

TEST(ChatMessagesTest, CallsOfToolsComeBackAsObjects) {
  const OrderedJson given = conversation(R"([
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"Z\\u00fcrich\"}"}},
      {"function": {"name": "g", "arguments": {"c": 2}}}, {"function": {"name": "h", "arguments": ""}},
      {"function": {"name": "i", "arguments": "null"}}, {"function": {"name": "k", "arguments": null}},
      {"function": {"name": "l"}}, {"name": "j"}, 7]},
    {"role": "assistant", "tool_calls": []}, {"role": "assistant", "content": "y", "tool_calls": null},
    {"role": "user", "content": "z", "tool_calls": null}])");
  for (const TemplateTraits& traits : {kPlain, kParts})
    EXPECT_EQ(template_messages(given, traits)->dump(), conversation(R"([
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "Zürich"}}},
      {"function": {"name": "g", "arguments": {"c": 2}}}, {"function": {"name": "h", "arguments": {}}},
      {"function": {"name": "i", "arguments": {}}}, {"function": {"name": "k", "arguments": {}}},
      {"function": {"name": "l", "arguments": {}}}, {"name": "j"}, 7]},
    {"role": "assistant", "content": ""}, {"role": "assistant", "content": "y"},
    {"role": "user", "content": "z", "tool_calls": null}])")
                                                            .dump());
}

TEST(ChatMessagesTest, TheTextEndsAtTheMark) {
  const OrderedJson given = conversation(R"([{"role": "assistant", "content": "a "}])");
  LargeJson taken = template_messages(given, kPlain);
  mark_end(given, *taken);
  const std::string content = (*taken)[0]["content"], trimmed = content.substr(0, content.size() - 1);
  EXPECT_EQ(text_before_mark("<" + content + ">"), "<a ");
  EXPECT_EQ(text_before_mark("<" + trimmed + "\n"), "<a");  // what the template trims is trimmed
  EXPECT_EQ(text_before_mark("<" + content + "><" + content + ">"), "<" + content + "><a ");
  test::expect_error([] { text_before_mark("<>"); }, ExitCode::kData, {"leaves out"});
}

OrderedJson call(const std::string& arguments) {
  OrderedJson messages =
      conversation(R"([{"role": "assistant", "content": "", "tool_calls": [{}, {"function": {"name": "f"}}]}])");
  messages[0]["tool_calls"][1]["function"]["arguments"] = conversation(arguments);
  return messages;
}

TEST(ChatMessagesTest, ArgumentsKeepTheirDigitsAndTheLaterOfEqualKeys) {
  const LargeJson taken = template_messages(
      call(R"("{\"a\": 1, \"b\": {\"c\": 2, \"c\": [12345678901234567890123]}, \"a\": {}}")"), kPlain);
  EXPECT_EQ(json_text_with_digits((*taken)[0]["tool_calls"][1]["function"]["arguments"]),
            R"({"a":{},"b":{"c":[12345678901234567890123]}})");
  for (const char* arguments : {R"("no JSON")", R"("[1]")", "[1]", "5", R"("{\"q\": \"\\ud83d\"}")"})
    test::expect_error([&] { template_messages(call(arguments), kPlain); }, ExitCode::kData,
                       {R"("messages[0].tool_calls[1].function.arguments" is )", "expected a JSON object"});
}

TEST(ChatMessagesTest, CallsAsText) {
  const auto text = [](const std::string& calls, const std::string& content) {
    const OrderedJson given =
        conversation(R"([{"role": "assistant", "content": )" + content + R"(, "tool_calls": )" + calls + "}]");
    const LargeJson taken = template_messages(given, {.takes_parts = true, .calls_as_text = true});
    return (*taken)[0].dump();
  };
  EXPECT_EQ(
      text(R"([{"function": {"name": "f", "arguments": "{\"a b\": 1}"}}, {"function": {"name": "g h"}}])", R"("x")"),
      R"({"role":"assistant","content":"x<|tool_call_start|>[f(**{\"a b\": 1}), )"
      R"({\"name\": \"g h\", \"arguments\": {}}]<|tool_call_end|>"})");
  EXPECT_EQ(text(R"([{"function": {"name": "f"}}])", R"([{"type": "text", "text": "x"}])"),
            R"({"role":"assistant","content":[{"type":"text","text":"x"},{"type":"text","text":)"
            R"("<|tool_call_start|>[f()]<|tool_call_end|>"}]})");
  EXPECT_EQ(text("[5]", R"("x")"), R"({"role":"assistant","content":"x","tool_calls":[5]})");
}

TEST(ChatMessagesTest, ThoughtsOfAllNames) {
  using Thought = TemplateTraits::Thought;
  const auto taken = [](const std::string& fields, Thought thought) {
    return (*template_messages(conversation(R"([{"role": "assistant", "content": "x", )" + fields + "}]"),
                               {.thought = thought}))[0]
        .dump();
  };
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string field = fmt::format(R"("{}": "h")", name);
    EXPECT_EQ(taken(field, Thought::kNone), R"({"role":"assistant","content":"x"})");
    EXPECT_EQ(taken(field, Thought::kInContent), R"({"role":"assistant","content":"<think>h</think>x"})");
    EXPECT_EQ(taken(field, Thought::kFields),
              R"({"role":"assistant","content":"x","reasoning_content":"h","reasoning":"h","thinking":"h"})");
    EXPECT_EQ(taken(fmt::format(R"("{}": "")", name), Thought::kFields), R"({"role":"assistant","content":"x"})");
    test::expect_error([&] { taken(fmt::format(R"("{}": 5)", name), Thought::kFields); }, ExitCode::kData,
                       {fmt::format("\"messages[0].{}\" is 5, expected text", name)});
  }
  const OrderedJson parts = conversation(
      R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, {"type": "output_text", "text": "x"}]}])");
  EXPECT_EQ((*template_messages(parts, {.thought = Thought::kInContent}))[0].dump(),
            R"({"role":"assistant","content":"<think>h</think>x"})");
}

TEST(ChatMessagesTest, TraitsOfTemplates) {
  using Thought = TemplateTraits::Thought;
  const auto thought = [](const char* source) { return template_traits(source, true).thought; };
  EXPECT_EQ(thought("{{ message.content }}"), Thought::kNone);
  EXPECT_EQ(thought("{{ content.split('</think>')[-1] if not keep_past_thinking }}"), Thought::kInContent);
  for (const char* source :
       {"{{ message.thinking }}</think>", "{{ message['reasoning'] }}", "{{ m.get(\"reasoning_content\") }}"})
    EXPECT_EQ(thought(source), Thought::kFields) << source;
  EXPECT_TRUE(template_traits("{{ message.content }}", true).calls_as_text);
  EXPECT_FALSE(template_traits("{{ message.content }}", false).calls_as_text);
  EXPECT_FALSE(template_traits("{{ message.tool_calls }}", true).calls_as_text);
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
          template_messages(conversation(R"([{"role": "user", "content": "x"}, )" + std::string(message) + "]"),
                            kPlain);
        },
        ExitCode::kData, {reason});
}

TEST(ChatMessagesTest, PartsBecomeTextWhereTheTemplateDoesNotTakeThem) {
  const OrderedJson given = conversation(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "user", "content": []}])");
  EXPECT_EQ(template_messages(given, kPlain)->dump(),
            R"([{"role":"user","content":"a\nb"},{"role":"user","content":""}])");
  EXPECT_EQ(*template_messages(given, kParts), given);
  for (const char* part :
       {R"({"type": "image_url", "image_url": {"url": "x"}})", R"({"type": "text"})", R"({"type": "text", "text": 1})",
        R"({"type": "refusal", "text": "a"})", "null", R"({"text": "a"})"})
    for (const TemplateTraits& traits : {kPlain, kParts})
      test::expect_error(
          [&] {
            template_messages(conversation(R"([{"role": "user", "content": "x"}, {"role": "user", "content": [)" +
                                           std::string(part) + "]}]"),
                              traits);
          },
          ExitCode::kData, {"\"messages\": a part of message 2 has \"type\" "});
}

TEST(ChatMessagesTest, PartsOfTextOfAnyName) {
  const OrderedJson given = conversation(R"([{"role": "user", "content": [{"type": "input_text", "text": "a"},
    {"type": "refusal", "refusal": "b"}, "c", {"type": "thinking", "thinking": "h"}, {"type": "output_text", "text": "d"}]}])");
  EXPECT_EQ((*template_messages(given, kPlain))[0]["content"], "a\nb\nc\nd");
  EXPECT_EQ(
      (*template_messages(given, kParts))[0]["content"].dump(),
      R"([{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"},{"type":"text","text":"d"}])");
}

TEST(ChatMessagesTest, TemplatesThatTakeParts) {
  const auto takes_parts = [](const char* source) { return template_traits(source, false).takes_parts; };
  EXPECT_TRUE(takes_parts(R"({% for item in content %}{% if item["type"] == "text" %}{{ item["text"] }}{% endif %})"));
  EXPECT_TRUE(takes_parts("{% if item.type == 'text' %}"));
  EXPECT_FALSE(takes_parts("{% if content is not string %}{% set content = content | tojson %}{% endif %}"));
}

}  // namespace
}  // namespace lfm2
