// Calls of tools in what the API answers.
#include "grammar/constraint_cache.h"
#include "support/served_api.h"

namespace lfm2::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::http_request;
using test::HttpClient;
using test::HttpReply;

class CallsTest : public ApiToolsTest {
 protected:
  // The message of an answer in which the model draws these texts, calls of tools among them.
  Json message(const std::vector<std::string>& texts, const std::string& stop) {
    drawer_.emplace(live_.replica(0), ids_of(texts));
    const HttpReply reply = ask("POST", "/v1/chat/completions",
                                json_text(Json{{"messages", Json::parse(R"([{"role": "user", "content": "Hello"}])")},
                                               {"tools", Json::parse(R"([{"type": "function"}])")},
                                               {"stop", stop}}));
    drawer_.reset();
    return parse_json(reply.body, "answer")["choices"][0]["message"];
  }
};

TEST_F(CallsTest, WhatIsNoCallIsTextUpToTheStopText) {
  listen();
  serve();
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "[f(a=1)]", "<|tool_call_end|>"}, "and")["content"], "Well. ");
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "no call and"}, "and")["content"], "Well. no call ");
  EXPECT_EQ(message({"Well. ", "<|tool_call_start|>", "no call", "<|tool_call_end|>", " but"}, "and")["content"],
            "Well. no call but");
}

// A stream over a connection: a call, and text before and after it, in their order.
TEST_F(CallsTest, CallsInAStream) {
  listen();
  serve();
  const std::vector<int32_t> ids =
      ids_of({"<think>so</think>", "Well. ", "<|tool_call_start|>", "[f(a=1), g()]", "<|tool_call_end|>", "Done."});
  drawer_.emplace(live_.replica(0), ids);
  const std::string body =
      ask("POST", "/v1/chat/completions",
          R"({"messages": [{"role": "user", "content": "Hello"}], "tools": [{"type": "function"}], "stream": true,
              "stream_options": {"include_usage": true}})")
          .body;
  std::istringstream lines(body);
  std::string told, finish;
  Json usage;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const Json chunk = parse_json(line.substr(6), "chunk");
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      const Json& delta = choice["delta"];
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
      told += delta.value("reasoning", "") + delta.value("content", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const Json& function = call["function"];
        told += '|' + call["index"].dump() + function.value("name", "") + function.value("arguments", "");
      }
    }
  }
  EXPECT_EQ(told, "soWell. |0f|0{\"a\":1}|1g|1{}Done.");
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(usage["completion_tokens"], ids.size());
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LT(usage["completion_tokens_details"]["reasoning_tokens"], ids.size());
}

TEST_F(CallsTest, ANamedFunctionIsCalledOnce) {
  grammar::ConstraintCache constraints(text_.tokenizer(), 1280);
  const LineContext context{
      .vocab = 1280, .max_positions = 128, .text = &text_, .constraints = &constraints, .continues = true};
  const std::string named = R"("tool_choice": {"type": "function", "function": {"name": "f"}})";
  for (const auto& [fields, several] : {std::pair{std::string(R"("tool_choice": "required")"), true},
                                        {R"("tool_choice": "required", "parallel_tool_calls": false)", false},
                                        {named, false},
                                        {named + R"(, "parallel_tool_calls": true)", false}}) {
    const OpenAiRequest request = parse_openai_request(
        R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}], )" + fields + "}",
        true, context, {}, {.max_prompt_tokens = 64});
    const Json constraint = parse_json(request.requests.at(0).constraint, "constraint");
    EXPECT_EQ(constraint.value("parallel", true), several) << fields;
  }
}

TEST_F(CallsTest, TokenIdsWhereTheyAreAskedFor) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  const Json ids(std::vector<int32_t>(3, Drawer::kToken));
  Json body{{"prompt", "a"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 3}};
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    EXPECT_FALSE(parse_json(ask("POST", path, json_text(body)).body, "answer")["choices"][0].contains("token_ids"));
    body["return_token_ids"] = true;
    const Json whole = parse_json(ask("POST", path, json_text(body)).body, "answer")["choices"][0];
    EXPECT_EQ(whole["token_ids"], ids) << path;
    EXPECT_EQ(streamed_ids(path, body), std::pair(ids, 3)) << path;
    body.erase("return_token_ids");
  }
}

}  // namespace
}  // namespace lfm2::serve
