// The server under mpirun: what its clients get are the texts and bits of a job that has the same requests in a file,
// whoever else comes and goes.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <sstream>
#include <thread>

#include "stage/support/json.h"
#include "support/golden.h"
#include "support/http_client.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;

class ServeTest : public testing::Test {
 protected:
  void start(int ranks, const Arguments& more = {}) {
    Arguments command = mpi_command(ranks, LFM2_STAGE_PROGRAM);
    command.insert(command.end(), {"serve", "--threads", "1", "--weights", shards(ranks), "--port", "0",
                                   "--address-file", folder_ / "address", "--dtype", "fp32"});
    const Arguments machine = machine_options();
    command.insert(command.end(), machine.begin(), machine.end());
    command.insert(command.end(), more.begin(), more.end());
    server_.emplace(command);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(folder_ / "address") && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string address = read_bytes(folder_ / "address");  // http://127.0.0.1:PORT
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  // Ends the server, which must not lose anything by it.
  Outcome end() {
    server_->signal(SIGUSR1);
    Outcome outcome = server_->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    server_.reset();
    return outcome;
  }
  static std::string shards(int ranks) { return golden_shards("kjv-moe", ranks == 2 ? 4 : ranks); }

  HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {},
                std::string_view fields = {}) const {
    HttpClient client(port_);
    client.send(http_request(method, path, body, fields));
    return client.reply();
  }
  // The answers to bodies that come all at once.
  std::vector<Json> ask_all(std::string_view path, const std::vector<Json>& bodies) const {
    std::vector<Json> answers(bodies.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < bodies.size(); ++i)
      clients.emplace_back([&, i] {
        const HttpReply reply = ask("POST", path, json_text(bodies[i]));
        EXPECT_EQ(reply.status, 200) << reply.body;
        answers[i] = parse_json(reply.body, "answer");
      });
    for (std::thread& client : clients) client.join();
    return answers;
  }
  // The lines of a job's output.
  std::vector<Json> output_of(const std::string& input, const Arguments& more = {}) const {
    write_bytes(folder_ / "in.jsonl", input);
    std::filesystem::remove(folder_ / "out.jsonl");
    Arguments arguments{"--weights",          shards(1), "--dtype", "fp32", "--input", folder_ / "in.jsonl", "--output",
                        folder_ / "out.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome job = run_stage(1, arguments);
    EXPECT_EQ(job.exit_code, 0) << job.err;
    std::vector<Json> lines;
    std::istringstream output(job.exit_code == 0 ? read_bytes(folder_ / "out.jsonl") : "");
    for (std::string line; std::getline(output, line);) lines.push_back(parse_json(line, "line"));
    return lines;
  }
  Json get(std::string_view path) const { return parse_json(ask("GET", path).body, "answer"); }
  // The number behind a name in the metrics.
  int64_t metric(const std::string& name) const {
    const std::string text = ask("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
  }
  bool becomes_idle() const {
    for (int i = 0; i < 400; ++i) {
      if (metric("lfm2_num_requests_running") == 0 && metric("lfm2_num_requests_waiting") == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }

  TemporaryFolder folder_;
  std::optional<RunningProgram> server_;
  uint16_t port_ = 0;
};

// Bodies of all kinds, the same for the server and for a file of batch lines.
std::vector<Json> bodies(int count) {
  std::mt19937 random(5);
  std::vector<Json> bodies;
  for (int i = 0; i < count; ++i) {
    Json body{{"prompt", Json::array()}, {"max_tokens", 1 + random() % 40}, {"seed", i}, {"temperature", i % 3 * 0.6}};
    for (size_t left = 1 + random() % (i % 7 == 0 ? 300 : 20); left > 0; --left)
      body["prompt"].push_back(random() % 900);
    if (i % 2 == 0) body["logprobs"] = i % 5;
    if (i % 4 == 1) body["n"] = 2;
    if (i % 4 == 2) body["echo"] = true;
    if (i % 8 == 2) body["max_tokens"] = 0;
    if (i % 5 == 2) body["stop"] = {" the", "."};
    if (i % 5 == 3)
      body.update({{"min_p", 0.1}, {"repetition_penalty", 1.2}, {"frequency_penalty", 0.3}, {"top_k", 40}});
    bodies.push_back(std::move(body));
  }
  return bodies;
}

// The choices of a streamed answer, put together.
Json joined(const std::string& events, Json& usage) {
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

TEST_F(ServeTest, TheBitsOfAJobWhoeverComesAndGoes) {
  const std::vector<Json> all = bodies(48);
  std::string lines;
  for (size_t i = 0; i < all.size(); ++i)
    lines += json_text(Json{
                 {"custom_id", std::to_string(i)}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", all[i]}}) +
             "\n";
  std::vector<Json> expected;
  for (const Json& line : output_of(lines)) expected.push_back(line["response"]["body"]);
  ASSERT_EQ(expected.size(), all.size());

  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    std::filesystem::remove(folder_ / "address");
    start(ranks);
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
    std::thread rude([&] {
      std::mt19937 random(3);
      while (!over) {
        HttpClient client(port_);
        client.send(
            http_request("POST", "/v1/completions",
                         R"({"prompt": "In the", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 2})"));
        if (random() % 2 == 0) client.read_some(std::chrono::milliseconds(random() % 30));
        client.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
      }
    });
    for (std::thread& client : clients) client.join();
    over = true;
    rude.join();
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(json_text(found[i]), json_text(expected[i]["choices"])) << i;
      EXPECT_EQ(usage[i], expected[i]["usage"]) << i;
    }
    EXPECT_TRUE(becomes_idle());
    const Outcome outcome = end();
    EXPECT_EQ(outcome.out.find("In the"), std::string::npos) << "the access log has no texts";
  }
}

// What lm-evaluation-harness asks for: log-probabilities of prompts, with the bits of --score for the same tokens.
TEST_F(ServeTest, EchoedPromptsAreScored) {
  std::mt19937 random(7);
  std::vector<Json> prompts, all;
  std::string lines;
  for (const size_t length : {2, 3, 17, 33, 80, 250}) {
    Json& prompt = prompts.emplace_back(Json::array());
    while (prompt.size() < length) prompt.push_back(random() % 900);
    lines += json_text(Json{{"input_ids", prompt}}) + "\n";
    const int likeliest = static_cast<int>(1 + prompts.size() % 4);
    all.push_back(
        {{"prompt", {prompt}}, {"max_tokens", 1}, {"logprobs", likeliest}, {"echo", true}, {"temperature", 0}});
  }
  all.push_back({{"prompt", prompts}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}});
  const std::vector<Json> scores = output_of(lines, {"--score"});
  ASSERT_EQ(scores.size(), prompts.size());
  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    std::filesystem::remove(folder_ / "address");
    start(ranks, {"--prefill-chunk", "16"});
    const std::vector<Json> answers = ask_all("/v1/completions", all);
    for (size_t i = 0; i < 2 * prompts.size(); ++i) {
      const size_t prompt = i % prompts.size();
      const bool alone = i >= prompts.size();
      const Json& choice = alone ? answers.back()["choices"][prompt] : answers[i]["choices"][0];
      const Json& probs = choice["logprobs"];
      const size_t tokens = prompts[prompt].size();
      for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
        EXPECT_EQ(probs[list].size(), tokens + (alone ? 0 : 1)) << list;
      EXPECT_TRUE(probs["token_logprobs"][0].is_null() && probs["top_logprobs"][0].is_null());
      for (size_t token = 1; token < tokens; ++token) {
        const float own = probs["token_logprobs"][token];
        EXPECT_EQ(own, scores[prompt]["logprobs"][token - 1].get<float>()) << i << ", " << token;
        float best = -INFINITY;
        for (const auto& [text, value] : probs["top_logprobs"][token].items())
          best = std::max(best, value.get<float>());
        EXPECT_EQ(own == best, scores[prompt]["is_greedy"][token - 1]) << i << ", " << token;
      }
      EXPECT_EQ(choice["finish_reason"], "length");
    }
    EXPECT_EQ(answers.back()["usage"]["completion_tokens"], 0);
    EXPECT_EQ(metric("lfm2_generation_tokens_total"), static_cast<int64_t>(prompts.size()));
    end();
  }
}

TEST_F(ServeTest, EmbeddingsAreThoseOfAJob) {
  std::mt19937 random(9);
  Json list = Json::array();
  for (const size_t length : {1, 2, 40, 150}) {
    list.push_back(Json::array());
    while (list.back().size() < length) list.back().push_back(random() % 900);
  }
  const std::vector<Json> all{{{"input", "In the beginning God created the heaven and the earth"}, {"model", "any"}},
                              {{"input", {"In the", "And God said"}}, {"encoding_format", "base64"}},
                              {{"input", list[2]}, {"encoding_format", "float"}, {"dimensions", 128}},
                              {{"input", list}, {"user", "u"}}};
  std::string lines;
  for (const Json& body : all)
    lines += json_text(Json{{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/embeddings"}, {"body", body}}) + "\n";
  for (const auto& [ranks, hidden] : {std::pair{1, "last"}, {1, "mean"}, {4, "mean"}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << hidden);
    const std::vector<Json> expected = output_of(lines, {"--hidden", hidden});
    ASSERT_EQ(expected.size(), all.size());
    std::filesystem::remove(folder_ / "address");
    start(ranks, {"--prefill-chunk", "16", "--hidden", hidden, "--model-name", "bible"});
    const std::vector<Json> found = ask_all("/v1/embeddings", all);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(json_text(found[i]["data"]), json_text(expected[i]["response"]["body"]["data"])) << i;
      EXPECT_EQ(found[i]["usage"], expected[i]["response"]["body"]["usage"]) << i;
      EXPECT_EQ(found[i]["model"], "bible");
    }
    for (const char* refused : {R"({"input": "a", "dimensions": 64})", R"({"input": []})", R"({"input": [2000]})",
                                R"({"input": "a", "encoding_format": "int8"})"}) {
      const HttpReply reply = ask("POST", "/v1/embeddings", refused);
      EXPECT_EQ(reply.status, 400) << refused << reply.body;
    }
    EXPECT_EQ(metric("lfm2_generation_tokens_total"), 0);
    EXPECT_TRUE(becomes_idle());
    end();
  }
}

TEST_F(ServeTest, RoutesAndRefusals) {
  start(2, {"--model-name", "bible", "--max-queue", "3", "--max-length", "700"});
  const Json models = get("/v1/models");
  EXPECT_EQ(models["data"][0]["id"], "bible");
  EXPECT_EQ(models["data"][0]["root"], "bible");
  EXPECT_EQ(models["data"][0]["max_model_len"], 700);
  EXPECT_EQ(get("/health")["status"], "ok");
  EXPECT_FALSE(get("/version")["version"].get<std::string>().empty());
  const Json ids = parse_json(ask("POST", "/tokenize", R"({"prompt": "In the beginning"})").body, "ids");
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  const Json bare = parse_json(
      ask("POST", "/tokenize", R"({"prompt": "In the beginning", "add_special_tokens": false})").body, "ids");
  EXPECT_EQ(bare["tokens"].size() + 1, ids["tokens"].size());
  const Json text = parse_json(ask("POST", "/detokenize", json_text(Json{{"tokens", bare["tokens"]}})).body, "text");
  EXPECT_EQ(text["prompt"], "In the beginning");
  for (const auto& [path, body, status] : {std::tuple{"/v1/completions", "nonsense", 400},
                                           {"/v1/completions", R"({"prompt": "a", "best_of": 2})", 400},
                                           {"/v1/completions", R"({"prompt": "a", "n": 4})", 429},
                                           {"/v1/completions", R"({"prompt": "a", "max_tokens": 0})", 400},
                                           {"/v1/embeddings", R"({"input": ["a", "b", "c", "d"]})", 400},
                                           {"/v1/chat/completions", R"({"messages": []})", 400},
                                           {"/v1/nothing", "{}", 404},
                                           {"/health", "{}", 405}}) {
    const HttpReply reply = ask("POST", path, body);
    EXPECT_EQ(reply.status, status) << path << " " << body << reply.body;
    EXPECT_FALSE(parse_json(reply.body, "error")["error"]["message"].get<std::string>().empty());
  }
  // A running request ends as it would have: the server waits for it.
  HttpClient last(port_);
  last.send(http_request("POST", "/v1/completions",
                         R"({"prompt": "In the", "max_tokens": 300, "ignore_eos": true, "temperature": 0})"));
  while (metric("lfm2_num_requests_running") != 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->signal(SIGUSR1);
  const HttpReply reply = last.reply();
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(parse_json(reply.body, "answer")["usage"]["completion_tokens"], 300);
  EXPECT_EQ(server_->wait().exit_code, 0);
}

TEST_F(ServeTest, Keys) {
  write_bytes(folder_ / "keys", "first-key\n\nsecond-key\r\n");
  start(1, {"--api-key-file", folder_ / "keys"});
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer first-ke\r\n").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(ask("GET", "/health").status, 200);
  end();
}

}  // namespace
}  // namespace lfm2::test
