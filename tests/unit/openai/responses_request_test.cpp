// Bodies of /v1/responses as chats: their messages, tools and limits, and what is refused with which words.
#include "openai/responses/responses_request.h"

#include "support/call_tokens.h"
#include "support/request_lines.h"

namespace lfm2::test {
namespace {

// The prompt is the JSON of the messages and tools.
class ResponsesRequestTest : public RequestLineTest {
 protected:
  ResponsesRequestTest() {
    write_bytes(folder_ / "tokenizer.json", tokenizer_with_calls());
    write_bytes(
        folder_ / "chat_template.jinja",
        "{{ messages | tojson }}{% if tools %}{{ tools | tojson }}{% endif %}{# .reasoning_content .tool_calls #}");
    model_ = TextModel::open(folder_.path());
    constraints_.emplace(model_->tokenizer(), context_.vocab);
    context_.max_positions = 5000;
  }
  OpenAiRequest read(const std::string& fields) const {
    RequestDefaults defaults;
    defaults.of_text.max_new = 100;
    defaults.of_text.rule.temperature = 0.3f;
    return parse_responses_request("{" + fields + "}", context_, defaults, {.max_prompt_tokens = 4000, .max_edits = 8},
                                   7);
  }
  Json prompt(const std::string& fields) const {
    return parse_json(text_of(model_->tokenizer(), read(fields).requests.at(0).prompt), "prompt");
  }
  std::string refused(const std::string& fields) const {
    try {
      read(fields);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      const std::string_view message = error.what();
      EXPECT_TRUE(message.starts_with("request: ")) << message;
      return std::string(message.substr(9));
    }
    return "accepted";
  }
};

TEST_F(ResponsesRequestTest, AnInputOfText) {
  const OpenAiRequest request = read(R"("input": "Hi", "max_output_tokens": 5, "top_p": 0.9, "stream": true)");
  ASSERT_EQ(request.requests.size(), 1u);
  EXPECT_EQ(request.requests[0].max_new, 5);
  EXPECT_EQ(request.requests[0].rule.top_p, 0.9f);
  EXPECT_EQ(request.fresh_seed, 7u);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.form.form, LineForm::kChatCompletion);
  EXPECT_EQ(request.response->repeated,
            OrderedJson::parse(R"({"instructions": null, "max_output_tokens": 5, "metadata": {},
      "parallel_tool_calls": true, "reasoning": null, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
      "tools": [], "temperature": 0.3, "top_p": 0.9})"));
  EXPECT_EQ(prompt(R"("input": "Hi")"), Json::parse(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(prompt(R"("input": "Hi", "instructions": "Be.")"),
            Json::parse(R"([{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(read(R"("input": "Hi")").requests[0].max_new, 100);
}

// As clients send a conversation back: an assistant's thought, text and calls in this order are one message.
TEST_F(ResponsesRequestTest, Items) {
  const Json found = prompt(R"("input": [
      {"role": "developer", "content": "Be."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                      {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs-1", "summary": [{"type": "summary_text", "text": "no"}],
       "content": [{"type": "reasoning_text", "text": "so"}], "encrypted_content": null},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call"}], "status": "x"},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "1"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
      {"type": "reasoning", "summary": [], "encrypted_content": "?"},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
      {"role": "assistant", "content": "done"}])");
  const Json expected = Json::parse(R"([
      {"role": "system", "content": "Be."}, {"role": "user", "content": "a\nb"},
      {"role": "assistant", "content": "I call", "reasoning_content": "so", "reasoning": "so", "thinking": "so",
       "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "1"}, {"role": "tool", "tool_call_id": "c2", "content": "2"},
      {"role": "assistant", "content": "",
       "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": {}}}]},
      {"role": "assistant", "content": "done"}])");
  EXPECT_EQ(found, expected);
}

TEST_F(ResponsesRequestTest, ToolsAndFormats) {
  const std::string tools = R"("input": "x", "tools": [{"type": "function", "name": "f", "strict": true,
      "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}])";
  const OpenAiRequest called = read(tools + R"(, "tool_choice": {"type": "function", "name": "f"})");
  EXPECT_TRUE(called.form.message.calls);
  const Json constraint = parse_json(called.requests[0].constraint, "constraint");
  EXPECT_EQ(constraint["calls"][0]["function"]["name"], "f");
  EXPECT_EQ(constraint["only"], "f");
  EXPECT_EQ(called.response->repeated["tools"][0]["name"], "f");  // as they came
  EXPECT_EQ(called.response->repeated["tool_choice"]["name"], "f");
  const std::string text = text_of(model_->tokenizer(), called.requests[0].prompt);
  EXPECT_NE(text.find(R"([{"type": "function", "function": {"name": "f", "strict": true, )"), std::string::npos)
      << text;
  EXPECT_EQ(read(tools + R"(, "tool_choice": "none")").requests[0].constraint, "");
  const auto format = [&](const std::string& one) {
    return read(R"("input": "x", "text": {"verbosity": "low", "format": )" + one + "}").requests[0].constraint;
  };
  EXPECT_EQ(format(R"({"type": "text"})"), "");
  EXPECT_EQ(format("null"), "");
  EXPECT_EQ(format(R"({"type": "json_object"})"), R"({"json_schema":{"type":"object"}})");
  EXPECT_EQ(format(R"({"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "integer"}})"),
            R"({"json_schema":{"type":"integer"}})");
}

// As Codex offers and calls them.
TEST_F(ResponsesRequestTest, NamespacesOfFunctions) {
  const OpenAiRequest request = read(R"("input": [{"role": "user", "content": "x"},
      {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "1"}],
      "tools": [{"type": "function", "name": "f"},
                {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "f"},
                                                                                 {"type": "function", "name": "g"}]}],
      "tool_choice": "required")");
  const FunctionNames& functions = request.response->functions;
  EXPECT_EQ(functions.size(), 3u);
  EXPECT_EQ(functions.at("n.g").space, "n");
  EXPECT_EQ(functions.at("n.g").name, "g");
  EXPECT_EQ(functions.at("f").space, std::nullopt);
  EXPECT_EQ(request.response->repeated["tools"][1]["type"], "namespace");
  std::vector<std::string> names;
  const Json constraint = parse_json(request.requests[0].constraint, "constraint");
  for (const Json& tool : constraint["calls"]) names.push_back(tool["function"]["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"f", "n.f", "n.g"}));
  const std::string text = text_of(model_->tokenizer(), request.requests[0].prompt);
  EXPECT_NE(text.find(R"("function": {"name": "n.f", "arguments": {}})"), std::string::npos) << text;
}

TEST_F(ResponsesRequestTest, AChoiceHasItsNamespace) {
  const OpenAiRequest request = read(R"("input": "x", "tools": [{"type": "function", "name": "f"},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}],
      "tool_choice": {"type": "function", "name": "f", "namespace": "n"})");
  EXPECT_EQ(parse_json(request.requests[0].constraint, "constraint")["only"], "n.f");
}

// An assistant's text begins a message, unless only a thought precedes it.
TEST_F(ResponsesRequestTest, WhatBeginsAMessage) {
  const Json found = prompt(R"("input": [
      {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"role": "assistant", "content": "d"}])");
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[2]["thinking"], "so");
  EXPECT_EQ(found[2]["tool_calls"].size(), 1u);
  EXPECT_EQ(found[3]["content"], "d");
  EXPECT_EQ(prompt(R"("input": [{"type": "reasoning"}, {"type": "reasoning", "content": null},
      {"type": "reasoning", "content": []}, {"role": "user", "content": "a"}])")
                .size(),
            1u);
}

TEST_F(ResponsesRequestTest, WhatChangesNothing) {
  for (const char* field : {R"("store": false)",
                            R"("store": null)",
                            R"("previous_response_id": null)",
                            R"("background": false)",
                            R"("truncation": "disabled")",
                            R"("context_management": [])",
                            R"("text.format": 5)",
                            R"("include": ["reasoning.encrypted_content"])",
                            R"("metadata": {"a": "b"})",
                            R"("reasoning": {"effort": "low", "summary": "auto"})",
                            R"("prompt_cache_key": "k")",
                            R"("service_tier": "auto")",
                            R"("max_tool_calls": 3)",
                            R"("top_logprobs": 0)",
                            R"("stream_options": {"include_obfuscation": false})",
                            R"("user": "me")",
                            R"("client_metadata": {})",
                            R"("tools": [])",
                            R"("seed": 3)",
                            R"("n": 1)"})
    EXPECT_EQ(refused(std::string(R"("input": "x", )") + field), "accepted") << field;
}

TEST_F(ResponsesRequestTest, Refusals) {
  const std::string x = R"("input": "x", )";
  for (
      const auto& [fields, reason] :
      {std::pair{std::string(), R"("input" is null, expected text or a list of items)"},
       {R"("input": [])", R"("input" is [], expected text or a list of items)"},
       {R"("input": ["a"])", R"("input[0]" is "a", expected an object)"},
       {R"("input": [{"type": "web_search_call"}])",
        R"("input[0].type" is "web_search_call", expected "message", "function_call", "function_call_output" or )"
        R"("reasoning")"},
       {R"("input": [{"role": "tool", "content": "a"}])",
        R"("input[0].role" is "tool", expected "user", "assistant", "system" or "developer")"},
       {R"("input": [{"role": "user"}])", R"("input[0].content" is null, expected text or a list of parts)"},
       {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])",
        R"("input[0].content[0].type" is "input_image", expected "input_text", "output_text" or "refusal")"},
       {R"("input": [{"role": "user", "content": [{"type": "input_text"}]}])",
        R"("input[0].content[0].text" is null, expected text)"},
       {R"("input": [{"type": "function_call", "name": "f", "arguments": "{}"}])",
        R"("input[0].call_id" is null, expected text)"},
       {x + R"("store": true)", R"("store" is true, expected false: no response is stored)"},
       {x + R"("previous_response_id": "r")",
        R"("previous_response_id" is "r", which is not supported: expected no such field)"},
       {x + R"("conversation": "c")", R"("conversation" is "c", which is not supported: expected no such field)"},
       {x + R"("background": true)",
        R"("background" is true, which is not supported: expected false, or no such field)"},
       {x + R"("truncation": "auto")",
        R"("truncation" is "auto", which is not supported: expected disabled, or no such field)"},
       {x + R"("context_management": [{"type": "compaction"}])",
        R"("context_management" is [{"type":"compaction"}], which is not supported: expected no such field)"},
       {R"("input": [{"type": "reasoning", "content": "so"}])",
        R"("input[0].content" is "so", expected a list of parts with their text)"},
       {R"("input": [{"type": "reasoning", "content": [{"type": "reasoning_text"}]}])",
        R"("input[0].content[0].text" is null, expected text)"},
       {R"("input": [{"type": "function_call", "call_id": "c", "name": "f", "namespace": 1, "arguments": "{}"}])",
        R"("input[0].namespace" is 1, expected text)"},
       {x + R"("tools": [{"type": "function", "name": "n.f"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}])",
        R"("tools[1].tools[0].name" is "n.f", expected a name that no other function has)"},
       {x + R"("prompt": {"id": "p"})", R"("prompt" is {"id":"p"}, expected no such field: no prompt is stored)"},
       {x + R"("include": ["message.output_text.logprobs"])",
        R"("include" is "message.output_text.logprobs", expected no log-probabilities: /v1/chat/completions has them)"},
       {x + R"("n": 2)", R"("n" is 2, expected 1: a response has one choice)"},
       {x + R"("tools": [{"type": "web_search"}])",
        R"("tools[0].type" is "web_search", expected "function": the server itself has no tools)"},
       {x + R"("tools": [{"type": "function", "function": {"name": "f"}}])",
        R"("tools[0].name" is null, expected text)"},
       {x + R"("tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}])",
        R"("tools[0].tools[0].type" is "custom", expected "function": the server itself has no tools)"},
       {x + R"("tools": [{"type": "namespace"}])", R"("tools[0].name" is null, expected text)"},
       {x + R"("tool_choice": {"type": "function", "name": "f", "namespace": ["n"]})",
        R"("tool_choice.namespace" is ["n"], expected text)"},
       {x + R"("tool_choice": {"type": "allowed_tools"})",
        R"("tool_choice.type" is "allowed_tools", expected "function": the server itself has no tools)"},
       {x + R"("max_output_tokens": 0)", R"("max_output_tokens" is 0, expected an integer from 1 to 2147483648)"},
       {x + R"("text": "json")", R"("text" is "json", expected an object)"},
       {x + R"("temperature": -1)", R"("temperature" is -1, expected a number from 0 to 1000000)"},
       {x + R"("instructions": 5)", R"("instructions" is 5, expected text)"}})
    EXPECT_EQ(refused(fields), reason) << fields;
  EXPECT_TRUE(refused(x + R"("text": {"format": {"type": "xml"}})").starts_with(R"("text.format" is {"type":"xml"})"));
  EXPECT_TRUE(refused(x + R"("text": {"format": {"type": "json_schema", "schema": {"type": 1}}})")
                  .starts_with(R"("text.format": #: type)"));
  const std::string big = refused(R"("input": ")" + std::string(9000, 'x') + "\"");
  EXPECT_NE(big.find("However, your input resulted in"), std::string::npos) << big;
}

// A stream has the response three times, and a client may leave so much unread.
TEST_F(ResponsesRequestTest, LargeFieldsAreNotRepeated) {
  const auto repeated = [&](size_t bytes) {
    const OpenAiRequest request =
        read(R"("input": "x", "truncate_prompt_tokens": 5, "metadata": {"a": "b"}, "reasoning": {"effort": "low"},
          "tool_choice": "none", "instructions": ")" +
             std::string(bytes, ' ') + "\"");
    const OrderedJson& found = request.response->repeated;
    EXPECT_EQ(found["metadata"].empty(), found["instructions"].is_null());
    EXPECT_EQ(found["reasoning"].is_null(), found["instructions"].is_null());
    EXPECT_EQ(found["tool_choice"] == "auto", found["instructions"].is_null());
    return !found["instructions"].is_null();
  };
  EXPECT_TRUE(repeated(120 << 10));
  EXPECT_FALSE(repeated(130 << 10));
}

}  // namespace
}  // namespace lfm2::test
