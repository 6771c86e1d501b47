// Jobs with text that are stopped or killed and go on: with the bytes of one that was not, or refused where they are
// another job.
#include <signal.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>

#include "stage/io/journal.h"
#include "support/text_run.h"

namespace lfm2::test {
namespace {

class TextResumeTest : public TextRun {
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
    Arguments arguments = inputs_;
    arguments.insert(arguments.end(), {"--max-num-seqs", "8", "--output", folder_ / "o.jsonl", "--resume"});
    return arguments;
  }
  void refused(const Arguments& options, int code, const Arguments& reasons) const {
    const std::string journal = read_bytes(folder_ / "o.jsonl.journal");
    Arguments arguments = job();
    arguments.insert(arguments.end(), options.begin(), options.end());
    expect_refused(2, arguments, code, reasons);
    EXPECT_TRUE(read_bytes(folder_ / "o.jsonl.journal") == journal);
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

  Arguments inputs_{"--input", folder_ / "in.jsonl"};
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
  const std::string input = read_bytes(folder_ / "in.jsonl");
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

// Several files give the output of their lines in one file, but for the names of files and lines in errors.
TEST_F(TextResumeTest, SeveralFiles) {
  const auto placeless = [](const std::string& output) {
    return std::regex_replace(output, std::regex(R"((part-\d\.jsonl: )?line \d+:)"), "line:");
  };
  const std::string input = read_bytes(folder_ / "in.jsonl"), single = output_of(1, inputs_);
  const size_t cut = input.find('\n', input.size() / 3);
  write_bytes(folder_ / "part-1.jsonl", input.substr(0, cut));  // its last line has no end
  write_bytes(folder_ / "part-2.jsonl", input.substr(cut + 1));
  inputs_ = {"--input", folder_ / "part-*.jsonl"};
  const std::string whole = output_of(2, {"--input", folder_ / "part-1.jsonl", "--input", folder_ / "part-2.jsonl"});
  EXPECT_NE(whole.find("part-2.jsonl: line"), std::string::npos);
  EXPECT_TRUE(placeless(whole) == placeless(single));
  stop_in_the_middle(2, SIGUSR1);
  inputs_ = {"--input", folder_ / "part-2.jsonl", folder_ / "part-1.jsonl"};
  refused({}, 65, {"o.jsonl.journal", "other files", "2 files, part-1.jsonl to part-2.jsonl", "2 files, part-2.jsonl"});
  inputs_ = {"--input", folder_ / "in.jsonl"};
  refused({}, 65, {"o.jsonl.journal", "other files"});
  inputs_ = {"--input", folder_ / "none-*.jsonl"};
  refused({}, 66, {"--input", "none-*.jsonl: no file has such a name"});
  inputs_ = {"--input", folder_ / "part-*.jsonl"};
  write_bytes(folder_ / "part-2.jsonl", "\n" + input.substr(cut + 1));
  refused({}, 65, {"o.jsonl.journal", "other lines"});
  write_bytes(folder_ / "part-2.jsonl", input.substr(cut + 1));
  const Outcome outcome = run(2, job());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(timeless(read_bytes(folder_ / "o.jsonl")) == whole);
}

}  // namespace
}  // namespace lfm2::test
