// /v1/responses: whole answers, and the events of a stream in their order.
#include "support/served_api.h"

namespace lfm2::serve {
namespace {

using test::HttpReply;

class ApiResponsesTest : public ApiToolsTest {
 protected:
  // Asks while the model draws these texts.
  HttpReply answer(const std::vector<std::string>& texts, const std::string& fields) {
    drawer_.emplace(live_.replica(0), ids_of(texts));
    const bool own = fields.find("\"tools\"") != std::string::npos;
    const std::string tools = own ? "" : R"("tools": [{"type": "function", "name": "f"}], )";
    HttpReply reply = ask("POST", "/v1/responses", R"({"input": "Hello", )" + tools + fields + "}");
    drawer_.reset();
    return reply;
  }
  Json whole(const std::vector<std::string>& texts, const std::string& fields = R"("store": false)") {
    const HttpReply reply = answer(texts, fields);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return parse_json(reply.body, "answer");
  }
  // Each event has its type as its name, and its number.
  static std::vector<Json> events_of(const std::string& body) {
    std::vector<Json> events;
    std::istringstream lines(body);
    for (std::string name, data, blank; std::getline(lines, name) && std::getline(lines, data);) {
      EXPECT_TRUE(name.starts_with("event: ") && data.starts_with("data: ")) << name << data;
      std::getline(lines, blank);
      EXPECT_EQ(blank, "");
      events.push_back(parse_json(data.substr(6), "event"));
      EXPECT_EQ(events.back()["type"], name.substr(7));
      EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    }
    return events;
  }
  static const std::vector<std::string> kTexts;
};

const std::vector<std::string> ApiResponsesTest::kTexts = {
    "<think>so</think>", "Well. ", "<|tool_call_start|>", "[f(a=1), f()]", "<|tool_call_end|>", "Done."};

TEST_F(ApiResponsesTest, AWholeResponse) {
  listen();
  serve();
  const Json response = whole(kTexts, R"("metadata": {"k": "v"}, "max_output_tokens": 90, "temperature": 0.5)");
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["model"], "model");
  EXPECT_EQ(response["metadata"], (Json{{"k", "v"}}));
  EXPECT_EQ(response["max_output_tokens"], 90);
  EXPECT_EQ(response["temperature"], 0.5);
  EXPECT_TRUE(response["error"].is_null() && response["incomplete_details"].is_null());
  const std::string id = response["id"];
  ASSERT_TRUE(id.starts_with("resp-"));
  const auto named = [&](const char* kind, int number) { return fmt::format("{}-{}-{}", kind, id.substr(5), number); };
  const auto text = [](const char* said) {
    return Json::array(
        {{{"type", "output_text"}, {"text", said}, {"annotations", Json::array()}, {"logprobs", Json::array()}}});
  };
  const Json expected = Json::array({{{"id", named("rs", 0)},
                                      {"type", "reasoning"},
                                      {"status", "completed"},
                                      {"summary", Json::array()},
                                      {"content", Json::array({{{"type", "reasoning_text"}, {"text", "so"}}})}},
                                     {{"id", named("msg", 1)},
                                      {"type", "message"},
                                      {"status", "completed"},
                                      {"role", "assistant"},
                                      {"content", text("Well. ")}},
                                     {{"id", named("fc", 2)},
                                      {"type", "function_call"},
                                      {"status", "completed"},
                                      {"call_id", named("call", 2)},
                                      {"name", "f"},
                                      {"arguments", R"({"a":1})"}},
                                     {{"id", named("fc", 3)},
                                      {"type", "function_call"},
                                      {"status", "completed"},
                                      {"call_id", named("call", 3)},
                                      {"name", "f"},
                                      {"arguments", "{}"}},
                                     {{"id", named("msg", 4)},
                                      {"type", "message"},
                                      {"status", "completed"},
                                      {"role", "assistant"},
                                      {"content", text("Done.")}}});
  EXPECT_EQ(response["output"], expected);
  const Json& usage = response["usage"];
  EXPECT_EQ(usage["output_tokens"], ids_of(kTexts).size());
  EXPECT_GT(usage["input_tokens"], 0);
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
}

// Each kind of item with all of its events; deltas joined are the texts, and the last event has the whole answer.
TEST_F(ApiResponsesTest, TheEventsOfAStream) {
  listen();
  serve();
  const std::vector<Json> events = events_of(answer(kTexts, R"("stream": true)").body);
  std::string order, deltas;
  for (const Json& event : events) {
    const std::string type = event["type"].get<std::string>().substr(std::string_view("response.").size());
    const std::string place = event.contains("output_index") ? event["output_index"].dump() : "";
    if (!order.ends_with(place + type + ' ')) order += place + type + ' ';
    if (event.contains("delta")) deltas += event["delta"];
  }
  const auto item = [](int number, const std::string& kinds) {
    std::string all;
    std::istringstream words(kinds);
    for (std::string word; words >> word;) all += fmt::format("{}{} ", number, word);
    return all;
  };
  const std::string text =
                        "output_item.added content_part.added output_text.delta output_text.done content_part.done "
                        "output_item.done",
                    call =
                        "output_item.added function_call_arguments.delta function_call_arguments.done "
                        "output_item.done";
  std::string thought = text;
  for (size_t at = 0; (at = thought.find("output_text", at)) != std::string::npos;)
    thought.replace(at, 11, "reasoning_text");
  EXPECT_EQ(order, "created in_progress " + item(0, thought) + item(1, text) + item(2, call) + item(3, call) +
                       item(4, text) + "completed ");
  EXPECT_EQ(deltas, R"(soWell. {"a":1}{}Done.)");
  EXPECT_EQ(events.front()["response"]["status"], "in_progress");
  EXPECT_EQ(events.front()["response"]["output"], Json::array());
  Json last = events.back()["response"], once = whole(kTexts);
  std::vector<Json> done;
  for (const Json& event : events)
    if (event["type"] == "response.output_item.done") done.push_back(event["item"]);
  EXPECT_EQ(last["output"], Json(done));
  ASSERT_EQ(last["output"].size(), once["output"].size());
  for (size_t i = 0; i < done.size(); ++i) {
    for (const char* key : {"content", "arguments", "status", "type"})
      EXPECT_EQ(done[i].value(key, Json()), once["output"][i].value(key, Json())) << key;
  }
  EXPECT_EQ(last["usage"], once["usage"]);
}

TEST_F(ApiResponsesTest, WhatIsCutIsIncomplete) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));  // draws until the limit
  const std::string body = R"({"input": "a", "max_output_tokens": 3)";
  const Json response = parse_json(ask("POST", "/v1/responses", body + "}").body, "answer");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(response["output"].back()["status"], "incomplete");
  EXPECT_EQ(response["usage"]["output_tokens"], 3);
  const std::vector<Json> events = events_of(ask("POST", "/v1/responses", body + R"(, "stream": true})").body);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["output"].back()["status"], "incomplete");
}

TEST_F(ApiResponsesTest, ACallHasItsNamespace) {
  listen();
  serve();
  const std::vector<std::string> calls = {"<|tool_call_start|>", "[n.f(a=1), f()]", "<|tool_call_end|>"};
  const Json output = whole(calls, R"("tools": [{"type": "function", "name": "f"},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}])")["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["name"], "f");
  EXPECT_EQ(output[0]["namespace"], "n");
  EXPECT_EQ(output[1]["name"], "f");
  EXPECT_FALSE(output[1].contains("namespace"));
}

// A dot in a name is no namespace, and a namespace may have a dot.
TEST_F(ApiResponsesTest, NamesWithDots) {
  listen();
  serve();
  const std::vector<std::string> calls = {"<|tool_call_start|>", "[a.f(), a.b.g()]", "<|tool_call_end|>"};
  const Json output = whole(calls, R"("tools": [{"type": "function", "name": "a.f"},
      {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "h"}]},
      {"type": "namespace", "name": "a.b", "tools": [{"type": "function", "name": "g"}]}])")["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["name"], "a.f");
  EXPECT_FALSE(output[0].contains("namespace"));
  EXPECT_EQ(output[1]["name"], "g");
  EXPECT_EQ(output[1]["namespace"], "a.b");
}

TEST_F(ApiResponsesTest, AnEmptyAnswerHasAMessage) {
  listen();
  serve();
  const Json response = whole({"<|endoftext|>"});
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "");
}

TEST_F(ApiResponsesTest, AStreamThatIsCutOffHasFailed) {
  listen();
  serve();
  drawer_.emplace(live_.replica(0));
  test::HttpClient client(listener_->address().port);
  client.send(
      test::http_request("POST", "/v1/responses", R"({"input": "a", "max_output_tokens": 90000, "stream": true})"));
  while (replica_metrics_.generated_tokens < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  live_.drain();
  HttpReply reply;
  std::thread reader([&] { reply = client.reply(); });
  api_.reset();
  reader.join();
  EXPECT_TRUE(reply.whole);
  const Json last = events_of(reply.body).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"], (Json{{"code", "server_error"}, {"message", "the server is ending"}}));
}

TEST_F(ApiResponsesTest, NothingIsStored) {
  listen();
  serve();
  for (const char* path : {"/v1/responses/resp-1", "/v1/responses/resp-1/input_items", "/v1/responses/resp-1/cancel"})
    for (const char* method : {"GET", "POST", "DELETE"}) {
      const HttpReply reply = ask(method, path, "{}");
      EXPECT_EQ(reply.status, 404) << method << path;
      EXPECT_NE(reply.body.find("responses are not stored"), std::string::npos) << reply.body;
    }
  EXPECT_EQ(ask("GET", "/v1/responses").status, 405);
  const HttpReply refused = ask("POST", "/v1/responses", R"({"input": "a", "previous_response_id": "resp-1"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(parse_json(refused.body, "error")["error"]["param"], "previous_response_id");
}

}  // namespace
}  // namespace lfm2::serve
