// A model in which one weight of one expert is NaN: samples whose tokens meet that expert have results that are no
// numbers. They are counted and told of, and none of them passes for a token.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "support/serve_run.h"

namespace lfm2::test {
namespace {

// Shards of a copy of a golden model whose first weight in this tensor is NaN, of 8, 16 or 32 bits.
void split_with_nan(const std::string& golden_case, const std::string& tensor, const std::filesystem::path& folder) {
  std::filesystem::copy(golden_dir() / golden_case, folder / "model");
  const std::filesystem::path weights = folder / "model" / "model.safetensors";
  std::string bytes = read_bytes(weights);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const Json header = parse_json(std::string_view(bytes).substr(8, header_bytes), "header");
  const Json& entry = header.at(tensor);
  const size_t size = entry.at("dtype") == "F32" ? 4 : entry.at("dtype") == "F8_E4M3" ? 1 : 2;
  const std::string_view nan("\0\0\xc0\x7f", 4);
  bytes.replace(8 + header_bytes + entry.at("data_offsets").at(0).get<size_t>(), size, nan.substr(4 - size));
  write_bytes(weights, bytes);
  run_weights_tools({"split", folder / "model", "--stages", "2", "--out", folder / "nan"});
}

const std::string kTinyExpert = "model.layers.5.feed_forward.experts.3.w1.weight",
                  kTrainedExpert = "model.layers.5.feed_forward.experts.3.w1.weight";

class NotFiniteTest : public testing::Test {
 protected:
  void SetUp() override { split_with_nan("tiny-moe", kTinyExpert, folder_.path()); }

  // Twelve samples through the model with NaN, or without. One line on stderr where there are such results, also with
  // -q, and the same in the report and, without -q, in the end table.
  std::vector<Json> run(Arguments arguments, bool spoiled = true, int ranks = 1,
                        const std::string& output = "out.jsonl") {
    std::filesystem::remove(folder_ / output);
    const std::filesystem::path weights = spoiled ? folder_ / "nan" : golden_shards(case_, most_stages(case_));
    arguments.insert(arguments.begin(), {"--weights", weights, "--samples", "12", "--length", "3", "--dtype", dtype_,
                                         "--output", folder_ / output, "--report", folder_ / "report.json"});
    outcome_ = run_stage(ranks, arguments);
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    if (outcome_.exit_code != 0) return {};
    report_ = parse_json(read_bytes(folder_ / "report.json"), "report")["not_finite"];
    return output == "out.jsonl" ? json_lines(read_bytes(folder_ / output)) : std::vector<Json>();
  }
  void expect_told(int64_t count, int64_t first_sample) const {
    const std::string text = std::to_string(count) + (count == 1 ? " result is" : " results are") +
                             " not finite (NaN or infinity), the first of sample " + std::to_string(first_sample);
    EXPECT_EQ(report_["count"], count);
    EXPECT_EQ(report_["first_sample"], first_sample);
    ASSERT_EQ(outcome_.error_lines().size(), 1u) << outcome_.err;
    EXPECT_NE(outcome_.err.find("lfm2_stage: " + text + ": "), std::string::npos) << outcome_.err;
    EXPECT_TRUE(outcome_.out.empty() || outcome_.out.find("\nnot finite " + text + "\n") != std::string::npos);
  }
  void expect_untold() const {
    EXPECT_EQ(report_["count"], 0);
    EXPECT_TRUE(report_["first_sample"].is_null());
    EXPECT_TRUE(outcome_.error_lines().empty()) << outcome_.err;
    EXPECT_EQ(outcome_.out.find("not finite"), std::string::npos);
  }

  TemporaryFolder folder_;
  std::string case_ = "tiny-moe", dtype_ = "fp32";
  Outcome outcome_;
  Json report_;
};

// Up to the token that meets the expert, a sample has the tokens of the model without NaN.
TEST_F(NotFiniteTest, AContinuationEndsWhereNoTokenCanBeDrawn) {
  for (const Arguments& rule : std::vector<Arguments>{{"--temperature", "0"}, {"--temperature", "1", "--seed", "4"}}) {
    Arguments job{"--max-tokens", "5", "--ignore-eos", "--top-logprobs", "2"};
    job.insert(job.end(), rule.begin(), rule.end());
    const std::vector<Json> good = run(job, false);
    expect_untold();
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(ranks);
      if (ranks == 2) job.emplace_back("-q");
      const std::vector<Json> found = run(job, true, ranks);
      ASSERT_EQ(found.size(), good.size());
      int64_t errors = 0, first = -1, some_tokens = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        const std::vector<int32_t> tokens = found[i]["token_ids"], all = good[i]["token_ids"];
        ASSERT_LE(tokens.size(), all.size());
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), all.begin())) << i;
        EXPECT_EQ(found[i]["logprobs"].size(), tokens.size());
        if (tokens.size() == all.size()) {
          EXPECT_EQ(found[i], good[i]);
          continue;
        }
        EXPECT_EQ(found[i]["finish_reason"], "error");
        EXPECT_EQ(found[i]["error"], "token " + std::to_string(tokens.size() + 1) +
                                         " of the answer: its logits are not finite (NaN or infinity)");
        some_tokens += tokens.empty() ? 0 : 1;
        if (++errors == 1) first = static_cast<int64_t>(i);
      }
      EXPECT_GT(errors, 0);
      EXPECT_GT(some_tokens, 0);
      EXPECT_LT(errors, std::ssize(found));
      expect_told(errors, first);
    }
  }
}

TEST_F(NotFiniteTest, AContinuationInHdf5HasAReasonOfItsOwn) {
  const std::vector<Json> lines = run({"--max-tokens", "5"});
  const Outcome outcome = run_stage(1, {"--weights", folder_ / "nan", "--samples", "12", "--length", "3", "--dtype",
                                        "fp32", "--max-tokens", "5", "--output", folder_ / "out.h5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Array reasons = read_array(folder_ / "out.h5", "finish_reasons");
  ASSERT_EQ(reasons.values.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(reasons.values[i] == 2, lines[i]["finish_reason"] == "error") << i;
}

// Each kind of result, with the number of rows in a line and what of a row is null where it is not finite.
TEST_F(NotFiniteTest, RowsOfEveryKindAreCounted) {
  const auto is_null = [](const Json& value) { return value.is_null(); };
  const auto any = [&](const Json& row) { return std::any_of(row.begin(), row.end(), is_null); };
  const auto one = [&](const char* field) {
    return [&, field](const Json& line) -> int64_t { return any(line[field]) ? 1 : 0; };
  };
  const auto each = [&](const char* field) {
    return [&, field](const Json& line) -> int64_t {
      const Json& rows = line[field];
      return std::count_if(rows.begin(), rows.end(), [&](const Json& row) { return is_null(row) || any(row); });
    };
  };
  const std::vector<std::pair<Arguments, std::function<int64_t(const Json&)>>> kinds{
      {{}, one("logits")},
      {{"--logits", "all"}, each("logits")},
      {{"--top-logprobs", "2"}, one("top_logprobs")},
      {{"--top-logprobs", "2", "--logits", "all"}, each("top_logprobs")},
      {{"--score"}, each("logprobs")},
      {{"--hidden", "last"}, one("hidden")},
      {{"--hidden", "mean"}, one("hidden")},
      {{"--hidden", "all"}, each("hidden")},
      {{"--hidden", "all", "--after-layer", "7"}, each("hidden")}};
  for (const auto& [arguments, rows_of] : kinds) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(arguments, " ")));
    run(arguments, false);
    expect_untold();
    for (const int ranks : {1, 2}) {
      Arguments job = arguments;
      if (ranks == 2) job.emplace_back("-q");
      const std::vector<Json> lines = run(job, true, ranks);
      int64_t rows = 0, first = -1;
      for (size_t line = 0; line < lines.size(); ++line) {
        const int64_t own = rows_of(lines[line]);
        if (own > 0 && first < 0) first = static_cast<int64_t>(line);
        rows += own;
      }
      EXPECT_GT(rows, 0);
      EXPECT_LT(first, std::ssize(lines));
      expect_told(rows, first);
    }
  }
}

// The ranks of each replica count their own.
TEST_F(NotFiniteTest, ReplicasTellOfAllTheirResults) {
  for (const Arguments& kind :
       std::vector<Arguments>{{"--max-tokens", "5"}, {"--logits", "all"}, {"--hidden", "last"}, {"--score"}}) {
    run(kind, true, 1, "out.h5");
    const Json alone = report_;
    EXPECT_GT(alone["count"], 1);
    Arguments job = kind;
    job.insert(job.end(), {"--replicas", "3"});
    run(job, true, 3, "out.h5");
    EXPECT_EQ(report_, alone);
    expect_told(alone["count"], alone["first_sample"]);
  }
}

// A row's scale is NaN where an activation is, and so is all of the row; other rows have their scales and bits.
TEST_F(NotFiniteTest, Fp8SpoilsOnlyTheRowsThatMeetIt) {
  case_ = "tiny-fp8-channel";
  std::filesystem::remove_all(folder_ / "model");
  std::filesystem::remove_all(folder_ / "nan");
  split_with_nan(case_, "model.layers.2.feed_forward.experts.1.gate_proj.weight", folder_.path());
  for (const char* dtype : {"fp8", "bf16"}) {
    dtype_ = dtype;
    const std::vector<Json> good = run({"--logits", "all"}, false);
    expect_untold();
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(testing::Message() << dtype << ", " << ranks << " ranks");
      const std::vector<Json> found = run({"--logits", "all"}, true, ranks);
      ASSERT_EQ(found.size(), good.size());
      int64_t spoiled = 0, first = -1, rows = 0;
      for (size_t line = 0; line < found.size(); ++line)
        for (size_t row = 0; row < good[line]["logits"].size(); ++row, ++rows) {
          const Json& logits = found[line]["logits"][row];
          if (logits == good[line]["logits"][row]) continue;
          EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](const Json& x) { return x.is_null(); })) << logits;
          if (++spoiled == 1) first = static_cast<int64_t>(line);
        }
      EXPECT_GT(spoiled, 0);
      EXPECT_LT(spoiled, rows);
      expect_told(spoiled, first);
    }
  }
}

class NotFiniteServeTest : public ServeTest {
 protected:
  void SetUp() override {
    split_with_nan("kjv-moe", kTrainedExpert, folder_.path());
    weights_ = folder_ / "nan";
    for (int32_t token = 10; token < 40; ++token) prompts_.push_back(token);
  }
  static Json completion(int32_t token, bool stream = false) {
    return {{"prompt", Json::array({token})}, {"max_tokens", 4}, {"temperature", 0}, {"stream", stream}};
  }
  static Json line(const std::string& path, Json body) {
    return {{"custom_id", "a"}, {"method", "POST"}, {"url", path}, {"body", std::move(body)}};
  }
  // A line of a batch has an answer or an error.
  static bool expect_failed_or_answered(const Json& found) {
    const bool failed = !found["error"].is_null();
    EXPECT_EQ(found["response"]["status_code"], failed ? 500 : 200);
    EXPECT_EQ(found["response"]["body"].is_null(), failed);
    if (failed) {
      EXPECT_EQ(found["error"]["type"], "server_error");
      EXPECT_NE(found["error"]["message"].get<std::string>().find("not finite (NaN or infinity)"), std::string::npos);
    }
    return failed;
  }
  static void expect_error(const std::string& text) {
    const Json error = parse_json(text, "error")["error"];
    EXPECT_EQ(error["message"], "the model's results are not finite (NaN or infinity)") << text;
    EXPECT_EQ(error["code"], 500);
  }

  std::vector<int32_t> prompts_;
};

// A batch answers with errors what a server does.
TEST_F(NotFiniteServeTest, RequestsFailAndOthersAreAnswered) {
  std::string input;
  for (const int32_t token : prompts_) input += json_text(line("/v1/completions", completion(token))) + "\n";
  const std::vector<Json> batch = output_of(input, {});
  ASSERT_EQ(batch.size(), prompts_.size());
  start(2);
  int64_t failed = 0;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    SCOPED_TRACE(prompts_[i]);
    const bool fails = expect_failed_or_answered(batch[i]);
    failed += fails ? 1 : 0;
    const HttpReply whole = ask("POST", "/v1/completions", json_text(completion(prompts_[i])));
    const HttpReply stream = ask("POST", "/v1/completions", json_text(completion(prompts_[i], true)));
    EXPECT_EQ(whole.status, fails ? 500 : 200) << whole.body;
    if (fails) {
      expect_error(whole.body);
      if (stream.status == 200) {  // some tokens came before
        const size_t last = stream.body.rfind("data: ");
        ASSERT_NE(last, std::string::npos);
        expect_error(stream.body.substr(last + 6));
        EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
      } else {
        EXPECT_EQ(stream.status, 500);
        expect_error(stream.body);
      }
    } else {
      EXPECT_EQ(parse_json(whole.body, "answer")["choices"], batch[i]["response"]["body"]["choices"]);
      EXPECT_NE(stream.body.find("data: [DONE]"), std::string::npos) << stream.body;
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, std::ssize(prompts_));
  EXPECT_EQ(metric("lfm2_requests_total{result=\"failed\"}"), 2 * failed);
  const Outcome outcome = end();
  EXPECT_NE(outcome.err.find(std::to_string(2 * failed) + " results are not finite"), std::string::npos) << outcome.err;
}

// What is asked of a prompt alone: embeddings, and log-probabilities of its tokens.
TEST_F(NotFiniteServeTest, PromptsFailToo) {
  std::string input;
  std::vector<std::pair<std::string, Json>> asked;
  for (const int32_t token : prompts_)
    asked.emplace_back("/v1/embeddings", Json{{"input", Json::array({token})}, {"model", "m"}});
  for (const auto& [path, body] : asked) input += json_text(line(path, body)) + "\n";
  const std::vector<Json> batch = output_of(input, {});
  ASSERT_EQ(batch.size(), prompts_.size());
  start(1);
  std::set<bool> outcomes;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    SCOPED_TRACE(prompts_[i]);
    const bool fails = expect_failed_or_answered(batch[i]);
    outcomes.insert(fails);
    const HttpReply embedding = ask("POST", asked[i].first, json_text(asked[i].second));
    EXPECT_EQ(embedding.status, fails ? 500 : 200);
    if (fails) expect_error(embedding.body);
    const Json echo{{"prompt", Json::array({prompts_[i], 5})}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}};
    const HttpReply scored = ask("POST", "/v1/completions", json_text(echo));
    EXPECT_EQ(scored.status, fails ? 500 : 200);
    if (fails) expect_error(scored.body);
  }
  EXPECT_EQ(outcomes.size(), 2u);
  end();
}

}  // namespace
}  // namespace lfm2::test
