// Text by the program under mpirun: every form of line gives the same bytes for any number of ranks, any sizes and any
// order of the lines.
#include <signal.h>

#include <algorithm>
#include <random>

#include "support/text_run.h"

namespace lfm2::test {
namespace {

// Every form, some of each, with and without fields of its own. Lines of ids have seeds, as they draw by their numbers
// otherwise.
std::vector<std::string> lines_of_all_forms() {
  std::vector<std::string> lines;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i), id = R"("id": ")" + std::string(1, static_cast<char>('a' + i));
    const std::string say = R"([{"role": "user", "content": "say )" + n + R"( é"}])";
    lines.push_back("{" + id + R"(-ids", "input_ids": [1, 2, )" + n + R"(], "seed": 3, "temperature": 1.2})");
    lines.push_back("{" + id + R"(-text", "text": "It is )" + n + R"( 日本", "max_tokens": 7, "temperature": 0.9})");
    lines.push_back("{" + id + R"(-prompt", "prompt": "Hello )" + n + R"(", "seed": )" + n + "}");
    lines.push_back("{" + id + R"(-prompt-of-ids", "prompt": [1, 700, )" + n + R"(], "logprobs": 2})");
    lines.push_back("{" + id + R"(-messages", "messages": )" + say + R"(, "tools": [{"name": "f"}], "top_k": 5})");
    lines.push_back(batch_line(n + "-completion", false, R"({"prompt": "Once )" + n + R"(", "logprobs": 3})"));
    lines.push_back(
        batch_line(n + "-chat", true, R"({"messages": )" + say + R"(, "seed": )" + n + R"(, "logprobs": true,
                                  "top_logprobs": 2, "max_completion_tokens": 11})"));
    lines.push_back("{" + id + R"(-sampled", "prompt": "Hello )" + n + R"(", "seed": )" + n + R"(, "min_p": 0.02,
                    "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "min_tokens": 3,
                    "logit_bias": {"9": -100, "20": 2}, "stop": ["e", "a "]})");
    lines.push_back("{" + id + R"(-choices", "prompt": "Hello )" + n + R"(", "n": 3, "seed": 1, "stop": "i"})");
    lines.push_back(batch_line(n + "-chat-choices", true, R"({"messages": )" + say + R"(, "n": 2, "logprobs": true,
                               "frequency_penalty": 1.5, "stop": ["o", "\u00e9"]})"));
    lines.push_back(batch_line(n + "-faulty", true, R"({"messages": [], "temperature": )" + n + "}"));
  }
  for (std::string& line : lines) std::erase(line, '\n');
  return lines;
}

using TextRunTest = TextRun;

TEST_F(TextRunTest, SameBytesForAnyRanksAndSizes) {
  const std::vector<std::string> lines = lines_of_all_forms();
  write_lines("in.jsonl", lines);
  const Arguments job{"--input", folder_ / "in.jsonl", "--max-tokens", "9"};
  const std::string first = output_of(1, job);
  const std::map<std::string, std::string> answers = by_name(first);
  ASSERT_EQ(answers.size(), lines.size());
  for (const Arguments& sizes : {Arguments{},
                                 {"--micro-batch", "1"},
                                 {"--max-num-seqs", "3", "--max-batched-tokens", "5"},
                                 {"--page-size", "1"},
                                 {"--replicas", "2"},
                                 {"--replicas", "4", "--max-num-seqs", "2"}})
    for (const int ranks : {1, 2, 4}) {
      if (sizes.size() > 1 && sizes[0] == "--replicas" && ranks < std::stoi(sizes[1])) continue;
      Arguments arguments = job;
      arguments.insert(arguments.end(), sizes.begin(), sizes.end());
      EXPECT_EQ(output_of(ranks, arguments), first) << ranks << " ranks, " << testing::PrintToString(sizes);
    }
  // The draws differ from line to line, and the answers are texts of some length.
  EXPECT_NE(answers.at("a-prompt"), answers.at("b-prompt"));
  const Json choices = Json::parse(answers.at("a-choices"))["choices"];
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_NE(choices[0]["token_ids"], choices[1]["token_ids"]);
  EXPECT_EQ(Json::parse(answers.at("0-chat-choices"))["response"]["body"]["choices"].size(), 2u);
  // A text is without its stop texts, which are only allowed among the first three tokens.
  int64_t stopped = 0;
  for (const char* name : {"a-sampled", "b-sampled", "c-sampled", "d-sampled", "e-sampled", "f-sampled"}) {
    const Json answer = Json::parse(answers.at(name));
    EXPECT_GE(answer["token_ids"].size(), 4u);
    stopped += answer["finish_reason"] == "stop" ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
  EXPECT_EQ(Json::parse(answers.at("0-faulty"))["response"]["status_code"], 400);
  EXPECT_EQ(Json::parse(answers.at("0-chat"))["response"]["status_code"], 200);
  EXPECT_EQ(
      Json::parse(answers.at("0-chat"))["response"]["body"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
          .size(),
      2u);
}

TEST_F(TextRunTest, OrderOfLinesIsNothing) {
  std::vector<std::string> lines = lines_of_all_forms();
  write_lines("in.jsonl", lines);
  const Arguments job{"--input", folder_ / "in.jsonl", "--max-tokens", "9", "--temperature", "1.3", "--seed", "4"};
  const std::map<std::string, std::string> first = by_name(output_of(2, job));
  std::mt19937 random(5);
  for (int turn = 0; turn < 3; ++turn) {
    std::shuffle(lines.begin(), lines.end(), random);
    write_lines("in.jsonl", lines);
    EXPECT_EQ(by_name(output_of(turn + 1 == 3 ? 4 : turn + 1, job)), first);
  }
}

// --prompt and --input - say what a file of the same lines says.
TEST_F(TextRunTest, PromptAndStandardInput) {
  write_lines("in.jsonl", {R"({"prompt": "Hello, it is", "id": "x"})", R"({"prompt": "日本", "id": "y"})"});
  const std::string output = output_of(1, {"--input", folder_ / "in.jsonl"});
  const std::string text = Json::parse(output.substr(0, output.find('\n')))["text"];
  ASSERT_FALSE(text.empty());
  for (const int ranks : {1, 2, 4}) {
    const Outcome outcome = run(ranks, {"--prompt", "Hello, it is", "--quiet"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, text + "\n") << ranks;
    // The text ends before a stop text: here its first letter behind the fourth byte.
    const auto letter = std::find_if(text.begin() + 4, text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    ASSERT_NE(letter, text.end());
    const Outcome stopped = run(ranks, {"--prompt", "Hello, it is", "--quiet", "--stop", std::string(1, *letter)});
    EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
    EXPECT_EQ(stopped.out, text.substr(0, text.find(*letter)) + "\n") << ranks;
    for (const char* shell : {R"(exec "$@" <"$0")", R"(while read -r l; do echo "$l"; sleep 0.1; done <"$0" | "$@")"}) {
      Arguments command =
          stage_command(ranks, {"--weights", shards(ranks), "--input", "-", "--output", folder_ / "piped.jsonl"});
      command.insert(command.begin(), {"sh", "-c", shell, folder_ / "in.jsonl"});
      const Outcome piped = run_program(command);
      EXPECT_EQ(piped.exit_code, 0) << piped.err;
      EXPECT_EQ(read_bytes(folder_ / "piped.jsonl"), output) << ranks << " ranks, " << shell;
      std::filesystem::remove(folder_ / "piped.jsonl");
    }
  }
  expect_refused(2, {"--input", "-", "--resume", "--output", folder_ / "o.jsonl"}, 64, {"--resume with --input -"});
}

// Whoever writes standard input may never end it.
TEST_F(TextRunTest, StoppedWhileItWaitsForStandardInput) {
  Arguments command = stage_command(2, {"--weights", shards(2), "--input", "-", "--output", folder_ / "o.jsonl"});
  command.insert(command.begin(), {"bash", "-c", R"(exec "$@" < <(sleep 30))", "bash"});
  const Outcome stopped = run_program(command, {.signal = SIGUSR1, .after_seconds = 3});
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_NE(stopped.err.find("stopped on request while the input was read"), std::string::npos) << stopped.err;
  EXPECT_LT(stopped.seconds, 20);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "o.jsonl"));
}

// Errors go to the rank that writes in pieces of 4096.
TEST_F(TextRunTest, ThousandsOfFaultyLines) {
  std::vector<std::string> lines;
  for (int i = 0; i < 10000; ++i)
    lines.push_back(
        batch_line("line-" + std::to_string(i), false, i == 5000 ? R"({"prompt": "a"})" : R"({"n": true})"));
  write_lines("in.jsonl", lines);
  const std::string output = output_of(1, {"--input", folder_ / "in.jsonl"});
  std::istringstream stream(output);
  size_t read = 0;
  for (std::string line; std::getline(stream, line); ++read) {
    const Json answer = parse_json(line, "answer");
    ASSERT_EQ(answer["custom_id"], "line-" + std::to_string(read));
    ASSERT_EQ(answer["error"].is_null(), read == 5000) << line;
    if (read != 5000) {
      const std::string message = answer["error"]["message"];
      ASSERT_EQ(message.find("line " + std::to_string(read + 1) + ":"), 0u) << line;
    }
  }
  EXPECT_EQ(read, lines.size());
  EXPECT_EQ(output_of(4, {"--input", folder_ / "in.jsonl"}), output);
  EXPECT_EQ(output_of(4, {"--input", folder_ / "in.jsonl", "--replicas", "4"}), output);
}

// A line that cannot be read does not say what kind of file it stands in, and the only good line has its answer
// wherever it stands.
TEST_F(TextRunTest, TheOnlyGoodLineIsAnswered) {
  const std::string good = batch_line("good", true,
                                      R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})"),
                    cut = batch_line("cut", true, R"({"messages": [{"role": "user", "content": "\ud83d"}]})"),
                    faulty = batch_line("faulty", true, R"({"messages": [], "max_tokens": 2})");
  for (const std::vector<std::string>& lines :
       {std::vector<std::string>{cut, good}, {faulty, faulty, good}, {good, cut}}) {
    write_lines("in.jsonl", lines);
    const std::string output = output_of(2, {"--input", folder_ / "in.jsonl"});
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), static_cast<std::ptrdiff_t>(lines.size())) << output;
    EXPECT_NE(output.find(R"("custom_id":"good","response":{"status_code":200)"), std::string::npos) << output;
    for (const Arguments& other : {Arguments{}, Arguments{"--output", folder_ / "o.h5"}}) {
      Arguments arguments{"--input", folder_ / "in.jsonl"};
      arguments.insert(arguments.end(), other.begin(), other.end());
      const Outcome outcome = run(2, arguments);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
  }
  std::string ids = "1";
  for (int i = 0; i < 10000; ++i) ids += ",1";
  write_lines("in.jsonl", {batch_line("long", false, R"({"prompt": [)" + ids + "]}")});
  const Json error = Json::parse(output_of(1, {"--input", folder_ / "in.jsonl"}))["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
}

// Lines of .txt are scored and continued as lines of {"text"} are.
TEST_F(TextRunTest, LinesOfText) {
  write_lines("in.txt", {"Hello, it's 12345", "", " 日本 python\r", R"({"prompt": "no JSON here"})"});
  write_lines("in.jsonl", {R"({"text": "Hello, it's 12345"})", R"({"text": " 日本 python"})",
                           R"({"text": "{\"prompt\": \"no JSON here\"}"})"});
  for (const Arguments& kind :
       {Arguments{"--top-logprobs", "2", "--logits", "all"}, {"--max-tokens", "8", "--temperature", "1.2"}}) {
    std::string first;
    for (const int ranks : {1, 2, 4})
      for (const char* name : {"in.txt", "in.jsonl"}) {
        Arguments arguments = kind;
        arguments.insert(arguments.end(), {"--input", folder_ / name});
        const std::string output = output_of(ranks, arguments);
        if (first.empty()) first = output;
        EXPECT_EQ(output, first) << ranks << " ranks, " << name;
        EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 3);
      }
  }
}

// What one line says is no other line's, and options stand behind it.
TEST_F(TextRunTest, DefaultsOfTheModelAndTheOptions) {
  write_lines("in.jsonl", {R"({"id": "p", "prompt": [1, 9], "ignore_eos": true})",
                           R"({"id": "n", "prompt": [1, 9], "max_tokens": 5, "ignore_eos": true})",
                           R"({"id": "i", "input_ids": [1, 9], "ignore_eos": true})"});
  const auto tokens = [&](const Arguments& options) {
    Arguments arguments{"--input", folder_ / "in.jsonl"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    std::vector<size_t> counts;
    std::istringstream stream(output_of(2, arguments));
    for (std::string line; std::getline(stream, line);) counts.push_back(Json::parse(line)["token_ids"].size());
    return counts;
  };
  EXPECT_EQ(tokens({}), (std::vector<size_t>{13, 5, 256}));
  EXPECT_EQ(tokens({"--generation-config", "none"}), (std::vector<size_t>{256, 5, 256}));
  EXPECT_EQ(tokens({"--max-tokens", "6"}), (std::vector<size_t>{6, 5, 6}));
  write_bytes(folder_ / "g.json", R"({"max_new_tokens": 3, "typical_p": 0.1})");
  expect_refused(2, {"--input", folder_ / "in.jsonl", "--generation-config", folder_ / "g.json"}, 65,
                 {"g.json: \"typical_p\" is 0.1"});
}

TEST_F(TextRunTest, Refusals) {
  const std::string good = R"({"prompt": "a"})", batch = batch_line("a", false, R"({"prompt": "a"})"),
                    faulty = batch_line("b", false, R"({"prompt": "a", "best_of": 2})");
  const auto refused = [&](const std::vector<std::string>& lines, const Arguments& options, int code,
                           const Arguments& reasons) {
    write_lines("in.jsonl", lines);
    Arguments arguments{"--input", folder_ / "in.jsonl", "--output", folder_ / "o.jsonl"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    expect_refused(2, arguments, code, reasons);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "o.jsonl"));
  };
  refused({good, "nonsense"}, {}, 65, {"in.jsonl: line 2: not valid JSON"});
  refused({good, R"({"prompt": "a", "temperature": -1})"}, {}, 65, {"line 2: \"temperature\" is -1"});
  refused({R"({"text": "a"})", good}, {}, 65, {"line 2: is to be continued, but the first line"});
  refused({R"({"text": "a"})", batch}, {}, 65, {"line 2: is to be continued, but the first line"});
  refused({batch, faulty}, {"--strict"}, 65, {"in.jsonl: line 2: \"best_of\" is 2, which is not supported"});
  refused({batch, "nonsense"}, {"--strict"}, 65, {"in.jsonl: line 2: not valid JSON"});
  refused({"", "  "}, {}, 65, {"in.jsonl: no samples"});
  refused({good}, {"--logits", "all"}, 64, {"--logits"});
  write_lines("in.jsonl", {good});
  EXPECT_EQ(output_of(4, {"--input", folder_ / "in.jsonl", "--replicas", "4"}),
            output_of(1, {"--input", folder_ / "in.jsonl"}))
      << "replicas without a sample";
  write_lines("in.jsonl", {good, R"({"prompt": "a", "n": 2})"});
  expect_refused(2, {"--input", folder_ / "in.jsonl", "--output", folder_ / "o.h5"}, 64, {"\"n\" above 1"});
  // Without --strict each is one answer.
  for (const std::vector<std::string>& lines : {std::vector<std::string>{batch, "nonsense", faulty}, {faulty}}) {
    write_lines("in.jsonl", lines);
    std::string first;
    for (const int ranks : {1, 2, 4}) {
      const std::string output = output_of(ranks, {"--input", folder_ / "in.jsonl"});
      if (first.empty()) first = output;
      EXPECT_EQ(output, first);
      EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), static_cast<std::ptrdiff_t>(lines.size()));
    }
    EXPECT_NE(first.find("\\\"best_of\\\" is 2"), std::string::npos) << first;
    EXPECT_EQ(first.find(folder_.path().string()), std::string::npos) << "an answer names the file's place";
  }
}

TEST_F(TextRunTest, ShardsWithoutATokenizer) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    std::filesystem::remove(folder_ / "model" / name);
  split("model", folder_ / "bare", 2);
  write_texts(folder_ / "texts", kTemplate);
  write_lines("in.jsonl", {R"({"prompt": "a"})"});
  const auto run_bare = [&](Arguments arguments) {
    arguments.insert(arguments.begin(), {"--weights", folder_ / "bare"});
    return run_stage(2, arguments);
  };
  for (const Arguments& arguments :
       {Arguments{"--prompt", "a"}, {"--input", folder_ / "in.jsonl", "--output", folder_ / "o.jsonl"}}) {
    const Outcome outcome = run_bare(arguments);
    EXPECT_EQ(outcome.exit_code, 65);
    EXPECT_NE(outcome.err.find("text needs a tokenizer"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("--tokenizer FOLDER"), std::string::npos) << outcome.err;
  }
  const Outcome with = run_bare({"--tokenizer", folder_ / "texts", "--prompt", "Hello, it is", "--quiet"});
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(with.out, run(2, {"--prompt", "Hello, it is", "--quiet"}).out);
  // Ids need none.
  write_lines("in.jsonl", {R"({"prompt": [1, 9], "max_tokens": 3})"});
  EXPECT_EQ(run_bare({"--input", folder_ / "in.jsonl", "--output", folder_ / "o.jsonl"}).exit_code, 0);
  EXPECT_EQ(Json::parse(read_bytes(folder_ / "o.jsonl")).count("text"), 0u);
}

}  // namespace
}  // namespace lfm2::test
