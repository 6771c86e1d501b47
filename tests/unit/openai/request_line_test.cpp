// One line as a sample: its ids, its name, its rules, and what is refused with which words.
#include <fmt/format.h>

#include "openai/openai_request.h"
#include "support/request_lines.h"

namespace lfm2::test {
namespace {

TEST_F(RequestLineTest, Forms) {
  RequestLine line = parse(R"({"input_ids": [1, 0, 1208], "id": 7})");
  EXPECT_EQ(line.ids, (std::vector<int32_t>{1, 0, 1208}));
  EXPECT_EQ(line.name, "7");
  EXPECT_EQ(line.rules, SampleRules{});
  line = parse(R"({"text": "Hello, 日本\n", "id": "x\n"})");
  EXPECT_EQ(line.ids, encode("Hello, 日本\n"));
  EXPECT_EQ(line.ids.front(), 1);
  EXPECT_EQ(line.name, R"("x\n")");
  EXPECT_EQ(line.rules.form, LineForm::kText);
  line = parse(R"({"prompt": ""})");
  EXPECT_EQ(line.ids, (std::vector<int32_t>{1}));  // the beginning of text alone
  EXPECT_EQ(line.name, "");
  EXPECT_EQ(line.rules.form, LineForm::kPrompt);
  EXPECT_EQ(parse(R"({"prompt": ["one"]})").ids, encode("one"));
  EXPECT_EQ(parse(R"({"prompt": [5, 6.0]})").ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(parse(R"({"text": "a", "prompt": null, "messages": null})").rules.form, LineForm::kText);
  for (const char* form : {"text", "prompt"})
    EXPECT_EQ(parse(fmt::format(R"({{"{}": "a", "add_special_tokens": false}})", form)).ids, encode("a", false))
        << form;
  EXPECT_EQ(parse(R"({"text": "a", "id": -123456789012345678901234})").name, "-123456789012345678901234");
  line = parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(line.ids, encode("<|startoftext|>1970-01-02<|im_start|>user hi<|im_end|>", false));
  EXPECT_EQ(std::count(line.ids.begin(), line.ids.end(), 1), 1);  // templates write the beginning of text themselves
  EXPECT_EQ(line.rules.form, LineForm::kMessages);
  line = parse(R"({"messages": [{"role": "u", "content": "x"}], "tools": [{"b": 1, "a": 2}],
                   "chat_template_kwargs": {"mood": "!"}})");
  EXPECT_EQ(line.ids, encode(R"(<|startoftext|>1970-01-02[{"b": 1, "a": 2}]<|im_start|>u x!<|im_end|>)", false));
  // As clients send them: a list of parts, and no content beside calls of tools.
  const std::vector<int32_t> ids =
      parse(R"({"messages": [{"role": "u", "content": "x\ny"}, {"role": "a", "content": ""}]})").ids;
  EXPECT_EQ(
      parse(R"({"messages": [{"role": "u", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
                                   {"role": "a", "content": null}]})")
          .ids,
      ids);
}

TEST_F(RequestLineTest, LinesOfText) {
  const RequestLine line = parse_text_line(R"({"input_ids": [1]})", context_, "in.txt: line 3");
  EXPECT_EQ(line.ids, encode(R"({"input_ids": [1]})"));
  EXPECT_EQ(line.rules.form, LineForm::kText);
  for (const auto& [bytes, reason] :
       {std::pair{std::string("a\xff"), "in.txt: line 3: byte 1 is \\xff, expected UTF-8 text"},
        {std::string("a\0b", 3), "in.txt: line 3: byte 1 is \\x00, expected UTF-8 text"},
        {std::string("\xff\xfe"
                     "a\0",
                     4),
         "in.txt: line 3: is UTF-16: expected UTF-8"},
        {std::string("\x1f\x8b\x08"), "in.txt: line 3: is gzip: unpack it first"}})
    test::expect_error([&, bytes = bytes] { parse_text_line(bytes, context_, "in.txt: line 3"); }, ExitCode::kData,
                       {reason});
  EXPECT_THROW(parse_text_line(std::string(300, '!'), context_, "in.txt: line 3"), Error);
}

TEST_F(RequestLineTest, Fields) {
  for (const bool batch : {false, true}) {
    const std::string fields =
        R"({"prompt": "a", "max_tokens": 3, "temperature": 0.5, "top_p": 0.25, "min_p": 0.125, "top_k": 9, "seed": 12,
            "repetition_penalty": 1.25, "presence_penalty": -0.5, "frequency_penalty": 1.5, "min_tokens": 6,
            "n": 3, "logit_bias": {"12": -100, "3": 0.5}, "stop": ["é", "##"], "logprobs": 4,
            "stop_token_ids": [8, 7], "ignore_eos": true})";
    SampleRules expected{.form = batch ? LineForm::kCompletion : LineForm::kPrompt,
                         .ignore_eos = true,
                         .choices = 3,
                         .sampling = {.temperature = 0.5f,
                                      .top_p = 0.25f,
                                      .min_p = 0.125f,
                                      .repetition_penalty = 1.25f,
                                      .presence_penalty = -0.5f,
                                      .frequency_penalty = 1.5f,
                                      .top_k = 9,
                                      .min_tokens = 6,
                                      .seed = 12,
                                      .max_new = 3,
                                      .stop = {"é", "##"}},
                         .log_probs = 4,
                         .stop_token_ids = {7, 8},
                         .logit_bias = {{3, 0.5f}, {12, -100.0f}}};
    const RequestLine line = batch ? of_body(fields) : parse(fields);
    EXPECT_EQ(line.error, "");
    EXPECT_EQ(line.rules, expected);
  }
  const auto rules = [&](const std::string& field) { return parse(R"({"prompt": "a", )" + field + "}").rules; };
  EXPECT_EQ(rules(R"("max_tokens": 3, "max_completion_tokens": 5)").sampling.max_new, 5);
  EXPECT_EQ(rules(R"("max_tokens": 2147483648)").sampling.max_new, int64_t{1} << 31);
  EXPECT_EQ(rules(R"("top_k": -1)").sampling.top_k, 0);
  EXPECT_EQ(rules(R"("stop": "x")").sampling.stop, (std::vector<std::string>{"x"}));
  EXPECT_EQ(rules(R"("stop": [])").sampling.stop, std::vector<std::string>());
  EXPECT_EQ(rules(R"("temperature": 1)").sampling.temperature, 1.0f);
  EXPECT_EQ(rules(R"("seed": -1)").sampling.seed, UINT64_MAX);
  EXPECT_EQ(rules(R"("logprobs": 0)").log_probs, 0);
  EXPECT_EQ(rules(R"("temperature": null, "max_tokens": null, "seed": null, "logprobs": null, "stop_token_ids": null)"),
            SampleRules{.form = LineForm::kPrompt});
  // Of ids, too.
  EXPECT_EQ(parse(R"({"input_ids": [1], "max_tokens": 2})").rules.sampling.max_new, 2);
}

TEST_F(RequestLineTest, RefusedFields) {
  expect_refused(R"("max_tokens": 0)", R"("max_tokens" is 0, expected an integer from 1 to 2147483648)");
  expect_refused(R"("max_tokens": 2147483649)",
                 R"("max_tokens" is 2147483649, expected an integer from 1 to 2147483648)");
  expect_refused(R"("max_tokens": 1.5)", R"("max_tokens" is 1.5, expected an integer from 1 to 2147483648)");
  expect_refused(R"("temperature": -0.1)", R"("temperature" is -0.1, expected a number from 0 to 1000000)");
  expect_refused(R"("temperature": "1")", R"("temperature" is "1", expected a number from 0 to 1000000)");
  expect_refused(R"("temperature": 1e7)", R"("temperature" is 10000000.0, expected a number from 0 to 1000000)");
  expect_refused(R"("top_p": 1.01)", R"("top_p" is 1.01, expected a number from 0 to 1)");
  expect_refused(R"("min_p": -0.1)", R"("min_p" is -0.1, expected a number from 0 to 1)");
  expect_refused(R"("repetition_penalty": 0)", R"("repetition_penalty" is 0, expected a number from 0.01 to 100)");
  expect_refused(R"("presence_penalty": 2.5)", R"("presence_penalty" is 2.5, expected a number from -2 to 2)");
  expect_refused(R"("frequency_penalty": "1")", R"("frequency_penalty" is "1", expected a number from -2 to 2)");
  expect_refused(R"("min_tokens": -1)", R"("min_tokens" is -1, expected an integer from 0 to 2147483647)");
  const std::string biases = "expected at most 1024 biases from -100 to 100 by token ids from 0 to 1208";
  expect_refused(R"("logit_bias": {"1209": 1})", R"("logit_bias" is {"1209":1}, )" + biases);
  expect_refused(R"("logit_bias": {"4": 101})", R"("logit_bias" is {"4":101}, )" + biases);
  expect_refused(R"("logit_bias": {"4": null})", R"("logit_bias" is {"4":null}, )" + biases);
  expect_refused(R"("logit_bias": {"-4": 1})", R"("logit_bias" is {"-4":1}, )" + biases);
  expect_refused(R"("logit_bias": {" 4": 1})", R"("logit_bias" is {" 4":1}, )" + biases);
  expect_refused(R"("logit_bias": [4])", R"("logit_bias" is [4], )" + biases);
  expect_refused(R"("n": 0)", R"("n" is 0, expected an integer from 1 to 128)");
  expect_refused(R"("n": true)", R"("n" is true, expected an integer from 1 to 128)");
  expect_refused(R"("top_k": -2)", R"("top_k" is -2, expected an integer from -1 to 2147483648)");
  expect_refused(
      R"("seed": 9223372036854775808)",
      R"("seed" is 9223372036854775808, expected an integer from -9223372036854775808 to 9223372036854775807)");
  expect_refused(R"("seed": 123456789012345678901234)",
                 R"("seed" is 123456789012345678901234, expected an integer from -9223372036854775808 to )"
                 "9223372036854775807");
  expect_refused(
      R"("tool_choice": {"v": [1, 123456789012345678901234]})",
      R"("tool_choice" is {"v":[1,123456789012345678901234]}, which is not supported: expected auto or none, )"
      "or no such field");
  expect_refused(R"("n": 1.5)", R"("n" is 1.5, expected an integer from 1 to 128)");
  expect_refused(R"("n": 1e300)", R"("n" is 1e+300, expected an integer from 1 to 128)");
  expect_refused(R"("seed": true)",
                 R"("seed" is true, expected an integer from -9223372036854775808 to 9223372036854775807)");
  expect_refused(R"("logprobs": 1025)", R"("logprobs" is 1025, expected an integer from 0 to 1024)");
  expect_refused(R"("logprobs": true)", R"("logprobs" is true, expected an integer from 0 to 1024)");
  expect_refused(R"("stop_token_ids": [1209])", R"("stop_token_ids" is 1209, expected token ids from 0 to 1208)");
  std::string ids = "0";
  for (int id = 1; id <= 256; ++id) ids += fmt::format(",{0},{0}", id);
  expect_refused(R"("stop_token_ids": [)" + ids + "]", R"("stop_token_ids" has 257 token ids, expected at most 256)");
  expect_refused(R"("stop_token_ids": 4)", R"("stop_token_ids" is 4, expected a list of token ids)");
  expect_refused(R"("ignore_eos": 1)", R"("ignore_eos" is 1, expected true or false)");
  expect_refused(R"("stop": [""])", R"("stop" is [""], expected text, or at most 64 of 1 to 1024 bytes)");
  expect_refused(R"("stop": ["x", 5])", R"("stop" is ["x",5], expected text, or at most 64 of 1 to 1024 bytes)");
  expect_refused(R"("stop": 5)", R"("stop" is 5, expected text, or at most 64 of 1 to 1024 bytes)");
  EXPECT_EQ(refusal(R"({"prompt": "a", "colour": 1})").substr(0, 39), R"(unknown key "colour", expected one of i)");
  EXPECT_EQ(refusal(R"({"prompt": "a", "x\ny": 1})").substr(0, 18), R"(unknown key "x\x0a)");
}

// Fields of other programs are accepted where they change nothing.
TEST_F(RequestLineTest, NeutralValues) {
  for (const char* field : {R"("model": "any")",
                            R"("user": 5)",
                            R"("metadata": {"a": 1})",
                            R"("stream_options": null)",
                            R"("n": 1)",
                            R"("presence_penalty": 0)",
                            R"("frequency_penalty": 0.0)",
                            R"("min_tokens": 0)",
                            R"("repetition_penalty": 1.0)",
                            R"("best_of": 1)",
                            R"("stream": false)",
                            R"("echo": false)",
                            R"("logit_bias": {})",
                            R"("stop": [])",
                            R"("stop": null)",
                            R"("suffix": "")",
                            R"("tool_choice": "auto")",
                            R"("response_format": {"type": "text"})",
                            R"("response_format": null)",
                            R"("n": 1.0)",
                            R"("max_tokens": 5e0)",
                            R"("prediction": {"type": "content"})",
                            R"("functions": null)",
                            R"("guided_json": null)",
                            R"("modalities": ["text"])",
                            R"("add_generation_prompt": true)",
                            R"("skip_special_tokens": true)",
                            R"("reasoning_effort": "low")",
                            R"("add_special_tokens": false)",
                            R"("metadata": {"order": 123456789012345678901234})"}) {
    EXPECT_EQ(of_body(R"({"prompt": "a", )" + std::string(field) + "}").error, "");
    EXPECT_EQ(refusal(R"({"prompt": "a", )" + std::string(field) + "}"), "accepted") << field;
  }
  for (const char* field :
       {R"("best_of": 3)", R"("stream": true)", R"("suffix": "x")", R"("tool_choice": "required")",
        R"("grammar": "root ::= x")", R"("json_schema": {})", R"("regex": "[0-9]+")", R"("documents": [{"text": "x"}])",
        R"("no_repeat_ngram_size": 2)", R"("continue_final_message": true)"}) {
    const std::string error = of_body(R"({"prompt": "a", )" + std::string(field) + "}").error;
    EXPECT_NE(error.find("which is not supported"), std::string::npos) << field << ": " << error;
  }
  for (const char* format : {R"({"type": 5})", "{}", R"("text")"}) {
    const std::string error = of_body(R"({"prompt": "a", "response_format": )" + std::string(format) + "}").error;
    EXPECT_NE(error.find("\"response_format\" is"), std::string::npos) << format << ": " << error;
  }
  EXPECT_EQ(of_body(R"({"prompt": "a", "response_format": {"type": "json_object"}})").rules.constraint,
            R"({"json_schema":{"type":"object"}})");
  // Of a line that is scored none is accepted.
  context_.continues = false;
  EXPECT_EQ(refusal(R"({"text": "a", "model": "any"})"), R"(unknown key "model", expected one of id, text)");
  EXPECT_EQ(refusal(R"({"text": "a", "temperature": 1})"), R"(unknown key "temperature", expected one of id, text)");
}

TEST_F(RequestLineTest, Echo) {
  const RequestLine line = of_body(R"({"prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 2})");
  EXPECT_EQ(line.error, "");
  EXPECT_TRUE(line.rules.echo);
  EXPECT_EQ(line.rules.sampling.max_new, 0);
  EXPECT_NE(of_body(R"({"prompt": "a", "max_tokens": 0})").error.find("\"max_tokens\" is 0"), std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "echo": true})").find("which is not supported"), std::string::npos);
}

TEST_F(RequestLineTest, RefusedForms) {
  EXPECT_EQ(refusal(R"({"prompt": "a", "text": "b"})"), "more than one of input_ids, text, prompt, messages");
  EXPECT_EQ(refusal(R"({"input_ids": [1], "messages": []})"), "more than one of input_ids, text, prompt, messages");
  EXPECT_EQ(refusal(R"({"id": 1})").substr(0, 24), "expected an object with ");
  EXPECT_EQ(refusal("[]"), "[], expected an object");
  EXPECT_EQ(refusal("").substr(0, 14), "not valid JSON");
  EXPECT_EQ(refusal(R"({"text": "a"} {})").substr(0, 14), "not valid JSON");
  EXPECT_EQ(refusal(R"({"text": "a", "text": "b"})"), R"(JSON key "text" stands twice)");
  EXPECT_EQ(refusal(R"({"text": ["a"]})"), R"("text" is ["a"], expected text)");
  EXPECT_EQ(refusal(R"({"text": null, "prompt": null})").substr(0, 24), "expected an object with ");
  EXPECT_EQ(refusal(R"({"prompt": 5})"), R"("prompt" is 5, expected text or a list of token ids)");
  EXPECT_EQ(refusal(R"({"prompt": ["a", "b"]})"), R"("prompt" is "a", expected token ids from 0 to 1208)");
  EXPECT_EQ(refusal(R"({"prompt": [-1]})"), R"("prompt" is -1, expected token ids from 0 to 1208)");
  EXPECT_EQ(refusal(R"({"text": "a", "id": 1.5})"), R"("id" is neither text nor integer)");
  EXPECT_EQ(refusal(R"({"messages": []})"), R"("messages" is [], expected a list of messages)");
  EXPECT_EQ(refusal(R"({"messages": "hi"})"), R"("messages" is "hi", expected a list of messages)");
  const std::string hi = R"({"messages": [{"role": "user", "content": "hi"}], )";
  EXPECT_EQ(refusal(hi + R"("tools": {}})"), R"("tools" is {}, expected a list of tools)");
  EXPECT_EQ(refusal(hi + R"("chat_template_kwargs": []})"), R"("chat_template_kwargs" is [], expected an object)");
  EXPECT_NE(refusal(R"({"messages": [{"role": "bad", "content": ""}]})").find("no such role"), std::string::npos);
  // One position is left for what is generated.
  const std::string many = R"({"input_ids": [1)" + [] {
    std::string more;
    for (int i = 1; i < 60; ++i) more += ",1";
    return more;
  }() + "]}";
  EXPECT_EQ(refusal(many), "60 tokens, expected 1 to fewer than max_position_embeddings = 60");
  context_.continues = false;
  EXPECT_EQ(refusal(many), "accepted");
  for (const char* continued : {R"({"prompt": "a"})", R"({"messages": [{"role": "user", "content": "hi"}]})",
                                R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})"})
    EXPECT_EQ(refusal(continued).substr(0, 55), "is to be continued, but the first line of this job is t");
}

TEST_F(RequestLineTest, BatchLines) {
  RequestLine line = of_body(R"({"prompt": "one", "logprobs": 2})");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.ids, encode("one"));
  EXPECT_EQ(line.name, R"("a")");
  EXPECT_EQ(line.rules, (SampleRules{.form = LineForm::kCompletion, .log_probs = 2}));
  const std::string hi = R"({"messages": [{"role": "user", "content": "hi"}])";
  line = of_body(hi + R"(, "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 4})", "/v1/chat/completions");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.ids, encode("<|startoftext|>1970-01-02<|im_start|>user hi<|im_end|>", false));
  EXPECT_EQ(line.rules, (SampleRules{.form = LineForm::kChatCompletion,
                                     .sampling = {.max_new = 4},
                                     .log_probs = 3,
                                     .message = {.thoughts = Thoughts::kApart}}));
  EXPECT_EQ(of_body(hi + R"(, "logprobs": true})", "/v1/chat/completions").rules.log_probs, 0);
  EXPECT_EQ(of_body(hi + R"(, "logprobs": false, "top_logprobs": 0})", "/v1/chat/completions").rules.log_probs,
            std::nullopt);
  EXPECT_EQ(without_place(of_body(hi + R"(, "logprobs": 2})", "/v1/chat/completions").error),
            R"("logprobs" is 2, expected true or false)");
  EXPECT_EQ(without_place(of_body(hi + R"(, "top_logprobs": 2})", "/v1/chat/completions").error),
            R"("top_logprobs" without "logprobs": true)");
  EXPECT_EQ(of_body(hi + "}", "/v1/chat/completions").rules.form, LineForm::kChatCompletion);
  EXPECT_EQ(without_place(of_body(hi + "}").error), R"("prompt" is null, expected text or a list of token ids)");
}

// What the message of an answer has: as in a server, which reads the same fields.
TEST_F(RequestLineTest, MessagesWithCallsAndThoughts) {
  const auto body = [](const std::string& fields) {
    return R"({"messages": [{"role": "user", "content": "hi"}])" + fields + "}";
  };
  const auto form = [&](const std::string& fields) {
    const RequestLine line = of_body(body(fields), "/v1/chat/completions");
    EXPECT_EQ(line.error, "");
    const OpenAiRequest served = parse_openai_request(body(fields), true, context_, {}, {.max_prompt_tokens = 60});
    EXPECT_EQ(served.form.message, line.rules.message);
    EXPECT_EQ(ResponseForm::from_word(served.form.to_word()).message, line.rules.message);
    return line.rules.message;
  };
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  const MessageForm apart{.thoughts = Thoughts::kApart};
  EXPECT_EQ(form(""), apart);
  EXPECT_EQ(form(R"(, "tools": [], "reasoning_format": "auto", "separate_reasoning": true)"), apart);
  EXPECT_EQ(form(tools), (MessageForm{.thoughts = Thoughts::kApart, .calls = true}));
  EXPECT_EQ(form(tools + R"(, "tool_choice": "none", "parallel_tool_calls": null)"), apart);
  EXPECT_EQ(form(tools + R"(, "tool_choice": "auto", "parallel_tool_calls": false)"),
            (MessageForm{.thoughts = Thoughts::kApart, .calls = true, .one_call = true}));
  for (const char* field : {R"(, "separate_reasoning": false)", R"(, "reasoning_format": "none")"})
    EXPECT_EQ(form(field), (MessageForm{.thoughts = Thoughts::kAsText})) << field;
  EXPECT_EQ(form(R"(, "include_reasoning": false)"), (MessageForm{.thoughts = Thoughts::kLeftOut}));
  EXPECT_EQ(form(R"(, "chat_template_kwargs": {"mood": "<think>\n"})"), apart) << "other text follows";
  write_bytes(folder_ / "chat_template.jinja", "{{ messages[-1]['content'] }}<think>\n");
  model_ = TextModel::open(folder_.path());
  EXPECT_EQ(form(""), (MessageForm{.thoughts = Thoughts::kApart, .in_thought = true}));
  for (const auto& [field, reason] :
       {std::pair{R"("reasoning_format": "deepseek-legacy")",
                  R"("reasoning_format" is "deepseek-legacy", expected "none", "auto" or "deepseek")"},
        {R"("separate_reasoning": 1)", R"("separate_reasoning" is 1, expected true or false)"},
        {R"("tool_choice": "required")", R"("tool_choice" is "required", expected "auto" or "none" without "tools")"}})
    EXPECT_EQ(without_place(of_body(body(std::string(", ") + field), "/v1/chat/completions").error), reason);
}

TEST_F(RequestLineTest, FaultyBatchLinesAreAnswers) {
  const auto error_of = [&](const std::string& text, const std::string& name = "\"a\"") {
    const RequestLine line = parse(text);
    EXPECT_EQ(line.name, name);
    EXPECT_TRUE(line.ids.empty());
    EXPECT_TRUE(is_batch_form(line.rules.form));
    return without_place(line.error);
  };
  const std::string end = R"("body": {"prompt": "x"}})";
  const std::string post = R"("method": "POST", "url": "/v1/completions", )";
  EXPECT_EQ(error_of("{" + post + end, ""), R"("custom_id" is null, expected text)");
  EXPECT_EQ(error_of(R"({"custom_id": null, )" + post + end, ""), R"("custom_id" is null, expected text)");
  EXPECT_EQ(error_of(R"({"custom_id": 5, )" + post + end, ""), R"("custom_id" is 5, expected text)");
  EXPECT_EQ(error_of(R"({"custom_id": "", "url": "/v1/completions", )" + end, R"("")"),
            R"("method" is null, expected "POST")");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "method": "GET", "url": "/v1/completions", )" + end),
            R"("method" is "GET", expected "POST")");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "method": 1, "url": "/v1/completions", )" + end),
            R"("method" is 1, expected text)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", )" + end),
            R"("url" is "/v1/embeddings", expected /v1/completions or /v1/chat/completions)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "method": "POST", )" + end),
            R"("url" is null, expected /v1/completions or /v1/chat/completions)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "method": "POST", "url": "/v1/completions"})"),
            R"("body" is null, expected an object)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", )" + post + R"("body": []})"), R"("body" is [], expected an object)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", "more": 1, )" + post + end),
            R"(unknown key "more", expected one of custom_id, method, url, body)");
  EXPECT_EQ(error_of(R"({"custom_id": "a", )" + post + R"("body": {"prompt": "x", "stream": true}})"),
            R"("stream" is true, which is not supported: expected false, or no such field)");
  // Found values are cut off between characters.
  const RequestLine wide = parse(R"({"custom_id": "a", "method": ")" + [] {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "é";
    return text;
  }() + R"("})");
  EXPECT_EQ(wide.error.find("\\x"), std::string::npos) << wide.error;
}

TEST_F(RequestLineTest, TextWithoutATokenizer) {
  context_.text = nullptr;
  context_.text_error = "text needs a tokenizer: expected --tokenizer FOLDER";
  for (const char* line : {R"({"text": "a"})", R"({"prompt": "a"})", R"({"prompt": ["a"]})",
                           R"({"messages": [{"role": "user", "content": "hi"}]})"})
    EXPECT_EQ(refusal(line), context_.text_error);
  EXPECT_EQ(without_place(of_body(R"({"prompt": "a"})").error), context_.text_error);
  EXPECT_THROW(parse_text_line("a", context_, "in.txt: line 1"), Error);
  EXPECT_EQ(parse(R"({"prompt": [4, 5]})").ids, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(of_body(R"({"prompt": [4, 5]})").error, "");
}

TEST(RequestLineKindTest, TheFirstLineDecides) {
  for (const char* line : {R"({"prompt": 1})", R"({"messages": []})", R"({"prompt": "custom_id"})"})
    EXPECT_EQ(kind_of_line(line), LineKind::kContinued) << line;
  for (const char* line : {R"({"custom_id": 1})", R"({"body": {}})", R"({"body": {}, "url": "/v1/completions"})"})
    EXPECT_EQ(kind_of_line(line), LineKind::kBatch) << line;
  EXPECT_EQ(kind_of_line(R"({"custom_id": 1, "url": "/v1/embeddings"})"), LineKind::kEmbeddings);
  for (const char* line :
       {R"({"text": "prompt"})", R"({"input_ids": []})", R"({"text": "a", "prompt": null})", R"(["prompt"])"})
    EXPECT_EQ(kind_of_line(line), LineKind::kScored) << line;
  for (const char* line : {"nonsense", "", "null"}) EXPECT_EQ(kind_of_line(line), LineKind::kNone) << line;
}

}  // namespace
}  // namespace lfm2::test
