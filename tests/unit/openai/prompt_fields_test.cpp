// Fields that change the end or the length of a prompt: in a line, a batch line and a body they mean the same.
#include <fmt/format.h>

#include "openai/openai_request.h"
#include "support/request_lines.h"

namespace lfm2::test {
namespace {

class PromptFieldsTest : public RequestLineTest {
 protected:
  // The prompt that the fields give in all three.
  std::vector<int32_t> ids(const std::string& fields, bool chat) const {
    const std::string body = "{" + fields + "}";
    const RequestLine line = of_body(body, chat ? "/v1/chat/completions" : "/v1/completions");
    EXPECT_EQ(line.error, "") << body;
    EXPECT_EQ(parse(body).ids, line.ids) << body;
    const OpenAiRequest served = parse_openai_request(body, chat, context_, {}, {.max_prompt_tokens = 60});
    EXPECT_EQ(served.requests.at(0).prompt, line.ids) << body;
    EXPECT_EQ(served.form.message, line.rules.message) << body;
    in_thought_ = line.rules.message.in_thought;
    return line.ids;
  }
  std::string refused(const std::string& fields, bool chat) const {
    const std::string body = "{" + fields + "}";
    const std::string error = without_place(of_body(body, chat ? "/v1/chat/completions" : "/v1/completions").error);
    EXPECT_EQ(refusal(body), error);
    expect_error([&] { parse_openai_request(body, chat, context_, {}, {.max_prompt_tokens = 60}); }, ExitCode::kData,
                 {error});
    return error;
  }
  static std::string chat(const std::string& last, const std::string& fields = "") {
    return R"("messages": [{"role": "user", "content": "hi"}, )" + last + "]" + fields;
  }

  mutable bool in_thought_ = false;
};

constexpr const char* kBegin = "<|startoftext|>1970-01-02<|im_start|>user hi<|im_end|><|im_start|>assistant ";

TEST_F(PromptFieldsTest, TheLastMessageIsContinued) {
  const std::string on = R"(, "continue_final_message": true)";
  const auto said = [](const std::string& content) { return R"({"role": "assistant", "content": )" + content + "}"; };
  for (const std::string more : {"", R"(, "add_generation_prompt": false)", R"(, "add_generation_prompt": null)"})
    EXPECT_EQ(ids(chat(said(R"("Hello, I")"), on + more), true), encode(std::string(kBegin) + "Hello, I", false));
  EXPECT_FALSE(in_thought_);
  EXPECT_EQ(ids(chat(said(R"("<|im_end|> im ")"), on), true), encode(std::string(kBegin) + "<|im_end|> im ", false));
  EXPECT_EQ(ids(chat(said(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])"), on), true),
            encode(std::string(kBegin) + "a\nb", false));
  for (const char* nothing : {R"("")", "null", "[]"})
    EXPECT_EQ(ids(chat(said(nothing), on), true), encode(kBegin, false));
  EXPECT_EQ(ids(chat(said(R"("x")"), R"(, "continue_final_message": false)"), true),
            encode(std::string(kBegin) + "x<|im_end|>", false));
}

TEST_F(PromptFieldsTest, AThoughtIsContinued) {
  const std::string on = R"(, "continue_final_message": true)";
  for (const auto& [content, in_thought] : {std::pair{R"("<think>Let me")", true},
                                            {R"("<think>\n")", true},
                                            {R"("<think>so</think>And")", false},
                                            {R"([{"type": "text", "text": "<think>Let"}, " me"])", true},
                                            {R"([{"type": "text", "text": "<think>so</think>"}, "And"])", false},
                                            {R"("Say <think>")", true},  // as any prompt that ends so
                                            {R"("Say <think> twice")", false}}) {
    ids(chat(R"({"role": "assistant", "content": )" + std::string(content) + "}", on), true);
    EXPECT_EQ(in_thought_, in_thought) << content;
  }
}

TEST_F(PromptFieldsTest, WhatCannotBeContinued) {
  const std::string on = R"(, "continue_final_message": true)";
  EXPECT_EQ(refused(chat(R"({"role": "user", "content": "x"})", on), true),
            R"("messages[1].role" is "user", expected "assistant" for a message that is continued)");
  EXPECT_EQ(refused(chat(R"({"role": "assistant", "tool_calls": [{}]})", on), true),
            R"("messages[1].tool_calls" is [{}], expected none in a message that is continued)");
  EXPECT_EQ(refused(chat(R"({"role": "assistant", "content": "x"})", on + R"(, "add_generation_prompt": true)"), true),
            R"("add_generation_prompt" is true, expected false with "continue_final_message": true)");
  EXPECT_EQ(refused(chat(R"({"role": "assistant", "content": "x"})", R"(, "continue_final_message": 1)"), true),
            R"("continue_final_message" is 1, expected true or false)");
  EXPECT_EQ(
      refused(chat(R"({"role": "assistant", "content": "\ufdd0"})", on), true),
      "\"messages[1]\" is {\"role\":\"assistant\",\"content\":\"\uFDD0\"}, expected no U+FDD0 in a conversation whose "
      "last message is continued");
  EXPECT_EQ(refused(R"("prompt": "x", "continue_final_message": true)", false),
            R"("continue_final_message" is true, which is not supported: expected false, or no such field)");
}

TEST_F(PromptFieldsTest, ThePromptKeepsItsLastTokens) {
  const auto last = [](std::vector<int32_t> ids, int64_t count) {
    return std::vector<int32_t>(ids.end() - std::min(count, std::ssize(ids)), ids.end());
  };
  const std::string words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
  const std::vector<int32_t> whole = encode(words + " " + words + " " + words);
  ASSERT_GT(whole.size(), 60u);
  const std::string prompt = fmt::format(R"("prompt": "{0} {0} {0}")", words);
  EXPECT_EQ(ids(prompt + R"(, "truncate_prompt_tokens": 5)", false), last(whole, 5));
  EXPECT_EQ(ids(prompt + R"(, "truncate_prompt_tokens": -1, "max_tokens": 10)", false), last(whole, 50));
  EXPECT_EQ(ids(prompt + R"(, "truncate_prompt_tokens": -1, "max_tokens": 1000)", false), last(whole, 1));
  EXPECT_EQ(ids(R"("prompt": "one two", "truncate_prompt_tokens": 50)", false), encode("one two"));
  EXPECT_EQ(ids(R"("prompt": [4, 5, 6, 7], "truncate_prompt_tokens": 2)", false), (std::vector<int32_t>{6, 7}));
  const std::string hi = R"("messages": [{"role": "user", "content": "hi"}])";
  EXPECT_EQ(ids(hi + R"(, "truncate_prompt_tokens": 3)", true), last(ids(hi, true), 3));
  const OpenAiRequest two = parse_openai_request(R"({"prompt": [[1, 2, 3], [4, 5]], "truncate_prompt_tokens": 2})",
                                                 false, context_, {}, {.max_prompt_tokens = 60});
  EXPECT_EQ(two.requests.at(0).prompt, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(two.requests.at(1).prompt, (std::vector<int32_t>{4, 5}));
}

TEST_F(PromptFieldsTest, WrongLengths) {
  for (const char* wrong : {"-2", "61", "\"5\"", "1.5"})
    EXPECT_EQ(refused(fmt::format(R"("prompt": "x", "truncate_prompt_tokens": {})", wrong), false),
              fmt::format("\"truncate_prompt_tokens\" is {}, expected an integer from -1 to 60", wrong));
  EXPECT_EQ(refused(R"("prompt": "x", "truncate_prompt_tokens": 0)", false),
            "\"truncate_prompt_tokens\" is 0, expected a number of tokens, or -1 for the model's context");
}

}  // namespace
}  // namespace lfm2::test
