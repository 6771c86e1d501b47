#include "openai/openai_request.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/constraint_cache.h"
#include "support/golden.h"
#include "text/text_model.h"

namespace lfm2::serve {
namespace {

class OpenAiRequestTest : public testing::Test {
 protected:
  OpenAiRequest parse(const std::string& body, bool chat = false) const {
    RequestDefaults defaults;
    defaults.of_text.max_new = 100;
    defaults.of_text.eos_tokens = {2};
    defaults.of_text.rule.temperature = 0.5f;
    return parse_openai_request(body, chat, context_, defaults, {.max_prompt_tokens = 64, .max_edits = 8});
  }
  std::string refusal(const std::string& body, bool chat = false) const {
    try {
      parse(body, chat);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      return error.what();
    }
    return "taken";
  }

  const TextModel text_ = TextModel::open(test::golden_dir() / "text");
  mutable grammar::ConstraintCache constraints_{text_.tokenizer(), 1280};
  const LineContext context_{
      .vocab = 1280, .max_positions = 128, .text = &text_, .constraints = &constraints_, .continues = true};
};

TEST_F(OpenAiRequestTest, PromptsAndChoices) {
  const OpenAiRequest one = parse(R"({"prompt": [5, 6, 7], "model": "any", "unknown": {"x": 1}, "stop": null})");
  ASSERT_EQ(one.requests.size(), 1u);
  EXPECT_EQ(one.requests[0].prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(one.requests[0].max_new, 16);  // as OpenAI's completions
  EXPECT_EQ(one.requests[0].rule.temperature, 0.5f);
  EXPECT_FALSE(one.stream);
  const OpenAiRequest many = parse(R"({"prompt": ["a", "b"], "n": 2, "seed": 4, "max_tokens": 9, "stream": true,
                                       "stream_options": {"include_usage": true}, "logprobs": 3, "temperature": 0})");
  ASSERT_EQ(many.requests.size(), 4u);
  EXPECT_EQ(many.requests[0].prompt, many.requests[1].prompt);
  EXPECT_NE(many.requests[0].prompt, many.requests[2].prompt);
  EXPECT_EQ(many.requests[0].rule.seed, 4u);
  EXPECT_NE(many.requests[1].rule.seed, 4u);
  EXPECT_EQ(many.requests[2].rule.seed, 4u);
  EXPECT_EQ(many.requests[3].num_top_logprobs, 3);
  EXPECT_EQ(many.requests[3].max_new, 9);
  EXPECT_TRUE(many.stream && many.include_usage);
  EXPECT_EQ(parse(R"({"prompt": [[5, 6], [7]]})").requests.size(), 2u);
  EXPECT_EQ(parse(R"({"prompt": "a", "max_tokens": 1000})").requests[0].max_new, 62);
}

TEST_F(OpenAiRequestTest, OptionsOfSchemas) {
  for (const auto& [options, expected] :
       {std::pair{R"("disable_any_whitespace": false, "disable_additional_properties": null)", ""},
        {R"("disable_any_whitespace": true)", R"(,"any_whitespace":false)"},
        {R"("disable_additional_properties": true)", R"(,"closed_objects":true)"}})
    EXPECT_EQ(parse(R"({"prompt": "a", "structured_outputs": {"json": {}, )" + std::string(options) + "}}")
                  .requests[0]
                  .constraint,
              R"({"json_schema":{})" + std::string(expected) + "}");
}

TEST_F(OpenAiRequestTest, Refusals) {
  for (const auto& [body, reason] :
       {std::pair{"nonsense", "not valid JSON"},
        {"[]", "expected an object"},
        {"{}", "\"prompt\" is null"},
        {R"({"prompt": []})", "0 tokens"},
        {R"({"prompt": [1280]})", "\"prompt\" is 1280"},
        {R"({"prompt": 5})", "\"prompt\" is 5"},
        {R"({"prompt": "a", "temperature": -1})", "\"temperature\" is -1"},
        {R"({"prompt": "a", "best_of": 2})", "\"best_of\" is 2"},
        {R"({"prompt": "a", "guided_json": {"type": 1}})", "\"guided_json\": #: type"},
        {R"({"prompt": "a", "response_format": {"type": "xml"}})", "\"response_format\""},
        {R"({"prompt": "a", "structured_outputs": {"json": {}, "disable_additional_properties": 1}})",
         "\"disable_additional_properties\" is 1"},
        {R"({"prompt": "a", "skip_special_tokens": false})", "\"skip_special_tokens\" is false"},
        {R"({"prompt": "a", "include_stop_str_in_output": true})", "\"include_stop_str_in_output\" is true"},
        {R"({"prompt": "a", "truncate_prompt_tokens": 65})", "\"truncate_prompt_tokens\" is 65"},
        {R"({"prompt": "a", "logprobs": 21})", "21 log-probabilities"},
        {R"({"prompt": "a", "n": 129})", "\"n\" is 129"},
        {R"({"prompt": ["a", "b"], "n": 100})", "2 prompts with 100 choices"},
        {R"({"prompt": "a", "stop_token_ids": [1,2,3,4,5,6,7,8,9], "min_tokens": 2})", "bias"},
        {R"({"prompt": "a", "max_tokens": 0})", "\"max_tokens\" is 0"},
        {R"({"prompt": "a", "stream": 1})", "\"stream\" is 1"}})
    EXPECT_NE(refusal(body).find(reason), std::string::npos) << body << ": " << refusal(body);
  EXPECT_NE(refusal(R"({"messages": []})", true).find("\"messages\" is []"), std::string::npos);
  for (const char* field :
       {R"("chat_template": "{{ 1 }}")", R"("add_special_tokens": true)", R"("echo": true)", R"("grammar": "x")"})
    EXPECT_NE(refusal(std::string(R"({"messages": [{"role": "user", "content": "a"}], )") + field + "}", true)
                  .find("not supported"),
              std::string::npos)
        << field;
  EXPECT_NE(refusal("{\"prompt\": [" + std::string(200, '1') + "]}"), "taken");
  std::string long_prompt = R"({"prompt": [1)";
  for (int i = 0; i < 63; ++i) long_prompt += ",1";
  EXPECT_NE(refusal(long_prompt + "]}")
                .find("maximum context length is 64 tokens. However, your prompt resulted in 64 tokens"),
            std::string::npos);
  for (const char* neutral : {R"({"prompt": "a", "best_of": 1, "suffix": null, "echo": false, "bad_words": []})",
                              R"({"prompt": "a", "response_format": {"type": "text"}, "length_penalty": 1.0})",
                              R"({"prompt": "a", "text.format": 5})",  // of /v1/responses, as the next
                              R"({"prompt": "a", "truncation": "auto", "background": true, "conversation": "c"})",
                              R"({"prompt": "a", "skip_special_tokens": true, "add_special_tokens": false})"})
    EXPECT_EQ(refusal(neutral), "taken") << neutral;
}

TEST_F(OpenAiRequestTest, FreshSeeds) {
  const auto seeds = [&](const std::string& body) {
    RequestDefaults defaults;
    defaults.of_text.rule.temperature = 0.5f;
    std::vector<uint64_t> found;
    for (const Request& request :
         parse_openai_request(body, false, context_, defaults, {.max_prompt_tokens = 64}, 700).requests)
      found.push_back(request.rule.seed);
    return found;
  };
  EXPECT_EQ(seeds(R"({"prompt": [1]})"), std::vector<uint64_t>{700});
  EXPECT_EQ(seeds(R"({"prompt": [1], "seed": -1})"), std::vector<uint64_t>{700});
  EXPECT_EQ(seeds(R"({"prompt": [1], "seed": 5})"), std::vector<uint64_t>{5});
  EXPECT_EQ(seeds(R"({"prompt": [[1], [1], [2]]})"), (std::vector<uint64_t>{700, 701, 702}));
  EXPECT_EQ(seeds(R"({"prompt": [[1], [1]], "seed": 5})"), (std::vector<uint64_t>{5, 5}));
}

// The tokenizer of these tests begins each text with BOS.
TEST_F(OpenAiRequestTest, TextsWithoutSpecialTokens) {
  const std::vector<int32_t> with = parse(R"({"prompt": "a"})").requests[0].prompt;
  const std::vector<int32_t> without = parse(R"({"prompt": "a", "add_special_tokens": false})").requests[0].prompt;
  EXPECT_EQ(std::vector<int32_t>(with.begin() + 1, with.end()), without);
}

// As lm-evaluation-harness asks for log-likelihoods.
TEST_F(OpenAiRequestTest, EchoedPromptsWithLogProbs) {
  const OpenAiRequest one = parse(R"({"prompt": [[5, 6], [7, 8, 9]], "max_tokens": 1, "logprobs": 1, "echo": true})");
  EXPECT_TRUE(one.form.echo && one.form.log_probs == 1 && !one.prefill_only);
  ASSERT_EQ(one.requests.size(), 2u);
  EXPECT_TRUE(one.requests[1].prompt_log_probs && !one.requests[1].prefill_only);
  EXPECT_EQ(one.requests[1].num_top_logprobs, 1);
  EXPECT_FALSE(parse(R"({"prompt": [5], "echo": true})").requests[0].prompt_log_probs);
  EXPECT_FALSE(parse(R"({"prompt": [5], "logprobs": 1})").requests[0].prompt_log_probs);
  const OpenAiRequest alone = parse(R"({"prompt": [5, 6], "max_tokens": 0, "logprobs": 1, "echo": true, "stop": "a"})");
  EXPECT_TRUE(alone.prefill_only && alone.requests[0].prefill_only);
  EXPECT_EQ(alone.requests[0].max_new, 1);
  EXPECT_TRUE(alone.requests[0].stop.empty() && alone.requests[0].eos_tokens.empty());
  // What is not continued needs no room behind it.
  std::string longest = R"({"logprobs": 20, "echo": true, "max_tokens": 0, "prompt": [1)";
  for (int i = 0; i < 63; ++i) longest += ",1";
  EXPECT_EQ(parse(longest + "]}").requests[0].prompt.size(), 64u);
  EXPECT_NE(
      refusal(longest + ",1]}").find("maximum context length is 64 tokens. However, your prompt resulted in 65 tokens"),
      std::string::npos);
  EXPECT_EQ(refusal(longest + "], \"n\": 12, \"stream\": true}"), "taken");
  EXPECT_NE(refusal(longest + "], \"n\": 13, \"stream\": true}").find("asks for 17472 log-probabilities of prompts"),
            std::string::npos);
}

TEST_F(OpenAiRequestTest, Embeddings) {
  const auto parse_it = [&](const std::string& body) {
    return parse_embeddings_request(body, context_, Hidden::kLast, {.max_prompt_tokens = 64, .max_inputs = 3});
  };
  const EmbeddingsRequest many = parse_it(R"({"input": [[5, 6], [7]], "encoding_format": "base64", "unknown": 1})");
  ASSERT_EQ(many.requests.size(), 2u);
  EXPECT_TRUE(many.base64);
  EXPECT_EQ(many.requests[0].prompt, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(many.requests[1].prompt, (std::vector<int32_t>{7}));
  EXPECT_EQ(many.requests[1].hidden, Hidden::kLast);
  EXPECT_TRUE(many.requests[1].prefill_only);
  const std::vector<int32_t> whole = parse_it(R"({"input": "a"})").requests[0].prompt;
  EXPECT_EQ(parse_it(R"({"input": "a", "add_special_tokens": false})").requests[0].prompt,
            std::vector<int32_t>(whole.begin() + 1, whole.end()));
  EXPECT_EQ(parse_it(R"({"input": [5, 6, 7, 8]})").requests.size(), 1u);
  for (const auto& [body, reason] : {std::pair{R"({"input": [[1], [2], [3], [4]]})", "4 inputs, expected at most 3"},
                                     {R"({"input": ""})", "taken"},
                                     {R"({})", "\"input\" is null"},
                                     {R"({"input": [[]]})", "0 tokens"},
                                     {R"({"input": "a", "truncate_prompt_tokens": 2})", "which is not supported"},
                                     {R"({"input": "a", "normalize": false})", "expected true, or no such field"},
                                     {R"({"input": "a", "dimensions": 5})", "\"dimensions\" is 5"}}) {
    std::string found = "taken";
    try {
      parse_it(body);
    } catch (const Error& error) {
      found = error.what();
    }
    EXPECT_NE(found.find(reason), std::string::npos) << body << ": " << found;
  }
  // Their numbers together, before any is computed.
  LineContext wide = context_;
  wide.hidden = 100;
  const auto parse_wide = [&](int64_t most) {
    return parse_embeddings_request(R"({"input": [[1], [2], [3]]})", wide, Hidden::kLast,
                                    {.max_prompt_tokens = 64, .max_embedded = most});
  };
  EXPECT_EQ(parse_wide(300).requests.size(), 3u);
  EXPECT_THROW(parse_wide(299), Error);
}

}  // namespace
}  // namespace lfm2::serve
