// A completion as a line: as this program writes it, and as OpenAI's batches do.
#include "openai/response.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json/json.h"
#include "openai/log_probs.h"
#include "support/golden.h"
#include "support/weights_support.h"
#include "text/tokenizer.h"

namespace lfm2::test {
namespace {

class ResponseTest : public testing::Test {
 protected:
  std::vector<int32_t> ids_of(const std::string& text) const {
    std::vector<int32_t> ids;
    tokenizer_.encode(text, false, ids);
    return ids;
  }
  // Each token is its own top-1, and the second is the one before it in the vocabulary.
  Completion completion(const std::vector<int32_t>& ids) const {
    Completion made;
    made.sample = 5;
    made.prompt_tokens = 3;
    made.reason = FinishReason::kStop;
    made.token_ids = ids;
    for (const int32_t id : ids) {
      made.log_probs.push_back(-0.5f);
      made.top_ids.insert(made.top_ids.end(), {id, id - 1});
      made.top_log_probs.insert(made.top_log_probs.end(), {-0.5f, -2});
    }
    return made;
  }
  // parse_json refuses keys that stand twice and text that is no UTF-8.
  Json batch(const Completion& completion, const ResponseForm& form, std::string_view name = "\"a\"") const {
    const std::string line = batch_response(completion, form, name, facts_);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return parse_json(line, "answer");
  }

  Tokenizer tokenizer_ = Tokenizer::parse(read_bytes(golden_dir() / "text/tokenizer.json"), "tokenizer.json");
  ResponseFacts facts_{.model = "lfm2", .created = 1234, .tokenizer = &tokenizer_};
};

TEST_F(ResponseTest, Plain) {
  facts_.tokenizer = nullptr;
  const Completion made = completion({6, 9});
  EXPECT_EQ(plain_response(made, {}, "", facts_.tokenizer), R"({"id":5,"token_ids":[6,9],"finish_reason":"stop"})");
  EXPECT_EQ(plain_response(made, {LineForm::kIds, 0}, "\"x\"", facts_.tokenizer),
            R"({"id":"x","token_ids":[6,9],"finish_reason":"stop","logprobs":[-0.5,-0.5]})");
  EXPECT_EQ(plain_response(made, {LineForm::kIds, 1}, "7", facts_.tokenizer),
            R"({"id":7,"token_ids":[6,9],"finish_reason":"stop","logprobs":[-0.5,-0.5],"top_ids":[[6],[9]],)"
            R"("top_logprobs":[[-0.5],[-0.5]]})");
  // No more than there are.
  EXPECT_EQ(plain_response(made, {LineForm::kIds, 9}, "7", facts_.tokenizer),
            R"({"id":7,"token_ids":[6,9],"finish_reason":"stop","logprobs":[-0.5,-0.5],"top_ids":[[6,5],[9,8]],)"
            R"("top_logprobs":[[-0.5,-2],[-0.5,-2]]})");
}

TEST_F(ResponseTest, PlainWithText) {
  std::vector<int32_t> ids = ids_of("a \"b\"\n日é");
  ids.push_back(4);  // <|im_end|> is no text
  const Json line = parse_json(plain_response(completion(ids), {LineForm::kPrompt}, "", facts_.tokenizer), "answer");
  EXPECT_EQ(line["text"], "a \"b\"\n日é");
  EXPECT_EQ(line["token_ids"], ids);
  ids = ids_of("é");
  ASSERT_EQ(ids_of("\xc3").size(), 1u);
  EXPECT_EQ(parse_json(plain_response(completion(ids_of("\xc3x\xff")), {}, "", facts_.tokenizer), "answer")["text"],
            "\ufffdx\ufffd");
}

TEST_F(ResponseTest, TextsEndBeforeTheirStopText) {
  Completion made = completion(ids_of("one two"));
  made.text_bytes = 4;
  EXPECT_EQ(parse_json(plain_response(made, {}, "", facts_.tokenizer), "answer")["text"], "one ");
  EXPECT_EQ(batch(made, {LineForm::kChatCompletion})["response"]["body"]["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(batch(made, {LineForm::kCompletion})["response"]["body"]["choices"][0]["text"], "one ");
}

// Several draws from one prompt are one line.
TEST_F(ResponseTest, Choices) {
  Completion made = completion(ids_of("hi"));
  made.others = {completion(ids_of("there")), completion({6, 9})};
  for (int32_t i = 0; i < 2; ++i) made.others[static_cast<size_t>(i)].choice = i + 1;
  made.others[1].reason = FinishReason::kLength;
  const Json body = batch(made, {LineForm::kCompletion, 1})["response"]["body"];
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(body["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(body["choices"][0]["text"], "hi");
  EXPECT_EQ(body["choices"][1]["text"], "there");
  EXPECT_EQ(body["choices"][2]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][2]["logprobs"]["token_logprobs"].size(), 2u);
  const size_t tokens = ids_of("hi").size() + ids_of("there").size() + 2;
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], tokens);
  EXPECT_EQ(body["usage"]["total_tokens"], 3 + tokens);
  facts_.tokenizer = nullptr;
  made = completion({1});
  made.others = {completion({2})};
  EXPECT_EQ(plain_response(made, {LineForm::kIds, 0}, "\"x\"", facts_.tokenizer),
            R"({"id":"x","choices":[{"token_ids":[1],"finish_reason":"stop","logprobs":[-0.5]},)"
            R"({"token_ids":[2],"finish_reason":"stop","logprobs":[-0.5]}]})");
}

TEST_F(ResponseTest, Chat) {
  const std::vector<int32_t> ids = ids_of("hi");
  const Json line = batch(completion(ids), {LineForm::kChatCompletion});
  const auto tokens = static_cast<int64_t>(ids.size());
  const Json expected = {
      {"id", "batch_req_5"},
      {"custom_id", "a"},
      {"response",
       {{"status_code", 200},
        {"request_id", "req_5"},
        {"body",
         {{"id", "chatcmpl-5"},
          {"object", "chat.completion"},
          {"created", 1234},
          {"model", "lfm2"},
          {"choices",
           {{{"index", 0},
             {"message", {{"role", "assistant"}, {"content", "hi"}, {"refusal", nullptr}}},
             {"logprobs", nullptr},
             {"finish_reason", "stop"}}}},
          {"usage", {{"prompt_tokens", 3}, {"completion_tokens", tokens}, {"total_tokens", 3 + tokens}}}}}}},
      {"error", nullptr}};
  EXPECT_EQ(line, expected);
}

TEST_F(ResponseTest, CompletionsBody) {
  const Json body = batch(completion(ids_of("hi")), {LineForm::kCompletion})["response"]["body"];
  EXPECT_EQ(body["id"], "cmpl-5");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0], (Json{{"index", 0}, {"text", "hi"}, {"logprobs", nullptr}, {"finish_reason", "stop"}}));
}

TEST_F(ResponseTest, ChatLogProbabilities) {
  const std::vector<int32_t> ids = ids_of("\xc3x");
  const Json content =
      batch(completion(ids), {LineForm::kChatCompletion, 2})["response"]["body"]["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), ids.size());
  EXPECT_EQ(content[0]["token"], "\ufffd");
  EXPECT_EQ(content[0]["bytes"], (Json{0xc3}));
  EXPECT_EQ(content[0]["logprob"], -0.5);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["bytes"], (Json{0xc3}));
  EXPECT_EQ(content[1]["token"], "x");
  const Json none =
      batch(completion(ids), {LineForm::kChatCompletion, 0})["response"]["body"]["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(none[0]["top_logprobs"], Json::array());
}

TEST_F(ResponseTest, CompletionsLogProbabilities) {
  // Parts of a character, a whole one, a special token, an id without a token.
  std::vector<int32_t> ids = ids_of("\xe6\x97\xa5");
  ids.clear();
  for (const char* part : {"\xe6", "\x97", "\xa5"}) ids.push_back(ids_of(part).at(0));
  ids.push_back(ids_of("x").at(0));
  ids.push_back(4);
  ids.push_back(static_cast<int32_t>(tokenizer_.size()) + 3);
  ids.push_back(ids_of("y").at(0));
  const Json choice = batch(completion(ids), {LineForm::kCompletion, 2})["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "日xy");
  const Json& probs = choice["logprobs"];
  EXPECT_EQ(probs["tokens"], (Json{"bytes:\\xe6", "bytes:\\x97", "bytes:\\xa5", "x", "<|im_end|>",
                                   "token_id:" + std::to_string(tokenizer_.size() + 3), "y"}));
  EXPECT_EQ(probs["text_offset"], (Json{0, 0, 0, 1, 2, 2, 2}));  // characters of "text"
  EXPECT_EQ(probs["token_logprobs"].size(), ids.size());
  for (const Json& row : probs["top_logprobs"]) EXPECT_EQ(row.size(), 2u);
  EXPECT_EQ(probs["top_logprobs"][3]["x"], -0.5);
}

// A part of a character that is never completed is a character of the text.
TEST_F(ResponseTest, OffsetsBehindTornCharacters) {
  const auto id = [&](const char* text) { return ids_of(text).at(0); };
  const std::vector<int32_t> ids{id("x"), id("\xc2"), id("y"), id("\xc3"), 4, id("\xa9"), id("z")};
  const Json choice = batch(completion(ids), {LineForm::kCompletion, 0})["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "x\ufffdyéz");
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2, 3, 3, 3, 4}));
}

TEST_F(ResponseTest, OffsetsOfPiecesAreThoseOfTheWhole) {
  std::vector<int32_t> ids = ids_of("x日y");
  const auto id = [&](const char* text) { return ids_of(text).at(0); };
  for (const int32_t one : {id("\xc2"), id("y"), id("\xc3"), 4, id("\xa9"), id("z")}) ids.push_back(one);
  const std::vector<int64_t> whole = TokenOffsets(&tokenizer_).of(ids);
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    TokenOffsets offsets(&tokenizer_);
    std::vector<int64_t> pieces = offsets.of(std::span(ids).first(cut));
    for (const int64_t offset : offsets.of(std::span(ids).subspan(cut))) pieces.push_back(offset);
    EXPECT_EQ(pieces, whole) << cut;
  }
}

// The prompt stands before the answer, in the text and in the lists; nothing says how likely its first token is.
TEST_F(ResponseTest, EchoedPrompts) {
  Completion made = completion(ids_of("d"));
  made.prompt_ids = ids_of("bc");
  ASSERT_EQ(made.prompt_ids.size(), 2u);
  made.prompt = {.log_probs = {-3}, .top_ids = {made.token_ids[0], 7}, .top_log_probs = {-1, -2}};
  ResponseForm form{LineForm::kCompletion, 1, true};
  EXPECT_EQ(ResponseForm::from_word(form.to_word()).echo, true);
  EXPECT_EQ(ResponseForm::from_word(form.to_word()).log_probs, 1);
  Json choice = batch(made, form)["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "bcd");
  Json probs = choice["logprobs"];
  EXPECT_EQ(probs["tokens"], (Json{"b", "c", "d"}));
  EXPECT_EQ(probs["token_logprobs"], (Json{nullptr, -3.0, -0.5}));
  EXPECT_EQ(probs["top_logprobs"], Json::parse(R"([null, {"d": -1.0}, {"d": -0.5}])"));
  EXPECT_EQ(probs["text_offset"], (Json{0, 1, 2}));
  // The prompt alone.
  made.token_ids.clear();
  made.top_ids.clear();
  made.log_probs.clear();
  made.top_log_probs.clear();
  choice = batch(made, form)["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "bc");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{nullptr, -3.0}));
  form.log_probs.reset();
  choice = batch(made, form)["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "bc");
  EXPECT_TRUE(choice["logprobs"].is_null());
}

// Of two tokens of one text the likelier stays, and no key stands twice.
TEST_F(ResponseTest, TokensOfOneText) {
  Completion made = completion({ids_of("x").at(0)});
  made.top_ids[1] = made.top_ids[0];
  const Json probs =
      batch(made, {LineForm::kCompletion, 2})["response"]["body"]["choices"][0]["logprobs"]["top_logprobs"];
  EXPECT_EQ(probs, (Json::array({Json{{"x", -0.5}}})));
}

TEST_F(ResponseTest, BatchWithoutATokenizer) {
  facts_.tokenizer = nullptr;
  const Json choice = batch(completion({6, 9}), {LineForm::kCompletion, 1})["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"token_id:6", "token_id:9"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 0}));
  const Json content =
      batch(completion({6}), {LineForm::kChatCompletion, 1})["response"]["body"]["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[0]["token"], "token_id:6");
  EXPECT_EQ(content[0]["bytes"], nullptr);
}

TEST_F(ResponseTest, Embeddings) {
  EmbeddingResponse answer;
  answer.add(std::vector<float>{3, -4}, false);
  answer.add(std::vector<float>{0, 0}, false);
  EXPECT_EQ(
      answer.pop_line(0, "\"a\"", "lfm2", 5, ""),
      R"({"id":"batch_req_0","custom_id":"a","response":{"status_code":200,"request_id":"req_0","body":{"object":"list",)"
      R"("data":[{"object":"embedding","index":0,"embedding":[0.6,-0.8]},{"object":"embedding","index":1,"embedding":)"
      R"([0,0]}],"model":"lfm2","usage":{"prompt_tokens":5,"total_tokens":5}}},"error":null})"
      "\n");
  // Of one, two and three values: the bytes of 1.0f are 00 00 80 3f.
  const auto in_base64 = [&](const std::vector<float>& state) {
    answer.add(state, true);
    const Json line = parse_json(answer.pop_line(1, "", "lfm2", 1, ""), "answer");
    EXPECT_EQ(line["custom_id"], nullptr);
    EXPECT_EQ(line["response"]["body"]["usage"]["prompt_tokens"], 1);
    return line["response"]["body"]["data"][0]["embedding"].get<std::string>();
  };
  EXPECT_EQ(in_base64({2}), "AACAPw==");
  EXPECT_EQ(in_base64({0, -3}), "AAAAAAAAgL8=");
  EXPECT_EQ(in_base64({0, 0, 7}), "AAAAAAAAAAAAAIA/");
  answer.add(std::vector<float>{1, 1}, true);
  const Json refused = parse_json(answer.pop_line(2, "\"c\"", "lfm2", 1, "line 3: wrong"), "answer");
  EXPECT_EQ(refused["response"], (Json{{"status_code", 400}, {"request_id", "req_2"}, {"body", nullptr}}));
  EXPECT_EQ(refused["error"]["message"], "line 3: wrong");
}

TEST_F(ResponseTest, Errors) {
  Completion made;
  made.sample = 7;
  made.error = "line 8: \"n\" is \xff";
  for (const std::string_view name : {"", "\"a\""}) {
    const Json line = batch(made, {LineForm::kCompletion}, name);
    EXPECT_EQ(line["id"], "batch_req_7");
    EXPECT_EQ(line["custom_id"], name.empty() ? Json() : Json("a"));
    EXPECT_EQ(line["response"], (Json{{"status_code", 400}, {"request_id", "req_7"}, {"body", nullptr}}));
    EXPECT_EQ(
        line["error"],
        (Json{
            {"message", "line 8: \"n\" is \ufffd"}, {"type", "invalid_request_error"}, {"param", "n"}, {"code", 400}}));
  }
}

}  // namespace
}  // namespace lfm2::test
