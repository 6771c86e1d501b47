// What a server says about prompts, and how it remembers them: log-probabilities, embeddings, and the prefix cache,
// each with the bits of a job.
#include <algorithm>
#include <cmath>
#include <functional>

#include "support/serve_run.h"

namespace lfm2::test {
namespace {

// What lm-evaluation-harness asks for: log-probabilities of prompts, with the bits of --score for the same tokens.
TEST_F(ServeTest, EchoedPromptsAreScored) {
  std::mt19937 random(7);
  std::vector<Json> prompts, all;
  std::string lines;
  for (const size_t length : {2, 3, 17, 33, 80, 250}) {
    Json& prompt = prompts.emplace_back(Json::array());
    while (prompt.size() < length) prompt.push_back(random() % 900);
    lines += json_text(Json{{"input_ids", prompt}}) + "\n";
    const int top_logprobs = static_cast<int>(1 + prompts.size() % 4);
    all.push_back(
        {{"prompt", {prompt}}, {"max_tokens", 1}, {"logprobs", top_logprobs}, {"echo", true}, {"temperature", 0}});
  }
  all.push_back({{"prompt", prompts}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}});
  const std::vector<Json> scores = output_of(lines, {"--score"});
  ASSERT_EQ(scores.size(), prompts.size());
  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    start(ranks, {"--max-batched-tokens", "16"});
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
  std::vector<std::pair<std::string, Json>> asked;
  for (const Json& body : all) asked.emplace_back("/v1/embeddings", body);
  for (const auto& [ranks, hidden] : {std::pair{1, "last"}, {1, "mean"}, {4, "mean"}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << hidden);
    const std::vector<Json> expected = answers_of_job(asked, {"--hidden", hidden});
    ASSERT_EQ(expected.size(), all.size());
    start(ranks, {"--max-batched-tokens", "16", "--hidden", hidden, "--model-name", "bible"});
    const std::vector<Json> found = ask_all("/v1/embeddings", all);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(json_text(found[i]["data"]), json_text(expected[i]["data"])) << i;
      EXPECT_EQ(found[i]["usage"], expected[i]["usage"]) << i;
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

// Conversations whose turns are written when the answers before them are known, and prompts that begin alike.
class Conversations {
 public:
  static constexpr size_t kCount = 6, kTurns = 6;
  static std::string path(size_t conversation) {
    return conversation % 3 == 2 ? "/v1/completions" : "/v1/chat/completions";
  }
  // The body of a turn, from that of the turn before and its answer.
  static Json next(size_t conversation, size_t turn, const Json& before, const Json& answer) {
    static const std::vector<std::string> kSaid{"And God said, Let there be light", "and there was light.",
                                                "And the LORD spake unto Moses, saying,", "In the beginning", "Selah."};
    Json body = turn > 0 ? before : Json{{"temperature", static_cast<double>(conversation % 3) * 0.6}};
    if (path(conversation) == "/v1/completions") {
      Json& prompt = turn > 0 ? body["prompt"] : body["prompt"] = Json::array();
      for (int id = 10; turn == 0 && id < 80; ++id) prompt.push_back(id);
      for (size_t id = 0; id < 7 + turn; ++id) prompt.push_back(100 * conversation + 20 * turn + id);
      body["logprobs"] = 2;
    } else {
      Json& messages = turn > 0 ? body["messages"] : body["messages"] = Json::array();
      if (turn > 0) messages.push_back(answer["choices"][0]["message"]);
      if (turn > 0) messages.back().erase("refusal");
      messages.push_back({{"role", "user"}, {"content", kSaid[(turn + conversation / 3) % kSaid.size()]}});
      body.update({{"logprobs", true}, {"top_logprobs", 2}});
    }
    body.update({{"max_tokens", 5 + 7 * turn % 23}, {"seed", 10 * conversation + turn}});
    if (conversation % 2 == 1) body["repetition_penalty"] = 1.3;
    body["n"] = turn % 4 == 3 ? 2 : 1;
    return body;
  }
};

// Few pages, so that kept ones must give way to others: as many as the longest texts of two sequences fill.
constexpr int64_t kFewPositions = 2 * 448;
const Arguments kFewPages{"--max-num-seqs", "2", "--page-size", "16", "--max-length", "448"};

class PrefixCacheServeTest : public ServeTest, public testing::WithParamInterface<const char*> {};

TEST_P(PrefixCacheServeTest, ChangesNothing) {
  const std::string dtype = GetParam();
  std::vector<std::pair<std::string, Json>> asked;
  std::vector<Json> computed;
  start(4, {"--no-prefix-cache"}, dtype);
  for (size_t conversation = 0; conversation < Conversations::kCount; ++conversation)
    for (size_t turn = 0; turn < Conversations::kTurns; ++turn) {
      const Json before = turn > 0 ? asked.back().second : Json(), answer = turn > 0 ? computed.back() : Json();
      asked.emplace_back(Conversations::path(conversation), Conversations::next(conversation, turn, before, answer));
      const HttpReply reply = ask("POST", asked.back().first, json_text(asked.back().second));
      ASSERT_EQ(reply.status, 200) << reply.body;
      computed.push_back(parse_json(reply.body, "answer"));
      EXPECT_EQ(take_cached_tokens(computed.back()["usage"]), 0);
    }
  EXPECT_EQ(metric("lfm2_prefix_cache_hits_total"), 0);
  end();
  const std::vector<Json> expected = answers_of_job(asked, {}, dtype);
  ASSERT_EQ(expected.size(), asked.size());
  for (size_t i = 0; i < asked.size(); ++i)
    for (const char* part : {"choices", "usage"}) EXPECT_EQ(computed[i][part], expected[i][part]) << i;
  int64_t positions = 0;  // that all conversations would fill
  for (size_t turn = Conversations::kTurns - 1; turn < asked.size(); turn += Conversations::kTurns)
    positions += expected[turn]["usage"]["prompt_tokens"].get<int64_t>();
  EXPECT_GT(positions, kFewPositions + 100);

  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    start(ranks, kFewPages, dtype);
    std::atomic<int64_t> cached = 0;
    std::atomic<bool> over = false;
    std::thread rude(leave_answers, port_, std::cref(over),
                     R"({"prompt": "And God said, Let there be light", "max_tokens": 90, "ignore_eos": true})");
    std::vector<std::thread> clients;
    for (size_t conversation = 0; conversation < Conversations::kCount; ++conversation)
      clients.emplace_back([&, conversation] {
        for (size_t turn = 0; turn < Conversations::kTurns; ++turn) {
          const size_t i = conversation * Conversations::kTurns + turn;
          Json answer = parse_json(ask("POST", asked[i].first, json_text(asked[i].second)).body, "answer");
          ASSERT_TRUE(answer.contains("usage")) << json_text(answer);
          cached += take_cached_tokens(answer["usage"]);
          for (const char* part : {"choices", "usage"}) EXPECT_EQ(answer[part], expected[i][part]) << i;
        }
      });
    for (std::thread& client : clients) client.join();
    over = true;
    rude.join();
    EXPECT_GT(cached, 1000);
    EXPECT_GE(metric("lfm2_prefix_cache_hits_total"), cached);
    EXPECT_TRUE(becomes_idle());
    end();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PrefixCacheServeTest, testing::Values("fp32", "bf16"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace lfm2::test
