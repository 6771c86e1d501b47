// The server under mpirun: what its clients get are the texts and bits of a job that has the same requests in a file,
// whoever else comes and goes.
#include <fmt/format.h>

#include <cstring>
#include <tuple>

#include "support/serve_bits.h"

namespace lfm2::test {
namespace {

TEST_F(ServeBitsTest, OfAJobWhoeverComesAndGoes) {
  const std::vector<Json> all = bodies(48);
  struct Way {
    std::string model, dtype;
    std::vector<int> ranks;
    Arguments options = {};
  };
  for (const Way& way : {Way{"kjv-moe", "fp32", {1, 4}},
                         {"kjv-moe.channel-all", "fp8", {2}},
                         {"kjv-moe", "fp32", {2}, {"--cache-dtype", "fp8"}}}) {
    model_ = way.model;
    const std::vector<Json> expected = answers_of_job(asked(all), way.options, way.dtype);
    ASSERT_EQ(expected.size(), all.size());
    for (const int ranks : way.ranks) {
      SCOPED_TRACE(testing::Message() << way.model << ", " << ranks << " ranks");
      start(ranks, way.options, way.dtype);
      expect_answers(all, expected);
      const Outcome outcome = end();
      EXPECT_EQ(outcome.out.find("In the"), std::string::npos) << "the access log has no texts";
    }
  }
}

// The same with many more, in both dtypes, with and without the prefix cache.
class ServeLongTest : public ServeBitsTest {};

TEST_F(ServeLongTest, BitsOfFiveHundredRequests) {
  const std::vector<Json> all = bodies(500);
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<Json> expected = answers_of_job(asked(all), {}, dtype);
    ASSERT_EQ(expected.size(), all.size());
    for (const bool caches : {true, false}) {
      SCOPED_TRACE(testing::Message() << dtype << (caches ? "" : ", no prefix cache"));
      start(4, caches ? Arguments{} : Arguments{"--no-prefix-cache"}, dtype);
      const int64_t cached = expect_answers(all, expected);
      if (caches)
        EXPECT_GT(cached, 100 * 64);
      else
        EXPECT_EQ(cached, 0);
      end();
    }
  }
}

// The same with drafts, where a job has none.
TEST_F(ServeLongTest, BitsOfFiveHundredRequestsWithDrafts) {
  const std::vector<Json> all = bodies(500);
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<Json> expected = answers_of_job(asked(all), {}, dtype);
    ASSERT_EQ(expected.size(), all.size());
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << dtype << ", " << ranks << " ranks");
      Arguments options{"--draft", "ngram", "--draft-length", ranks == 2 ? "0" : ranks == 4 ? "9" : "4"};
      if (ranks == 3) options.insert(options.end(), {"--max-num-seqs", "3", "--page-size", "16"});
      start(ranks, options, dtype);
      predicted_ = {};
      expect_answers(all, expected);
      end();
      if (ranks == 2) continue;  // a chosen number depends on clocks
      EXPECT_GT(predicted_.accepted, 0);
      EXPECT_GT(predicted_.rejected, 0);
    }
  }
}

// Each under a constraint, with any number of ranks, many sequences at a time and few.
TEST_F(ServeLongTest, BitsOfThreeHundredConstrainedRequests) {
  const std::vector<Json> constraints = {
      parse_json(R"({"response_format": {"type": "json_object"}})", "constraint"),
      parse_json(R"({"structured_outputs": {"json": {"type": "object", "properties": {"verse": {"type": "integer",
          "minimum": 1, "maximum": 176}, "text": {"type": "string", "maxLength": 30}}, "required": ["verse", "text"],
          "additionalProperties": false}}})",
                 "constraint"),
      parse_json(R"({"guided_regex": "[A-Z][a-z]{2,9}( [a-z]{1,9}){0,8}[.;]"})", "constraint"),
      parse_json(R"({"guided_choice": ["In the beginning", "In the end", "Amen"]})", "constraint"),
      parse_json(R"({"guided_grammar": "root ::= \"(\" [a-c]+ \")\" | root \"+\" root"})", "constraint")};
  std::vector<Json> all = bodies(300);
  for (size_t i = 0; i < all.size(); ++i) {
    for (const char* field : {"echo", "structured_outputs"}) all[i].erase(field);
    all[i]["max_tokens"] = std::max(all[i]["max_tokens"].get<int64_t>(), int64_t{10});
    all[i].update(constraints[i % constraints.size()]);
  }
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<Json> expected = answers_of_job(asked(all), {}, dtype);
    ASSERT_EQ(expected.size(), all.size());
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << dtype << ", " << ranks << " ranks");
      start(ranks, ranks == 3 ? Arguments{"--max-num-seqs", "3", "--page-size", "16"} : Arguments{}, dtype);
      expect_answers(all, expected);
      end();
    }
  }
}

TEST_F(ServeTest, RoutesAndRefusals) {
  start(2, {"--model-name", "bible", "--max-queue", "3", "--max-length", "700"});
  const Json models = get("/v1/models");
  EXPECT_EQ(models["data"][0]["id"], "bible");
  EXPECT_EQ(models["data"][0]["root"], "bible");
  EXPECT_EQ(models["data"][0]["max_model_len"], 700);
  EXPECT_EQ(get("/v1/models/bible"), models["data"][0]);
  EXPECT_EQ(ask("GET", "/v1/models/koran").status, 404);
  EXPECT_EQ(get("/tokenizer_info")["bos_token"], "<|startoftext|>");
  EXPECT_EQ(get("/tokenizer_info")["eos_token"], "<|endoftext|>");
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
                                           {"/v1/completions", R"({"prompt": "a", "n": 4})", 400},
                                           {"/v1/completions", R"({"prompt": "a", "max_tokens": 0})", 400},
                                           {"/v1/embeddings", R"({"input": ["a", "b", "c", "d"]})", 400},
                                           {"/v1/chat/completions", R"({"messages": []})", 400},
                                           {"/v1/nothing", "{}", 404},
                                           {"/health", "{}", 405}}) {
    const HttpReply reply = ask("POST", path, body);
    EXPECT_EQ(reply.status, status) << path << " " << body << reply.body;
    EXPECT_FALSE(parse_json(reply.body, "error")["error"]["message"].get<std::string>().empty());
  }
  // What would change the answer is refused by its name, whoever's it is.
  const std::string prompt = R"("prompt": "a")", chat = R"("messages": [{"role": "user", "content": "a"}])";
  for (const auto& [path, fields, field] : {std::tuple{"/v1/chat/completions", chat, R"("grammar": "x")"},
                                            {"/v1/chat/completions", chat, R"("echo": true)"},
                                            {"/v1/completions", prompt, R"("no_repeat_ngram_size": 2)"},
                                            {"/v1/embeddings", R"("input": "a")", R"("truncate_prompt_tokens": 2)"},
                                            {"/tokenize", prompt, R"("continue_final_message": true)"}}) {
    const HttpReply reply = ask("POST", path, fmt::format("{{{}, {}}}", fields, field));
    const std::string name(field + 1, std::strchr(field + 1, '"'));
    EXPECT_EQ(reply.status, 400) << path << field;
    EXPECT_EQ(parse_json(reply.body, "error")["error"]["param"], name) << reply.body;
    EXPECT_NE(reply.body.find("which is not supported"), std::string::npos) << reply.body;
  }
  // By these words and this code clients know that the context is full.
  std::string ones = "1";
  for (int i = 0; i < 800; ++i) ones += ",1";
  for (const auto& [path, before, after, param] :
       {std::tuple{"/v1/completions", R"("stream": true, "prompt": [)", "]", "prompt"},
        {"/v1/chat/completions", R"("messages": [{"role": "user", "content": ")", R"("}])", "messages"},
        {"/v1/embeddings", R"("input": [)", "]", "input"}}) {
    const HttpReply reply = ask("POST", path, fmt::format("{{{}{}{}}}", before, ones, after));
    EXPECT_EQ(reply.status, 400);
    const Json error = parse_json(reply.body, "error")["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], param);
    EXPECT_NE(
        error["message"].get<std::string>().find(fmt::format(
            "is too long. This model's maximum context length is 700 tokens. However, your {} resulted in ", param)),
        std::string::npos)
        << error;
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

// What has no time to end gets an error, and the server has still done what it was asked to.
TEST_F(ServeTest, EndsWithinItsTime) {
  start(4, {"--drain-seconds", "0"});
  HttpClient stream(port_);
  stream.send(http_request("POST", "/v1/completions",
                           R"({"prompt": "In the", "max_tokens": 900, "ignore_eos": true, "n": 16, "stream": true})"));
  while (metric("lfm2_num_requests_running") == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->signal(SIGUSR1);
  const HttpReply reply = stream.reply();
  EXPECT_TRUE(reply.whole);
  EXPECT_NE(reply.body.find("the server is ending"), std::string::npos) << reply.body.substr(0, 500);
  EXPECT_EQ(server_->wait().exit_code, 0);
}

TEST_F(ServeTest, PagesAndNamesFromElsewhere) {
  start(1, {"--allowed-host", "lfm2", "--cors-origin", "http://pages.example:3000", "--root-path", "/api"});
  const auto send = [&](const std::string& method, const std::string& path, const std::string& fields,
                        const std::string& host = "lfm2") {
    HttpClient client(port_);
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n{}\r\n", method, path, host, fields));
    return client.reply();
  };
  EXPECT_EQ(send("GET", "/v1/models", "").status, 200);
  const HttpReply stranger = send("GET", "/v1/models", "", "other");
  EXPECT_EQ(stranger.status, 403);
  EXPECT_NE(stranger.body.find("--allowed-host other or with --api-key-file"), std::string::npos) << stranger.body;
  for (const auto& [path, status] : {std::pair{"/api/v1/models", 200}, {"/api/", 200}, {"/api", 308}, {"/apiv1", 404}})
    EXPECT_EQ(send("GET", path, "").status, status) << path;
  const std::string ours = "Origin: http://pages.example:3000\r\n", theirs = "Origin: http://other.example\r\n",
                    asks = "Access-Control-Request-Method: POST\r\n";
  EXPECT_EQ(send("OPTIONS", "/api/v1/completions", ours + asks).status, 204);
  EXPECT_EQ(send("OPTIONS", "/api/v1/completions", theirs + asks).status, 403);
  const HttpReply refused = send("GET", "/v1/nothing", ours);
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "http://pages.example:3000");
  EXPECT_EQ(send("GET", "/v1/models", theirs).status, 403);
  for (const char* coding : {"Content-Encoding: gzip\r\n", "Content-Type: application/json; charset=utf-16\r\n"})
    EXPECT_EQ(send("POST", "/v1/completions", std::string(coding) + "Content-Length: 1\r\n").status, 415) << coding;
  end();
}

TEST_F(ServeTest, AModelWithoutATokenizerTakesTokenIds) {
  model_ = "tiny-moe";
  start(2);
  const Json answer = parse_json(
      ask("POST", "/v1/completions", R"({"prompt": [[1, 2, 3], [4]], "max_tokens": 5, "ignore_eos": true})").body, "a");
  const std::vector<Json> job =
      output_of("{\"prompt\": [1, 2, 3], \"ignore_eos\": true}\n{\"prompt\": [4], \"ignore_eos\": true}\n",
                {"--max-tokens", "5"});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(answer["choices"][i]["token_ids"], job[i]["token_ids"]);
  const HttpReply text = ask("POST", "/v1/completions", R"({"prompt": "And"})");
  EXPECT_EQ(text.status, 400);
  EXPECT_NE(text.body.find("the model has no tokenizer: expected token ids"), std::string::npos) << text.body;
  const Outcome outcome = end();
  EXPECT_NE(outcome.err.find("list none: expected --tokenizer FOLDER"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("\njob        2 prompts, 4 tokens in all, 10 tokens generated in "), std::string::npos)
      << outcome.out;
}

// What a request draws without a seed is drawn again by the seed in the log.
TEST_F(ServeTest, ARequestWithoutASeedHasItsOwn) {
  start(1);
  const auto texts = [&](const Json& more) {
    Json body{{"prompt", "In the beginning"}, {"max_tokens", 12}, {"temperature", 1.2}};
    body.update(more);
    std::vector<std::string> found;
    const HttpReply reply = ask("POST", "/v1/completions", json_text(body));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json answer = parse_json(reply.body, "answer");
    for (const Json& choice : answer["choices"]) found.push_back(choice["text"]);
    return found;
  };
  const std::string first = texts(Json::object())[0];
  EXPECT_NE(texts({{"seed", -1}})[0], first);
  const std::vector<std::string> two = texts({{"prompt", Json::array({"In the beginning", "In the beginning"})}});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_NE(two[0], two[1]);
  EXPECT_EQ(texts({{"seed", 3}}), texts({{"seed", 3}}));
  const std::string log = end().out;
  const size_t at = log.find("\"seed\":");
  ASSERT_NE(at, std::string::npos) << log;
  start(1, {"--seed", "3"});
  EXPECT_EQ(texts({{"seed", std::stoull(log.substr(at + 7))}})[0], first);
  EXPECT_EQ(texts(Json::object()), texts({{"seed", 3}}));
  end();
}

TEST_F(ServeTest, Keys) {
  write_bytes(folder_ / "keys", "first-key\n\nsecond-key\r\n");
  start(1, {"--api-key-file", folder_ / "keys"});
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer first-ke\r\n").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", {}, "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(ask("GET", "/health").status, 200);
  // A second server on this port ends before it loads anything, and leaves the address of nobody behind.
  write_bytes(folder_ / "other", "http://127.0.0.1:1\n");
  Arguments command = mpi_command(1, LFM2_STAGE_PROGRAM);
  command.insert(command.end(), {"serve", "--weights", shards(1), "--port", std::to_string(port_), "--address-file",
                                 folder_ / "other"});
  const Outcome second = run_program(command);
  EXPECT_EQ(second.exit_code, 69) << second.err;
  EXPECT_NE(second.err.find("bind failed"), std::string::npos) << second.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
  end();
}

}  // namespace
}  // namespace lfm2::test
