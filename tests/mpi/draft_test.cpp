// Drafts in the program under mpirun: jobs and servers give the bytes that they give without, whatever is guessed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "support/serve_run.h"

namespace lfm2::test {
namespace {

// Bodies of all kinds. Most prompts repeat themselves, so that there is something to guess.
std::vector<Json> repeating_bodies(int count) {
  std::mt19937 random(5);
  std::vector<Json> bodies;
  for (int i = 0; i < count; ++i) {
    Json body{{"prompt", Json::array()}, {"max_tokens", 8 + random() % 48}, {"seed", i}, {"temperature", i % 3 * 0.4}};
    for (int id = 0; i % 4 != 3 && id < 90; ++id) body["prompt"].push_back(20 + id % (15 + i % 2));
    for (size_t left = 1 + random() % 12; left > 0; --left) body["prompt"].push_back(random() % 900);
    if (i % 2 == 0) body["logprobs"] = i % 5;
    if (i % 4 == 1) body["n"] = 2;
    if (i % 8 == 2) body["echo"] = true;
    if (i % 5 == 2) body["stop"] = {" the", "."};
    if (i % 5 == 3) body.update({{"repetition_penalty", 1.05}, {"frequency_penalty", 0.3}});
    if (i % 5 == 4) body.update({{"min_tokens", 9}, {"logit_bias", {{"5", 3}}}});
    if (i % 6 == 5 && !body.contains("echo"))
      body["structured_outputs"] = {{"json", {{"type", "array"}, {"items", {{"type", {"integer", "boolean"}}}}}}};
    bodies.push_back(std::move(body));
  }
  return bodies;
}

// The trained drafter of the model that serves.
std::string kjv_drafter() { return golden_dir() / "dspark" / "kjv-moe"; }

class DraftRunTest : public ServeTest {
 protected:
  // The file and the report's figures of a job of random samples.
  std::pair<std::string, Json> job_of(int ranks, const Arguments& more, const std::string& out) {
    Arguments arguments{"--weights",
                        golden_shards("tiny-moe", 4),
                        "--samples",
                        "12",
                        "--length",
                        "9",
                        "--max-tokens",
                        "40",
                        "--temperature",
                        "0.7",
                        "--repetition-penalty",
                        "1.1",
                        "--top-logprobs",
                        "2",
                        "--eos",
                        "3,5",
                        "--output",
                        folder_ / out,
                        "--report",
                        folder_ / "report.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return {read_bytes(folder_ / out), Json::parse(read_bytes(folder_ / "report.json"))};
  }
  static std::vector<std::pair<std::string, Json>> asked(const std::vector<Json>& all) {
    std::vector<std::pair<std::string, Json>> asked;
    for (const Json& body : all) asked.emplace_back("/v1/completions", body);
    return asked;
  }
};

TEST_F(DraftRunTest, AJobHasItsBytes) {
  const auto [plain, report] = job_of(1, {}, "plain.jsonl");
  EXPECT_FALSE(report["generation"].contains("draft_rounds"));
  const std::string file = folder_ / "plain.jsonl";
  struct Way {
    int ranks;
    Arguments options;
  };
  for (const Way& way :
       {Way{1, {"--draft", "test:right@1:" + file, "--draft-length", "4"}},
        Way{1, {"--draft", "test:random:" + file, "--draft-length", "9", "--page-size", "4"}},
        Way{2, {"--draft", "test:right@0.7:" + file, "--draft-length", "2", "--max-num-seqs", "5"}},
        Way{3, {"--draft", "test:late:" + file, "--draft-length", "15"}}, Way{4, {"--draft", "test:wrong:" + file}},
        Way{4, {"--draft", "test:right@0.9:" + file, "--replicas", "2"}},
        Way{2, {"--draft", "ngram", "--page-size", "1"}}}) {
    SCOPED_TRACE(way.options[1] + ", " + std::to_string(way.ranks) + " ranks");
    const auto [bytes, found] = job_of(way.ranks, way.options, "out.jsonl");
    EXPECT_EQ(bytes, plain);
    EXPECT_EQ(found["results_xxh3"], report["results_xxh3"]);
    const Json& counts = found["generation"];
    if (way.options[1] == "ngram") continue;
    int64_t accepted = 0;
    for (const Json& at : counts["accepted_tokens_by_place"]) accepted += at.get<int64_t>();
    EXPECT_EQ(counts["accepted_tokens"], accepted);
    EXPECT_GE(counts["draft_tokens"], counts["draft_rounds"]);
    if (way.options[1].starts_with("test:right@1:")) {
      EXPECT_EQ(counts["draft_tokens"], counts["accepted_tokens"]);
      EXPECT_LT(found["micro_batches"], report["micro_batches"].get<int64_t>() / 3);
    }
    if (way.options[1].starts_with("test:wrong")) {
      EXPECT_EQ(accepted, 0);
    }
  }
}

// Prompts of the goldens: the trained drafter is right often, with the same counts over any ranks.
TEST_F(DraftRunTest, ADrafterOfTheModelHasItsBytes) {
  const auto job_with = [&](int ranks, const Arguments& more) {
    Arguments arguments{"--weights",    golden_shards("kjv-moe", 4),
                        "--samples",    "6",
                        "--length",     "8",
                        "--max-tokens", "24",
                        "--output",     folder_ / "out.jsonl",
                        "--report",     folder_ / "report.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_stage(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return std::pair{read_bytes(folder_ / "out.jsonl"), Json::parse(read_bytes(folder_ / "report.json"))["generation"]};
  };
  const auto [plain, none] = job_with(1, {});
  Json first;
  for (const Arguments& more : {Arguments{"1"}, {"2"}, {"4"}, {"4", "--replicas", "2"}}) {
    SCOPED_TRACE(testing::Message() << fmt::format("{}", fmt::join(more, " ")));
    Arguments options{"--draft", kjv_drafter(), "--draft-length", "7"};
    options.insert(options.end(), more.begin() + 1, more.end());
    const auto [bytes, counts] = job_with(std::stoi(more.front()), options);
    EXPECT_EQ(bytes, plain);
    if (first.is_null()) first = counts["accepted_tokens_by_place"];
    EXPECT_EQ(counts["accepted_tokens_by_place"], first);
    EXPECT_GT(counts["accepted_tokens"], 0);
  }
}

TEST_F(DraftRunTest, BatchLinesHaveTheirAnswers) {
  const std::vector<Json> all = repeating_bodies(24);
  const std::vector<Json> plain = answers_of_job(asked(all));
  for (const Arguments& options : {Arguments{"--draft", "ngram"},
                                   {"--draft", "ngram", "--draft-length", "5"},
                                   {"--draft", kjv_drafter(), "--draft-length", "7"}}) {
    std::vector<Json> found = answers_of_job(asked(all), options);
    Predicted sum;
    int64_t constrained = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(found[i]["choices"], plain[i]["choices"]) << i;
      const Predicted own = take_predicted(found[i]["usage"]);
      EXPECT_EQ(found[i]["usage"], plain[i]["usage"]) << i;
      if (all[i].contains("structured_outputs")) constrained += own.accepted + own.rejected;
      sum.accepted += own.accepted;
      sum.rejected += own.rejected;
    }
    if (options.size() == 2) continue;  // a chosen number depends on clocks, and may be 0
    EXPECT_GT(sum.accepted, 0);
    EXPECT_GT(sum.rejected, 0);
    EXPECT_GT(constrained, 0);
  }
}

TEST_F(DraftRunTest, AServerHasTheAnswersOfAJob) {
  const std::vector<Json> all = repeating_bodies(36);
  const std::vector<Json> plain = answers_of_job(asked(all));
  struct Way {
    int ranks;
    const char* length;
    std::string drafter = "ngram";
  };
  for (const auto& [ranks, length, drafter] : {Way{1, "0"}, Way{1, "6"}, Way{2, "4"}, Way{3, "5", kjv_drafter()}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, length " << length << ", " << drafter);
    start(ranks, {"--draft", drafter, "--draft-length", length, "--max-num-seqs", "6"});
    std::atomic<bool> over = false;
    std::thread rude(leave_answers, port_, std::cref(over),
                     R"({"prompt": "In the In the In the", "max_tokens": 400, "ignore_eos": true, "stream": true})");
    std::vector<Json> found = ask_all("/v1/completions", all);
    over = true;
    rude.join();
    Predicted sum;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(found[i]["choices"], plain[i]["choices"]) << i;
      const Predicted own = take_predicted(found[i]["usage"]);
      take_cached_tokens(found[i]["usage"]);
      EXPECT_EQ(found[i]["usage"], plain[i]["usage"]) << i;
      sum.accepted += own.accepted;
      sum.rejected += own.rejected;
    }
    if (*length != '0') {  // a chosen number depends on clocks
      EXPECT_GT(sum.accepted, 0);
    }
    EXPECT_TRUE(becomes_idle());
    const int64_t drafted = metric("lfm2_spec_decode_num_draft_tokens_total");
    EXPECT_GE(metric("lfm2_spec_decode_num_accepted_tokens_total"), sum.accepted);
    EXPECT_GE(drafted, sum.accepted + sum.rejected);
    EXPECT_GE(drafted, metric("lfm2_spec_decode_num_drafts_total"));
    // A request may go without.
    Json body = all[0];
    body["draft"] = false;
    Json usage = ask_all("/v1/completions", {body})[0]["usage"];
    const Predicted none = take_predicted(usage);
    EXPECT_EQ(none.accepted + none.rejected, 0);
    EXPECT_EQ(metric("lfm2_spec_decode_num_draft_tokens_total"), drafted);
    body["draft"] = true;
    EXPECT_EQ(ask("POST", "/v1/completions", json_text(body)).status, 200);
    end();
  }
}

// A conversation that repeats itself is the same with drafts.
TEST_F(DraftRunTest, AChatHasItsAnswers) {
  const auto answers_of = [&](int ranks, const std::string& options) {
    std::string command = R"(printf '%s\n' 'In the beginning' 'In the beginning God created' 'In the beginning' | )";
    for (const std::string& word : mpi_command(ranks, LFM2_STAGE_PROGRAM)) command += word + " ";
    command += "chat --weights " + shards(ranks) + " --dtype fp32 --threads 1 --max-tokens 60 --temperature 0 ";
    for (const std::string& word : machine_options()) command += word + " ";
    const Outcome outcome = run_program({"sh", "-c", command + options});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string plain = answers_of(1, "");
  EXPECT_EQ(std::ranges::count(plain, '>'), 4) << plain;
  EXPECT_GT(plain.size(), 150u) << plain;
  EXPECT_EQ(answers_of(1, "--draft ngram"), plain);
  EXPECT_EQ(answers_of(2, "--draft ngram --draft-length 6"), plain);
  EXPECT_EQ(answers_of(2, "--draft " + kjv_drafter()), plain);
}

TEST_F(DraftRunTest, Refusals) {
  const auto refused = [&](const Arguments& options, int exit_code, const std::string& reason) {
    Arguments arguments{"--weights", golden_shards("tiny-moe", 4), "--samples", "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_stage(1, arguments);
    EXPECT_EQ(outcome.exit_code, exit_code);
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  };
  refused({"--draft", "ngram"}, 64, "--draft requires --max-tokens");
  refused({"--max-tokens", "3", "--draft", "eagle"}, 64, "--draft: \"eagle\", expected none, ngram or");
  refused({"--max-tokens", "3", "--draft", kjv_drafter()}, 65, "\"vocab_size\" is 1024, but the model has 256");
  refused({"--max-tokens", "3", "--draft", golden_dir() / "text"}, 66, "config.json");
  refused({"--max-tokens", "3", "--draft", golden_dir() / "kjv-moe"}, 65, "expected [\"Lfm2DSparkDraftModel\"]");
  const Outcome longer = run_stage(1, {"--weights", golden_shards("kjv-moe", 1), "--samples", "1", "--max-tokens", "3",
                                       "--draft", kjv_drafter(), "--draft-length", "8"});
  EXPECT_EQ(longer.exit_code, 64);
  EXPECT_NE(longer.err.find("expected at most 7"), std::string::npos) << longer.err;
  refused({"--max-tokens", "3", "--draft-length", "4"}, 64, "--draft-length without --draft");
  refused({"--max-tokens", "3", "--draft", "ngram", "--draft-length", "16"}, 64, "--draft-length");
  start(1);
  const HttpReply reply = ask("POST", "/v1/completions", R"({"prompt": [1], "max_tokens": 2, "draft": true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("draft"), std::string::npos) << reply.body;
  end();
}

}  // namespace
}  // namespace lfm2::test
