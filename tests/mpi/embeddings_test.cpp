// Batch lines of /v1/embeddings under mpirun: answers are the states that --hidden gives, scaled to length 1, the same
// for every number of ranks and micro-batch, whether a run was stopped or not.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <sstream>
#include <thread>

#include "base/json/json.h"
#include "stage/io/journal.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

using Arguments = std::vector<std::string>;

constexpr const char* kConfig =
    R"({"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
        "max_position_embeddings": 64, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "eos_token_id": 4, "initializer_range": 0.2, "tie_word_embeddings": true})";

// The fp32 values behind base64.
std::vector<float> decoded(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t word = 0;
  int bits = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    word = word << 6 | static_cast<uint32_t>(digits.find(digit));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(word >> bits & 0xff);
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<float> unit(std::vector<float> state) {
  double squares = 0;
  for (const float value : state) squares += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : state) value = static_cast<float>(static_cast<double>(value) / std::sqrt(squares));
  return state;
}

class EmbeddingsTest : public testing::Test {
 protected:
  EmbeddingsTest() {
    write_bytes(folder_ / "config.json", kConfig);
    run_weights_tools({"synth", "--config", folder_ / "config.json", "--dtype", "fp32", "--out", folder_ / "model"});
    write_bytes(folder_ / "model/tokenizer.json", read_bytes(golden_dir() / "text/tokenizer.json"));
    write_bytes(folder_ / "model/tokenizer_config.json", R"({"bos_token": "<|startoftext|>"})");
    run_weights_tools({"split", folder_ / "model", "--stages", "2", "--out", folder_ / "shards"});
  }
  static std::string batch_line(const std::string& id, const Json& body, const std::string& url = "/v1/embeddings") {
    return json_text(Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}) + "\n";
  }
  Arguments job(const std::string& name, const Arguments& more = {}) const {
    Arguments arguments{"--weights", folder_ / "shards", "--input", folder_ / "in.jsonl", "--output", folder_ / name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string output_of(int ranks, const Arguments& more = {}) {
    std::filesystem::remove(folder_ / "o.jsonl");
    const Outcome outcome = run_stage(ranks, job("o.jsonl", more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    out_ = outcome.out;
    return outcome.exit_code == 0 ? read_bytes(folder_ / "o.jsonl") : "";
  }
  // The states that --hidden gives for lines of ids or text.
  std::vector<std::vector<float>> states_of(const std::vector<Json>& lines, const std::string& kind) {
    std::string text;
    for (const Json& line : lines) text += json_text(line) + "\n";
    write_bytes(folder_ / "in.jsonl", text);
    std::vector<std::vector<float>> states;
    for (const Json& line : json_lines(output_of(1, {"--hidden", kind}))) states.push_back(line.at("hidden"));
    return states;
  }
  void expect_refused(int code, const std::string& reason, const Arguments& arguments, int ranks = 2) const {
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    ASSERT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_NE(outcome.error_lines()[0].find(reason), std::string::npos) << outcome.error_lines()[0];
  }

  TemporaryFolder folder_;
  std::string out_;  // what the last job printed
};

TEST_F(EmbeddingsTest, AnswersAreUnitStatesOfTheInputs) {
  const std::vector<Json> inputs{
      {{"text", "The capital of France"}}, {{"text", "日本 and python"}}, {{"text", "a"}},
      {{"input_ids", {1, 700, 3}}},        {{"input_ids", {9}}},          {{"input_ids", {4, 5}}}};
  const std::string lines =
      batch_line("one", {{"input", inputs[0]["text"]}, {"model", "any"}, {"user", "u"}, {"dimensions", 32}}) +
      batch_line("texts", {{"input", {inputs[1]["text"], inputs[2]["text"], inputs[0]["text"]}},
                           {"encoding_format", "base64"}}) +
      batch_line("too short", {{"input", {5}}, {"dimensions", 16}}) +
      batch_line("ids", {{"input", inputs[3]["input_ids"]}, {"encoding_format", "float"}}) +
      batch_line("chat", {{"messages", Json::array()}}, "/v1/chat/completions") +
      batch_line("lists", {{"input", {inputs[4]["input_ids"], inputs[5]["input_ids"], inputs[3]["input_ids"]}}}) +
      "no JSON\n{\"input_ids\": [1]}\n";
  const std::vector<std::vector<size_t>> whose{{0}, {1, 2, 0}, {}, {3}, {}, {4, 5, 3}, {}, {}};
  for (const std::string kind : {"mean", "last"}) {
    SCOPED_TRACE(kind);
    const std::vector<std::vector<float>> states = states_of(inputs, kind);
    ASSERT_EQ(states.size(), inputs.size());
    write_bytes(folder_ / "in.jsonl", lines);
    Arguments more;
    if (kind == "last") more = {"--hidden", "last"};
    const std::string answers = output_of(1, more);
    EXPECT_NE(out_.find("\nerrors     4 lines"), std::string::npos) << out_;
    const std::vector<Json> found = json_lines(answers);
    ASSERT_EQ(found.size(), whose.size());
    for (size_t line = 0; line < found.size(); ++line) {
      SCOPED_TRACE(json_text(found[line]));
      const Json& response = found[line].at("response");
      if (whose[line].empty()) {
        EXPECT_EQ(response.at("status_code"), 400);
        EXPECT_TRUE(response.at("body").is_null());
        EXPECT_EQ(found[line].at("error").at("type"), "invalid_request_error");
        continue;
      }
      EXPECT_TRUE(found[line].at("error").is_null());
      const Json& data = response.at("body").at("data");
      ASSERT_EQ(data.size(), whose[line].size());
      for (size_t i = 0; i < data.size(); ++i) {
        EXPECT_EQ(data[i].at("index"), i);
        const Json& embedding = data[i].at("embedding");
        const auto values = embedding.is_string() ? decoded(embedding) : embedding.get<std::vector<float>>();
        EXPECT_EQ(values, unit(states[whose[line][i]]));
      }
    }
    EXPECT_TRUE(found[1].at("response").at("body").at("data")[0].at("embedding").is_string());
    EXPECT_EQ(found[5].at("custom_id"), "lists");
    EXPECT_EQ(found[5].at("response").at("body").at("usage"), (Json{{"prompt_tokens", 6}, {"total_tokens", 6}}));
    EXPECT_NE(found[2].at("error").at("message").get<std::string>().find("hidden_size = 32"), std::string::npos);
    EXPECT_NE(found[4].at("error").at("message").get<std::string>().find("expected /v1/embeddings"), std::string::npos);
    for (const int ranks : {2, 3, 4})
      for (const char* micro_batch : {"1", "3"}) {
        Arguments others = more;
        others.insert(others.end(), {"--micro-batch", micro_batch});
        EXPECT_EQ(output_of(ranks, others), answers) << ranks << " ranks, micro-batch " << micro_batch;
      }
  }
}

TEST_F(EmbeddingsTest, AStoppedRunEndsWithTheSameFile) {
  std::string lines;
  for (int line = 0; line < 3000; ++line) {
    Json input = Json::array();
    for (int i = 0; i <= line % 4; ++i) input.push_back("text " + std::to_string(line + i));
    Json body{{"input", input}, {"encoding_format", line % 3 == 0 ? "base64" : "float"}};
    if (line % 50 == 7) body["stream"] = true;
    lines += batch_line(std::to_string(line), body);
  }
  write_bytes(folder_ / "in.jsonl", lines);
  const std::string whole = output_of(2, {"--micro-batch", "3"});
  const Arguments arguments = job("stopped.jsonl", {"--micro-batch", "3"});
  {
    RunningProgram program(stage_command(2, arguments));
    for (int i = 0; i < 20000 && !any_finished(folder_ / "stopped.jsonl"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.signal(SIGUSR1);
    ASSERT_EQ(program.wait().exit_code, 75);
  }
  Arguments again = arguments;
  again.push_back("--resume");
  Arguments other = again;
  other.insert(other.end(), {"--hidden", "last"});
  EXPECT_EQ(run_stage(2, other).exit_code, 64);  // that is no resumption
  const Outcome outcome = run_stage(3, again);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nresumed "), std::string::npos) << outcome.out;
  EXPECT_TRUE(read_bytes(folder_ / "stopped.jsonl") == whole);
}

TEST_F(EmbeddingsTest, Refusals) {
  write_bytes(folder_ / "in.jsonl", batch_line("a", {{"input", "hi"}}) + batch_line("b", {{"input", 1}}));
  expect_refused(65, "\"input\" is 1", job("o.jsonl", {"--strict"}));
  expect_refused(64, "expected a name ending in .jsonl", job("o.h5"));
  expect_refused(64, "expected last or mean", job("o.jsonl", {"--hidden", "all"}));
  expect_refused(64, "answers are embeddings", job("o.jsonl", {"--logits", "all"}));
  expect_refused(65, "expected \"input_ids\" or \"text\" with --score", job("o.jsonl", {"--score"}));
  // Where the first line is continued, one of /v1/embeddings is answered with an error.
  write_bytes(folder_ / "in.jsonl", batch_line("a", {{"prompt", "hi"}, {"max_tokens", 2}}, "/v1/completions") +
                                        batch_line("b", {{"input", "hi"}}));
  const std::vector<Json> found = json_lines(output_of(2));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].at("error").is_null());
  EXPECT_EQ(found[1].at("response").at("status_code"), 400);
}

}  // namespace
}  // namespace lfm2::test
