// generation_config.json: what it sets, what it leaves open, and what it is refused for.
#include "openai/generation_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2::test {
namespace {

SamplingOverrides parse(const std::string& json) { return parse_generation_config(json, "g.json"); }

std::string refusal(const std::string& json) {
  try {
    parse(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    return error.what();
  }
  return "accepted";
}

void expect_silent(const SamplingOverrides& config) {
  EXPECT_FALSE(config.temperature);
  EXPECT_FALSE(config.top_p);
  EXPECT_FALSE(config.min_p);
  EXPECT_FALSE(config.repetition_penalty);
  EXPECT_FALSE(config.top_k);
  EXPECT_FALSE(config.max_new);
  EXPECT_FALSE(config.min_tokens);
  EXPECT_TRUE(config.eos_tokens.empty());
  EXPECT_TRUE(config.stop.empty());
}

TEST(GenerationConfigTest, WhatIsNotThereIsOpen) {
  expect_silent(parse("{}"));
  expect_silent(parse(R"({"temperature": null, "top_k": null, "top_p": null, "max_new_tokens": null,
                          "eos_token_id": null, "do_sample": null, "min_p": null, "min_new_tokens": null,
                          "stop_strings": null})"));
  // transformers writes many keys.
  expect_silent(parse(R"({"_from_model_config": true, "bos_token_id": 1, "pad_token_id": 0, "max_length": 20,
                          "transformers_version": "5.0", "do_sample": true,
                          "typical_p": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1})"));
}

TEST(GenerationConfigTest, Values) {
  const SamplingOverrides config = parse(
      R"({"temperature": 0.3, "top_p": 0.9, "top_k": 50, "max_new_tokens": 77, "eos_token_id": [7, 2], "do_sample": true,
          "min_p": 0.15, "repetition_penalty": 1.05})");
  EXPECT_EQ(config.temperature, 0.3f);
  EXPECT_EQ(config.top_p, 0.9f);
  EXPECT_EQ(config.min_p, 0.15f);
  EXPECT_EQ(config.repetition_penalty, 1.05f);
  EXPECT_EQ(config.top_k, 50);
  EXPECT_EQ(config.max_new, 77);
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{7, 2}));
  EXPECT_EQ(parse(R"({"min_new_tokens": 3})").min_tokens, 3);
  EXPECT_EQ(parse(R"({"stop_strings": "a\nb"})").stop, (std::vector<std::string>{"a\nb"}));
  EXPECT_EQ(parse(R"({"stop_strings": ["é", "."]})").stop, (std::vector<std::string>{"é", "."}));
  EXPECT_EQ(parse(R"({"eos_token_id": 7})").eos_tokens, (std::vector<int32_t>{7}));
  EXPECT_EQ(parse(R"({"temperature": 0.7, "do_sample": false})").temperature, 0.0f);
  EXPECT_EQ(parse(R"({"temperature": 0.7})").temperature, 0.7f);
  EXPECT_EQ(parse(R"({"top_k": 0})").top_k, 0);
  const auto floats = parse(R"({"top_k": 50.0, "max_new_tokens": 77.0, "min_new_tokens": 3.0, "eos_token_id": [2.0]})");
  EXPECT_EQ(floats.top_k, 50);
  EXPECT_EQ(floats.max_new, 77);
  EXPECT_EQ(floats.min_tokens, 3);
  EXPECT_EQ(floats.eos_tokens, std::vector<int32_t>{2});
  EXPECT_FALSE(parse(R"({"max_new_tokens": 0})").max_new);
}

TEST(GenerationConfigTest, HasTheLimitsOfAModelsFiles) {
  const auto nested = [](size_t levels) {
    return R"({"other": )" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  expect_silent(parse(nested(15)));
  EXPECT_NE(refusal(nested(16)), "accepted");
  EXPECT_NE(refusal(R"({"top_k": 1, "top_k": 1})"), "accepted");
}

TEST(GenerationConfigTest, Refusals) {
  EXPECT_EQ(refusal(R"({"temperature": -1})"), R"(g.json: "temperature" is -1, expected a number from 0 to 1000000)");
  EXPECT_EQ(refusal(R"({"temperature": "hot"})"),
            R"(g.json: "temperature" is "hot", expected a number from 0 to 1000000)");
  EXPECT_EQ(refusal(R"({"top_p": 1.5})"), R"(g.json: "top_p" is 1.5, expected a number from 0 to 1)");
  EXPECT_EQ(refusal(R"({"repetition_penalty": 0})"),
            R"(g.json: "repetition_penalty" is 0, expected a number from 0.01 to 100)");
  EXPECT_EQ(refusal(R"({"min_p": 3})"), R"(g.json: "min_p" is 3, expected a number from 0 to 1)");
  EXPECT_EQ(refusal(R"({"do_sample": 1})"), R"(g.json: "do_sample" is 1, expected true or false)");
  for (const char* json :
       {R"({"top_k": -1})", R"({"top_k": 1.5})", R"({"max_new_tokens": 4294967296})", R"({"eos_token_id": -1})",
        R"({"eos_token_id": [1, "x"]})", R"({"eos_token_id": 4294967296})", R"({"min_new_tokens": 2147483648})"})
    EXPECT_TRUE(refusal(json).starts_with("g.json: ")) << refusal(json);
  for (const char* stop : {"7", "\"\"", "[\"a\", \"\"]", "[1]"})
    EXPECT_EQ(refusal("{\"stop_strings\": " + std::string(stop) + "}"),
              "g.json: \"stop_strings\" is " + json_text(parse_json(stop, "stop")) +
                  ", expected text, or a list of texts, none of them empty");
  for (const char* key : {"typical_p", "no_repeat_ngram_size", "num_beams"}) {
    const std::string message = refusal("{\"" + std::string(key) + "\": 3}");
    EXPECT_NE(message.find("\"" + std::string(key) + "\" is 3, which is not supported"), std::string::npos) << message;
    EXPECT_NE(message.find("--generation-config none"), std::string::npos) << message;
  }
  EXPECT_EQ(refusal("[]"), "g.json: [], expected an object");
  EXPECT_TRUE(refusal("nonsense").starts_with("g.json: not valid JSON"));
}

}  // namespace
}  // namespace lfm2::test
