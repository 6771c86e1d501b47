// Text by the program under mpirun: every form of line gives the same bytes for any number of ranks, any sizes and any
// order of the lines, whether the run was stopped and resumed or not.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <thread>

#include "stage/io/journal.h"
#include "stage/support/json.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

constexpr const char* kConfig =
    R"({"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
        "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "eos_token_id": 4, "initializer_range": 0.2, "tie_word_embeddings": true})";
constexpr const char* kTemplate =
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

using Arguments = std::vector<std::string>;

std::string text_of(const Json& json) { return json.dump(); }

std::string batch_line(const std::string& id, bool chat, const std::string& body) {
  return R"({"custom_id": ")" + id + R"(", "method": "POST", "url": "/v1/)" + (chat ? "chat/" : "") +
         R"(completions", "body": )" + body + "}";
}

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

class TextRunTest : public testing::Test {
 protected:
  TextRunTest() {
    write_bytes(folder_ / "config.json", kConfig);
    expect_made({"synth", "--config", folder_ / "config.json", "--dtype", "fp32", "--out", folder_ / "model"});
    write_texts(folder_ / "model", kTemplate);
    for (const int stages : {1, 2, 4}) split("model", shards(stages), stages);
  }
  static void expect_made(Arguments arguments) {
    arguments.insert(arguments.begin(), LFM2_WEIGHTS_TOOLS_PROGRAM);
    arguments.push_back("-q");
    const Outcome made = run_program(arguments);
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  void split(const std::string& model, const std::string& out, int stages) {
    expect_made({"split", folder_ / model, "--stages", std::to_string(stages), "--out", out, "--force"});
  }
  static void write_texts(const std::filesystem::path& folder, const std::string& chat_template) {
    std::filesystem::create_directories(folder);
    write_bytes(folder / "tokenizer.json", read_bytes(golden_dir() / "text/tokenizer.json"));
    write_bytes(folder / "tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})");
    write_bytes(folder / "chat_template.jinja", chat_template);
    write_bytes(folder / "generation_config.json",
                R"({"temperature": 1.1, "top_k": 90, "max_new_tokens": 13, "eos_token_id": 4})");
  }
  std::string shards(int stages) const { return folder_ / ("shards-" + std::to_string(stages)); }

  void write_lines(const std::string& name, const std::vector<std::string>& lines) const {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    write_bytes(folder_ / name, text);
  }
  Outcome run(int ranks, Arguments arguments, const Interruption& interruption = {}) const {
    arguments.insert(arguments.begin(), {"--weights", shards(ranks)});
    return run_stage(ranks, arguments, interruption);
  }
  // The file that a run makes, but for the time of the job.
  std::string output_of(int ranks, Arguments arguments, const std::string& name = "out.jsonl") {
    std::filesystem::remove(folder_ / name);
    arguments.insert(arguments.end(), {"--output", folder_ / name});
    const Outcome outcome = run(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return timeless(read_bytes(folder_ / name));
  }
  static std::string timeless(const std::string& text) {
    return std::regex_replace(text, std::regex(R"("created":\d+)"), R"("created":0)");
  }
  // Each answer by the name of its line, without what numbers it.
  static std::map<std::string, std::string> by_name(const std::string& output) {
    std::map<std::string, std::string> answers;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) {
      Json json = parse_json(line, "answer");
      const std::string name = json.contains("custom_id") ? json["custom_id"] : json["id"];
      json.erase("id");
      if (json.contains("response")) {
        json["response"].erase("request_id");
        if (json["response"]["body"].is_object()) json["response"]["body"].erase("id");
      }
      if (json.contains("error") && json["error"].is_object()) {  // names the line
        std::string message = json["error"]["message"];
        json["error"]["message"] = message.substr(message.find(": "));
      }
      EXPECT_TRUE(answers.emplace(name, text_of(json)).second) << name << " stands twice";
    }
    return answers;
  }
  void expect_refused(int ranks, const Arguments& arguments, int code, const Arguments& reasons) const {
    const Outcome outcome = run(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    for (const std::string& reason : reasons)
      EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  }

  TemporaryFolder folder_;
};

TEST_F(TextRunTest, SameBytesForAnyRanksAndSizes) {
  const std::vector<std::string> lines = lines_of_all_forms();
  write_lines("in.jsonl", lines);
  const Arguments job{"--input", folder_ / "in.jsonl", "--generate", "9"};
  const std::string first = output_of(1, job);
  const std::map<std::string, std::string> answers = by_name(first);
  ASSERT_EQ(answers.size(), lines.size());
  for (const Arguments& sizes :
       {Arguments{}, {"--micro-batch", "1"}, {"--max-sequences", "3", "--prefill-chunk", "5"}, {"--cache-page", "1"}})
    for (const int ranks : {1, 2, 4}) {
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
  const Arguments job{"--input", folder_ / "in.jsonl", "--generate", "9", "--temperature", "1.3", "--seed", "4"};
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
}

// Lines of .txt are scored and continued as lines of {"text"} are.
TEST_F(TextRunTest, LinesOfText) {
  write_lines("in.txt", {"Hello, it's 12345", "", " 日本 python\r", R"({"prompt": "no JSON here"})"});
  write_lines("in.jsonl", {R"({"text": "Hello, it's 12345"})", R"({"text": " 日本 python"})",
                           R"({"text": "{\"prompt\": \"no JSON here\"}"})"});
  for (const Arguments& kind :
       {Arguments{"--top-logprobs", "2", "--logits", "all"}, {"--generate", "8", "--temperature", "1.2"}}) {
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
  EXPECT_EQ(tokens({"--generate", "6"}), (std::vector<size_t>{6, 5, 6}));
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
  refused({good}, {"--replicas", "2"}, 64, {"--replicas"});
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

class TextResumeTest : public TextRunTest {
 protected:
  TextResumeTest() {
    std::vector<std::string> lines;
    for (int i = 0; i < 250; ++i) {
      const std::string n = std::to_string(i), fields = R"("max_tokens": 90, "seed": )" + n;
      if (i % 10 == 3)
        lines.push_back(batch_line(n, true, R"({"messages": []})"));
      else
        lines.push_back(batch_line(n, i % 2 == 0,
                                   i % 2 == 0 ? R"({"messages": [{"role": "user", "content": "say )" + n + "\"}], " +
                                                    fields + R"(, "logprobs": true, "top_logprobs": 1})"
                                              : R"({"prompt": "Once )" + n + "\", " + fields +
                                                    (i % 6 == 1 ? R"(, "n": 2, "frequency_penalty": 0.5})" : "}")));
    }
    write_lines("in.jsonl", lines);
  }
  Arguments job() const {
    return {"--input", folder_ / "in.jsonl", "--max-sequences", "8", "--output", folder_ / "o.jsonl", "--resume"};
  }
  // Ends a run by `signal` once it has finished some samples, more than runs before.
  void stop_in_the_middle(int ranks, int signal) {
    const std::filesystem::path journal = folder_ / "o.jsonl.journal";
    const auto bytes = [&] {
      std::error_code missing;
      const uintmax_t size = std::filesystem::file_size(journal, missing);
      return missing ? 0 : size;
    };
    const uintmax_t before = bytes();
    Arguments arguments = job();
    arguments.insert(arguments.begin(), {"--weights", shards(ranks)});
    RunningProgram program(stage_command(ranks, arguments));
    for (int i = 0; i < 20000 && (bytes() <= before || !any_finished(folder_ / "o.jsonl")); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (signal == SIGKILL) {
      const pid_t rank = program.process_of(ranks - 1);
      ASSERT_GT(rank, 0);
      kill(rank, SIGKILL);
    } else {
      program.signal(signal);
    }
    const int code = program.wait().exit_code;
    EXPECT_TRUE(signal == SIGKILL ? code != 0 : code == 75) << code;
    ASSERT_FALSE(std::filesystem::exists(folder_ / "o.jsonl")) << "nothing was left to be resumed";
  }
};

TEST_F(TextResumeTest, StoppedAndKilled) {
  const std::string whole = output_of(2, {"--input", folder_ / "in.jsonl"}, "whole.jsonl");
  for (const int ranks : {1, 2, 4}) {
    std::filesystem::remove(folder_ / "o.jsonl");
    const std::time_t begun = std::time(nullptr);
    for (const int signal : {SIGUSR1, SIGKILL}) {
      if (ranks == 1 && signal == SIGKILL) continue;
      stop_in_the_middle(ranks, signal);
    }
    const std::time_t stopped = std::time(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    const Outcome outcome = run(ranks, job());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string resumed = read_bytes(folder_ / "o.jsonl");
    EXPECT_TRUE(timeless(resumed) == whole) << ranks << " ranks";
    // One time for all answers: of the first run.
    std::set<int64_t> times;
    std::istringstream stream(resumed);
    for (std::string line; std::getline(stream, line);)
      if (const Json body = Json::parse(line)["response"]["body"]; body.is_object())
        times.insert(body["created"].get<int64_t>());
    ASSERT_EQ(times.size(), 1u);
    EXPECT_TRUE(*times.begin() >= begun && *times.begin() <= stopped)
        << begun << ", " << *times.begin() << ", " << stopped;
  }
}

// The date of a template is the job's, too: with another one the prompts were others, and another job.
TEST_F(TextResumeTest, ClockOfTheTemplate) {
  write_texts(folder_ / "model", "{{ strftime_now('%H:%M:%S') }}" + std::string(kTemplate));
  split("model", shards(2), 2);
  stop_in_the_middle(2, SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  const Outcome outcome = run(2, job());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(TextResumeTest, AnotherJobIsRefused) {
  stop_in_the_middle(2, SIGUSR1);
  const std::string journal = read_bytes(folder_ / "o.jsonl.journal"), input = read_bytes(folder_ / "in.jsonl");
  const auto refused = [&](const Arguments& options, int code, const Arguments& reasons) {
    Arguments arguments = job();
    arguments.insert(arguments.end(), options.begin(), options.end());
    expect_refused(2, arguments, code, reasons);
    EXPECT_TRUE(read_bytes(folder_ / "o.jsonl.journal") == journal);
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = input;
    text.replace(text.find(from), from.size(), to);
    write_bytes(folder_ / "in.jsonl", text);
  };
  changed("say 40", "say 41");
  refused({}, 65, {"o.jsonl.journal", "other input"});
  changed(R"("seed": 40)", R"("seed": 41)");
  refused({}, 65, {"o.jsonl.journal", "other lines"});
  write_bytes(folder_ / "in.jsonl", input);
  refused({"--temperature", "0.3"}, 64, {"other options", "--temperature"});
  refused({"--seed", "9"}, 64, {"other options", "--seed"});
  refused({"--stop", "x"}, 64, {"other options", "--stop"});
  refused({"--frequency-penalty", "1"}, 64, {"other options", "penalties"});
  refused({"--min-p", "0.5"}, 64, {"other options", "--min-p"});
  refused({"--min-tokens", "2"}, 64, {"other options", "--min-tokens"});
  write_texts(folder_ / "texts", kTemplate + std::string(" "));
  refused({"--tokenizer", folder_ / "texts"}, 65, {"other"});
  write_texts(folder_ / "texts", "{# of the same texts #}" + std::string(kTemplate));
  refused({"--tokenizer", folder_ / "texts"}, 65, {"other tokenizer"});
  // A token that no text of the job has.
  write_texts(folder_ / "texts", kTemplate);
  std::string tokenizer = read_bytes(folder_ / "texts/tokenizer.json");
  tokenizer.replace(tokenizer.find("\"Mathias\""), 9, "\"Zathias\"");
  write_bytes(folder_ / "texts/tokenizer.json", tokenizer);
  refused({"--tokenizer", folder_ / "texts"}, 65, {"other tokenizer"});
  write_texts(folder_ / "texts", kTemplate);
  const Outcome same = run(2, [&] {
    Arguments arguments = job();
    arguments.insert(arguments.end(), {"--tokenizer", folder_ / "texts"});
    return arguments;
  }());
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

}  // namespace
}  // namespace lfm2::test
