// Texts with calls and thoughts, and the messages that they become: whole, in streams and in batch lines, drawn token
// by token and byte by byte.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "openai/request_line.h"
#include "openai/response_builder.h"
#include "support/answer_models.h"
#include "support/golden.h"

namespace lfm2::test {
namespace {

constexpr TokenId kEnd = 4;  // ends a text

struct Answer {
  std::string content, thought, finish;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "content " << json_text(Json(answer.content)) << ", thought " << json_text(Json(answer.thought));
  for (const auto& [name, arguments] : answer.calls) *out << ", " << name << ' ' << arguments;
  *out << ", " << answer.finish;
}

std::string text_or_none(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? "" : found->get<std::string>();
}

Answer answer_of_choice(const OrderedJson& choice) {
  const OrderedJson& message = choice["message"];
  Answer answer{
      text_or_none(message, "content"), text_or_none(message, "reasoning_content"), choice["finish_reason"], {}};
  EXPECT_EQ(text_or_none(message, "reasoning"), answer.thought);
  std::set<std::string> ids;
  for (const OrderedJson& call : message.value("tool_calls", OrderedJson::array())) {
    ids.insert(call["id"].get<std::string>());
    EXPECT_EQ(call["type"], "function");
    answer.calls.emplace_back(call["function"]["name"], call["function"]["arguments"]);
  }
  EXPECT_EQ(ids.size(), answer.calls.size()) << "ids of calls";
  return answer;
}

// The answers that the deltas of a stream make together, choice by choice.
std::map<size_t, Answer> joined(const std::vector<std::string>& events) {
  std::map<size_t, Answer> answers;
  for (const std::string& event : events) {
    const OrderedJson chunk = parse_ordered_json(event, "event");
    for (const OrderedJson& choice : chunk["choices"]) {
      Answer& answer = answers[choice["index"].get<size_t>()];
      const OrderedJson& delta = choice["delta"];
      answer.content += text_or_none(delta, "content");
      answer.thought += text_or_none(delta, "reasoning_content");
      EXPECT_EQ(text_or_none(delta, "reasoning"), text_or_none(delta, "reasoning_content"));
      for (const OrderedJson& call : delta.value("tool_calls", OrderedJson::array())) {
        const auto index = call["index"].get<size_t>();
        if (index == answer.calls.size()) {
          EXPECT_FALSE(text_or_none(call, "id").empty());
          answer.calls.emplace_back(call["function"]["name"], "");
        }
        EXPECT_EQ(index + 1, answer.calls.size());
        answer.calls.back().second += call["function"]["arguments"].get<std::string>();
      }
      answer.finish += text_or_none(choice, "finish_reason");
    }
  }
  return answers;
}

class AnswerCasesTest : public testing::Test {
 protected:
  // "text-plain" and so on: the tags of thoughts are text or special tokens, and prompts end before, in or after a
  // thought.
  const AnswerModel& model(const std::string& tags, const std::string& kind) {
    std::unique_ptr<AnswerModel>& model = models_[tags + '-' + kind];
    if (model) return *model;
    std::vector<std::string> special{"<|tool_call_start|>", "<|tool_call_end|>"};
    if (tags == "special") special.insert(special.end(), {"<think>", "</think>"});
    const std::map<std::string, std::string> ends{
        {"plain", ""}, {"opens", "<think>"}, {"closed", "<think>\\n\\n</think>\\n\\n"}};
    model = std::make_unique<AnswerModel>(
        special, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ '" + ends.at(kind) + "' }}");
    return *model;
  }
  static std::vector<TokenId> drawn(const AnswerModel& model, const Json& one, bool by_byte) {
    std::vector<TokenId> ids;
    for (const Json& piece : one["text"].is_array() ? one["text"] : Json::array({one["text"]})) {
      std::string text = piece.is_string() ? piece.get<std::string>() : "";
      if (!piece.is_string())
        for (size_t at = 0; at < piece["hex"].get<std::string>().size(); at += 2)
          text += static_cast<char>(std::stoi(piece["hex"].get<std::string>().substr(at, 2), nullptr, 16));
      const std::vector<TokenId> more = model.ids(text, by_byte || !piece.is_string());
      ids.insert(ids.end(), more.begin(), more.end());
    }
    if (!one.contains("cut") || ids.empty()) ids.push_back(kEnd);
    return ids;
  }
  static Json body_of(const Json& one) {
    Json body{{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_tokens", 1000}};
    if (one.contains("tools")) body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
    if (one.contains("fields")) body.update(one["fields"]);
    return body;
  }
  static LineContext context(const AnswerModel& model) {
    return {.vocab = static_cast<int64_t>(model.tokenizer().size()),
            .max_positions = 100'000,
            .text = &model.text(),
            .continues = true};
  }
  static ResponseFacts facts(const AnswerModel& model) {
    return {"m", 1, &model.tokenizer(), answer_tokens(model.tokenizer())};
  }

  // The server's answers: all choices draw the same.
  static std::vector<Answer> served(const AnswerModel& model, const Json& one, const std::vector<TokenId>& ids,
                                    bool stream) {
    Json body = body_of(one);
    body["stream"] = stream;
    const OpenAiRequest request =
        parse_openai_request(body.dump(), true, context(model), {}, {.max_prompt_tokens = 100'000, .max_edits = 8});
    CompletionBuilder builder(request, "id", facts(model), 1 << 20);
    std::vector<std::string> events;
    for (size_t i = 0; i < ids.size(); ++i)
      for (size_t choice = 0; choice < request.requests.size(); ++choice) {
        DrawnToken token{.token = ids[i]};
        if (i + 1 == ids.size()) token.ends = one.contains("cut") ? FinishReason::kLength : FinishReason::kStop;
        builder.add(choice, token, 0);
        if (!stream) continue;
        for (StreamEvent& event : builder.events(choice, false)) events.push_back(std::move(event.data));
      }
    EXPECT_TRUE(builder.done());
    std::vector<Answer> answers;
    if (stream) {
      for (auto& [index, answer] : joined(events)) answers.push_back(std::move(answer));
    } else {
      const OrderedJson whole = parse_ordered_json(builder.body(), "answer");
      for (const OrderedJson& choice : whole["choices"]) answers.push_back(answer_of_choice(choice));
    }
    EXPECT_EQ(answers.size(), request.requests.size());
    return answers;
  }
  // The answer in a batch file.
  static Answer batched(const AnswerModel& model, const Json& one, const std::vector<TokenId>& ids) {
    const Json line{{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body_of(one)}};
    const RequestLine read = parse_request_line(line.dump(), context(model), "line 1");
    EXPECT_EQ(read.error, "");
    Completion completion;
    completion.tag = request_by_rules({}, read.rules, 0).tag;
    completion.reason = one.contains("cut") ? FinishReason::kLength : FinishReason::kStop;
    completion.token_ids = ids;
    const std::string answer =
        batch_response(completion, ResponseForm::from_word(completion.tag), "\"a\"", facts(model));
    return answer_of_choice(parse_ordered_json(answer, "answer")["response"]["body"]["choices"][0]);
  }

  void run(const std::string& file) {
    const std::vector<Json> cases = json_lines(read_bytes(golden_dir() / "answers" / file));
    EXPECT_GE(cases.size(), 62u);
    for (const Json& one : cases)
      for (const std::string tags : {"text", "special"}) {
        if (one.value("tags", tags) != tags) continue;
        SCOPED_TRACE(one["about"].get<std::string>() + ", tags as " + tags);
        std::set<std::string> seen;
        const auto expect = [&](const Answer& answer) {
          bool fits = false;
          for (const Json& each : one["answers"]) {
            Answer right{each.value("content", ""), each.value("thought", ""), each["finish"], {}};
            for (const Json& call : each.value("calls", Json::array())) right.calls.emplace_back(call[0], call[1]);
            fits = fits || answer == right;
          }
          EXPECT_TRUE(fits) << testing::PrintToString(answer) << "\nexpected " << one["answers"];
        };
        const AnswerModel& with = model(tags, one.value("template", "plain"));
        for (const bool by_byte : {false, true}) {
          const std::vector<TokenId> ids = drawn(with, one, by_byte);
          for (const bool stream : {false, true})
            for (const Answer& answer : served(with, one, ids, stream)) expect(answer);
          expect(batched(with, one, ids));
        }
      }
  }

 private:
  std::map<std::string, std::unique_ptr<AnswerModel>> models_;
};

TEST_F(AnswerCasesTest, Calls) { run("calls.jsonl"); }
TEST_F(AnswerCasesTest, Thoughts) { run("thoughts.jsonl"); }

// What a conversation that is sent back becomes in the prompt.
TEST_F(AnswerCasesTest, Prompts) {
  std::istringstream lines(read_bytes(golden_dir() / "answers/prompts.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const OrderedJson one = parse_ordered_json(line, "prompts.jsonl");
    const AnswerModel model({"<|tool_call_start|>", "<|tool_call_end|>"}, one["template"]);
    write_bytes(model.folder() / "tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})");
    EXPECT_EQ(TextModel::open(model.folder())
                  .chat_text(one["messages"], nullptr, one.value("chat_template_kwargs", OrderedJson::object()), 0),
              one["prompt"])
        << one["about"];
  }
}

}  // namespace
}  // namespace lfm2::test
