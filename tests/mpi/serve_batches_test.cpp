// Batches of the server under mpirun: their answers have the bytes of a job that has the same lines in a file, beside
// clients that come and go, and across servers that are killed.
#include <regex>

#include "support/serve_bits.h"

namespace lfm2::test {
namespace {

class ServeBatchesTest : public ServeBitsTest {
 protected:
  static std::string line(size_t number, const std::string& endpoint, const Json& body) {
    return json_text(
               Json{{"custom_id", std::to_string(number)}, {"method", "POST"}, {"url", endpoint}, {"body", body}}) +
           "\n";
  }
  std::string begin(const std::string& endpoint, const std::string& lines) const {
    const std::string body =
        "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B\r\n"
        "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" +
        lines + "\r\n--B--\r\n";
    const HttpReply file = ask("POST", "/v1/files", body, "Content-Type: multipart/form-data; boundary=B\r\n");
    EXPECT_EQ(file.status, 200) << file.body;
    const HttpReply batch = ask("POST", "/v1/batches",
                                json_text(Json{{"input_file_id", parse_json(file.body, "file")["id"]},
                                               {"endpoint", endpoint},
                                               {"completion_window", "24h"}}));
    EXPECT_EQ(batch.status, 200) << batch.body;
    return parse_json(batch.body, "batch")["id"];
  }
  Json state(const std::string& batch) const { return get("/v1/batches/" + batch); }
  void wait_until(const std::string& batch, const std::function<bool(const Json&)>& holds) const {
    for (int i = 0; i < 6000 && !holds(state(batch)); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(holds(state(batch))) << state(batch);
  }
  // The lines of a text in the order of their bytes, without the time of the job.
  static std::vector<std::string> sorted(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(std::regex_replace(text, std::regex(R"("created":\d+)"), R"("created":0)"));
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::ranges::sort(lines);
    return lines;
  }
  // The answers of a batch that has ended: good ones, then errors.
  std::string answers(const std::string& batch) const {
    std::string text;
    const Json ended = state(batch);
    for (const char* name : {"output_file_id", "error_file_id"})
      if (ended[name].is_string()) text += ask("GET", "/v1/files/" + ended[name].get<std::string>() + "/content").body;
    return text;
  }
  std::vector<std::string> of_job(const std::string& lines) const {
    output_of(lines, {});
    return sorted(read_bytes(folder_ / "out.jsonl"));
  }
  Arguments options() const { return {"--batch-dir", folder_ / "batches"}; }
};

TEST_F(ServeBatchesTest, BytesOfAJob) {
  std::map<std::string, std::string> lines;  // by endpoint
  const std::vector<Json> all = bodies(60);
  for (size_t i = 0; i < all.size(); ++i) lines["/v1/completions"] += line(i, "/v1/completions", all[i]);
  lines["/v1/completions"] += "\nnot JSON\n" + line(60, "/v1/completions", {{"prompt", "a"}, {"n", 0}}) +
                              line(61, "/v1/completions", {{"prompt", "In the beginning"}, {"max_tokens", 20}});
  for (size_t i = 0; i < 6; ++i)
    lines["/v1/chat/completions"] += line(i, "/v1/chat/completions",
                                          {{"messages", {{{"role", "user"}, {"content", "Say " + std::to_string(i)}}}},
                                           {"max_tokens", 9 + i},
                                           {"n", 1 + i % 2},
                                           {"temperature", i % 2},
                                           {"logprobs", i % 3 == 0}});
  for (size_t i = 0; i < 4; ++i)
    lines["/v1/embeddings"] += line(i, "/v1/embeddings",
                                    {{"input", i % 2 == 0 ? Json("And God said") : Json({"Let", "there be"})},
                                     {"encoding_format", i < 2 ? "float" : "base64"}});
  lines["/v1/embeddings"] += line(4, "/v1/embeddings", {{"input", 5}});
  std::map<std::string, std::string> batches;
  start(2, options());
  for (const auto& [endpoint, text] : lines) batches[endpoint] = begin(endpoint, text);
  for (const auto& [endpoint, batch] : batches)
    wait_until(batch, [](const Json& one) { return one["status"] == "completed"; });
  for (const auto& [endpoint, batch] : batches) {
    EXPECT_EQ(sorted(answers(batch)), of_job(lines[endpoint])) << endpoint;
    EXPECT_GE(state(batch)["request_counts"]["completed"], 4) << endpoint;
  }
  end();
}

TEST_F(ServeBatchesTest, AcrossKilledServersBesideClients) {
  const std::vector<Json> all = bodies(90);
  std::string lines;
  for (size_t i = 0; i < all.size(); ++i) lines += line(i, "/v1/completions", all[i]);
  const std::vector<std::string> expected = of_job(lines);
  weights_ = golden_shards(model_, 4);
  std::string batch;
  int64_t completed = 0;
  for (const bool replicas : {false, true, false}) {
    SCOPED_TRACE(replicas);
    Arguments more = options();
    more.insert(more.end(), {"--max-num-seqs", "4"});
    if (replicas) more.insert(more.end(), {"--replicas", "2"});
    start(2, more);
    if (batch.empty()) batch = begin("/v1/completions", lines);
    EXPECT_GE(state(batch)["request_counts"]["completed"], completed) << "what was done stays done";
    const std::vector<Json> own(all.begin(), all.begin() + 6);
    for (const Json& answer : ask_all("/v1/completions", own)) EXPECT_FALSE(answer["choices"].empty());
    if (completed > 30) break;
    wait_until(batch, [&](const Json& one) {
      return one["status"] == "completed" || one["request_counts"]["completed"] > completed + 15;
    });
    completed = state(batch)["request_counts"]["completed"];
    kill(server_->process_of(0), SIGKILL);
    EXPECT_NE(server_->wait().exit_code, 0);
    server_.reset();
  }
  ASSERT_TRUE(server_);
  wait_until(batch, [](const Json& one) { return one["status"] == "completed"; });
  EXPECT_EQ(sorted(answers(batch)), expected);
  end();
}

// Other instructions round differently, so a batch that has answers is not continued with them.
TEST_F(ServeBatchesTest, OnAnotherKindOfMachineCiTest) {
  std::string lines;
  for (size_t i = 0; i < 200; ++i)
    lines += line(i, "/v1/completions", {{"prompt", {1, 2, 3}}, {"max_tokens", 60}, {"ignore_eos", true}});
  Arguments more = options();
  more.insert(more.end(), {"--max-num-seqs", "2", "--simd", "portable"});
  start(1, more);
  const std::string batch = begin("/v1/completions", lines);
  wait_until(batch, [](const Json& one) { return one["request_counts"]["completed"] > 2; });
  kill(server_->process_of(0), SIGKILL);
  EXPECT_NE(server_->wait().exit_code, 0);
  server_.reset();
  more.back() = "avx2";
  start(1, more);
  wait_until(batch, [](const Json& one) { return one["status"] == "failed"; });
  end();
}

}  // namespace
}  // namespace lfm2::test
