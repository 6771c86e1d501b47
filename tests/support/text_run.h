// A small model of random weights with text files beside it, split for 1, 2 and 4 ranks, and runs of the program with
// text in and text out. Used by the tests of text.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {

inline constexpr const char* kTextModelConfig =
    R"({"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
        "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "eos_token_id": 4, "initializer_range": 0.2, "tie_word_embeddings": true})";
inline constexpr const char* kTemplate =
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

using Arguments = std::vector<std::string>;

inline std::string batch_line(const std::string& id, bool chat, const std::string& body) {
  return R"({"custom_id": ")" + id + R"(", "method": "POST", "url": "/v1/)" + (chat ? "chat/" : "") +
         R"(completions", "body": )" + body + "}";
}

class TextRun : public testing::Test {
 protected:
  TextRun() {
    write_bytes(folder_ / "config.json", kTextModelConfig);
    run_weights_tools({"synth", "--config", folder_ / "config.json", "--dtype", "fp32", "--out", folder_ / "model"});
    write_texts(folder_ / "model", kTemplate);
    for (const int stages : {1, 2, 4}) split("model", shards(stages), stages);
  }
  void split(const std::string& model, const std::string& out, int stages) {
    run_weights_tools({"split", folder_ / model, "--stages", std::to_string(stages), "--out", out, "--force"});
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
      EXPECT_TRUE(answers.emplace(name, json.dump()).second) << name << " stands twice";
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

}  // namespace lfm2::test
