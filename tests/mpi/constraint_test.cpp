// Constrained answers by the program under mpirun: each is what its constraint says, and has the same bytes for any
// ranks, sizes, neighbours and pages, and from a run that was stopped.
#include <signal.h>

#include <algorithm>
#include <functional>

#include "support/text_run.h"

namespace lfm2::test {
namespace {

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer",
        "minimum": 3, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "bb", null]}, "maxItems": 3}},
        "required": ["name", "age"], "additionalProperties": false})";

bool is_record(const std::string& text) {
  if (!Json::accept(text)) return false;
  const Json json = Json::parse(text);
  const auto is_tag = [](const Json& tag) { return tag == "a" || tag == "bb" || tag.is_null(); };
  return json.is_object() && json.contains("name") && json["name"].is_string() && json.contains("age") &&
         json["age"].is_number_integer() && json["age"] >= 3 && json["age"] <= 120 &&
         std::all_of(json.items().begin(), json.items().end(), [&](const auto& item) {
           return item.key() == "name" || item.key() == "age" ||
                  (item.key() == "tags" && item.value().size() <= 3 &&
                   std::all_of(item.value().begin(), item.value().end(), is_tag));
         });
}

// A constraint as a field of a line, and what an answer under it is.
struct Kind {
  std::string field;
  std::function<bool(const std::string& text)> holds;
};
std::vector<Kind> kinds() {
  const auto matches = [](const char* pattern) {
    return [pattern](const std::string& text) { return std::regex_match(text, std::regex(pattern)); };
  };
  return {{fmt::format(R"("response_format": {{"type": "json_schema", "json_schema": {{"schema": {}}}}})", kSchema),
           is_record},
          {R"("structured_outputs": {"choice": ["yes", "no", "perhaps not"]})", matches("yes|no|perhaps not")},
          {R"("guided_regex": "[0-9]{3}-[a-f]{2,5}")", matches("[0-9]{3}-[a-f]{2,5}")},
          {R"("guided_grammar": "root ::= \"(\" [a-c]+ \")\" | root \"+\" root")",
           matches("\\([abc]+\\)(\\+\\([abc]+\\))*")},
          {R"("structured_outputs": {"json": {"enum": [1, "two", {"three": 3}]}, "disable_any_whitespace": true})",
           [](const std::string& text) {
             const Json json = Json::accept(text) ? Json::parse(text) : Json();
             return json == 1 || json == "two" || json == Json({{"three", 3}});
           }}};
}

class ConstraintTest : public TextRun {
 protected:
  ConstraintTest() {
    for (int i = 0; i < 32; ++i) {
      const Kind& kind = kinds_[static_cast<size_t>(i) % kinds_.size()];
      const std::string n = std::to_string(i);
      const std::string fields = fmt::format(R"("max_tokens": 200, "seed": {}, "temperature": {}{}, {})", n,
                                             i % 5 == 0 ? "0" : "1.3", i % 6 == 1 ? R"(, "n": 2)" : "", kind.field);
      lines_.push_back(batch_line(n, true,
                                  R"({"messages": [{"role": "user", "content": "say )" + n + "\"}], " + fields +
                                      (i % 7 == 2 ? R"(, "frequency_penalty": 0.7, "min_tokens": 3})" : "}")));
      lines_.push_back(batch_line("free-" + n, false, R"({"prompt": "Once )" + n + R"(", "max_tokens": 20})"));
    }
    for (std::string& line : lines_) std::erase(line, '\n');
    write_lines("in.jsonl", lines_);
  }

  const std::vector<Kind> kinds_ = kinds();
  std::vector<std::string> lines_;
};

TEST_F(ConstraintTest, AnswersHoldAndHaveTheSameBytes) {
  const Arguments job{"--input", folder_ / "in.jsonl"};
  const std::string first = output_of(1, job);
  const std::map<std::string, std::string> answers = by_name(first);
  ASSERT_EQ(answers.size(), lines_.size());
  int whole = 0;
  for (int i = 0; i < 32; ++i) {
    const Json body = Json::parse(answers.at(std::to_string(i)))["response"]["body"];
    for (const Json& choice : body["choices"]) {
      const std::string text = choice["message"]["content"];
      if (choice["finish_reason"] == "length") continue;  // cut, never closed by invention
      ++whole;
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_TRUE(kinds_[static_cast<size_t>(i) % kinds_.size()].holds(text)) << i << ": " << text;
    }
  }
  EXPECT_GE(whole, 24);
  for (const Arguments& sizes : {Arguments{},
                                 {"--max-num-seqs", "1"},
                                 {"--max-num-seqs", "3", "--max-batched-tokens", "5"},
                                 {"--page-size", "1"},
                                 {"--replicas", "2"}})
    for (const int ranks : {1, 2, 4}) {
      if (sizes.size() > 1 && sizes[0] == "--replicas" && ranks < std::stoi(sizes[1])) continue;
      Arguments arguments = job;
      arguments.insert(arguments.end(), sizes.begin(), sizes.end());
      EXPECT_TRUE(output_of(ranks, arguments) == first) << ranks << " ranks, " << testing::PrintToString(sizes);
    }
}

TEST_F(ConstraintTest, StoppedAndResumed) {
  const std::string whole = output_of(1, {"--input", folder_ / "in.jsonl"}, "whole.jsonl");
  const Arguments job{"--input",  folder_ / "in.jsonl", "--max-num-seqs", "4",
                      "--output", folder_ / "o.jsonl",  "--resume"};
  for (const int ranks : {1, 2}) {
    std::filesystem::remove(folder_ / "o.jsonl");
    for (int i = 0; i < 3; ++i) run(ranks, job, {.signal = SIGUSR1, .after_seconds = 0.6 + 0.2 * i});
    const Outcome outcome = run(ranks, job);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(timeless(read_bytes(folder_ / "o.jsonl")) == whole) << ranks << " ranks";
  }
}

// Each by its field, before anything is computed; the other lines are answered.
TEST_F(ConstraintTest, RefusedByName) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {R"("response_format": {"type": "xml"})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}})", "#: type: found"},
      {R"("guided_regex": "(a")", "guided_regex"},
      {R"("guided_regex": "(?=a)b")", "guided_regex"},
      {R"("structured_outputs": {"grammar": "root ::= a"})", "grammar"},
      {R"("structured_outputs": {"choice": []})", "choice"},
      {R"("structured_outputs": {"choice": ["a"], "regex": "b"})", "one of"},
      {R"("guided_choice": ["a"], "response_format": {"type": "json_object"})", "both"}};
  std::vector<std::string> lines{batch_line("good", false, R"({"prompt": "Once", "max_tokens": 3})")};
  for (size_t i = 0; i < faults.size(); ++i)
    lines.push_back(batch_line(std::to_string(i), false, R"({"prompt": "Once", )" + faults[i].first + "}"));
  write_lines("faulty.jsonl", lines);
  const std::map<std::string, std::string> answers = by_name(output_of(1, {"--input", folder_ / "faulty.jsonl"}));
  EXPECT_EQ(Json::parse(answers.at("good"))["response"]["status_code"], 200);
  for (size_t i = 0; i < faults.size(); ++i) {
    const Json answer = Json::parse(answers.at(std::to_string(i)));
    EXPECT_EQ(answer["response"]["status_code"], 400) << faults[i].first;
    EXPECT_NE(answer.dump().find(faults[i].second), std::string::npos) << answer.dump();
  }
}

}  // namespace
}  // namespace lfm2::test
