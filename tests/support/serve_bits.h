// Requests of all kinds whose answers by a server must have the bits of a job with the same requests in a file. Used by
// the tests of serve.
#pragma once

#include <functional>
#include <map>
#include <sstream>

#include "support/serve_run.h"

namespace lfm2::test {

// Bodies of all kinds, the same for the server and for a file of batch lines; a third of them begin alike.
inline std::vector<Json> bodies(int count) {
  std::mt19937 random(5);
  std::vector<Json> bodies;
  for (int i = 0; i < count; ++i) {
    Json body{{"prompt", Json::array()}, {"max_tokens", 1 + random() % 40}, {"seed", i}, {"temperature", i % 3 * 0.6}};
    for (int id = 0; i % 3 == 1 && id < 150; ++id) body["prompt"].push_back(20 + id % (30 + i % 2));
    for (size_t left = 1 + random() % (i % 7 == 0 ? 300 : 20); left > 0; --left)
      body["prompt"].push_back(random() % 900);
    if (i % 2 == 0) body["logprobs"] = i % 5;
    if (i % 4 == 1) body["n"] = 2;
    if (i % 4 == 2) body["echo"] = true;
    if (i % 8 == 2) body["max_tokens"] = 0;
    if (i % 5 == 2) body["stop"] = {" the", "."};
    if (i % 5 == 3)
      body.update({{"min_p", 0.1}, {"repetition_penalty", 1.2}, {"frequency_penalty", 0.3}, {"top_k", 40}});
    if (i % 6 == 5 && !body.contains("echo"))
      body["structured_outputs"] = {{"json", {{"type", "array"}, {"items", {{"type", {"integer", "boolean"}}}}}}};
    bodies.push_back(std::move(body));
  }
  return bodies;
}

// The choices of a streamed answer, put together.
inline Json joined(const std::string& events, Json& usage) {
  std::map<int, Json> choices;
  std::istringstream lines(events);
  bool done = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "data: [DONE]") {
      done |= !line.empty();
      continue;
    }
    EXPECT_FALSE(done);
    const Json chunk = parse_json(line.substr(6), "event");
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& one : chunk["choices"]) {
      const auto [whole, is_new] = choices.try_emplace(one["index"].get<int>(), one);
      if (is_new) continue;
      Json& sum = whole->second;
      sum["text"] = sum["text"].get<std::string>() + one["text"].get<std::string>();
      sum["finish_reason"] = one["finish_reason"];
      if (!one["logprobs"].is_null())
        for (const auto& [key, list] : one["logprobs"].items())
          for (const Json& value : list) sum["logprobs"][key].push_back(value);
    }
  }
  EXPECT_TRUE(done) << events;
  Json list = Json::array();
  for (const auto& [index, choice] : choices) list.push_back(choice);
  return list;
}

class ServeBitsTest : public ServeTest {
 protected:
  // Asks for all bodies, every third as a stream, while others go away in the middle of theirs; returns the sum of
  // cached tokens.
  int64_t expect_answers(const std::vector<Json>& all, const std::vector<Json>& expected) {
    std::vector<Json> found(all.size()), usage(all.size());
    std::atomic<size_t> next = 0;
    std::atomic<bool> over = false;
    std::vector<std::thread> clients;
    for (int client = 0; client < 12; ++client)
      clients.emplace_back([&] {
        for (size_t i = 0; (i = next++) < all.size();) {
          Json body = all[i];
          if (i % 3 == 0) body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
          const HttpReply reply = ask("POST", "/v1/completions", json_text(body));
          EXPECT_EQ(reply.status, 200) << reply.body;
          if (i % 3 == 0) {
            found[i] = joined(reply.body, usage[i]);
          } else {
            const Json answer = parse_json(reply.body, "answer");
            found[i] = answer["choices"];
            usage[i] = answer["usage"];
          }
        }
      });
    std::thread rude(leave_answers, port_, std::cref(over),
                     R"({"prompt": "In the", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 2})");
    for (std::thread& client : clients) client.join();
    over = true;
    rude.join();
    int64_t cached = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(json_text(found[i]), json_text(expected[i]["choices"])) << i;
      cached += take_cached_tokens(usage[i]);
      const Predicted own = take_predicted(usage[i]);
      predicted_.accepted += own.accepted;
      predicted_.rejected += own.rejected;
      EXPECT_EQ(usage[i], expected[i]["usage"]) << i;
    }
    EXPECT_TRUE(becomes_idle());
    return cached;
  }
  static std::vector<std::pair<std::string, Json>> asked(const std::vector<Json>& all) {
    std::vector<std::pair<std::string, Json>> asked;
    for (const Json& body : all) asked.emplace_back("/v1/completions", body);
    return asked;
  }

  Predicted predicted_;  // of all answers
};

}  // namespace lfm2::test
