// Files and batches of a server: what they answer, what a restart leaves, and what clients do meanwhile.
#include <sys/stat.h>

#include "support/served_batches.h"

namespace lfm2::serve {
namespace {

TEST_F(BatchesTest, FromAFileToItsAnswers) {
  start();
  const std::string input = lines(20, 5) + "\nnot JSON\n" + R"({"prompt": "no batch line"})" + "\n" +
                            R"({"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": {}})";
  const std::string file = id_of(upload(input));
  const Json object = get("/v1/files/" + file);
  EXPECT_EQ(object["bytes"], input.size());
  EXPECT_EQ(object["filename"], "../in.jsonl");
  EXPECT_EQ(object["purpose"], "batch");
  EXPECT_EQ(ask("GET", "/v1/files/" + file + "/content").body, input);
  const std::string batch = id_of(create(file));
  const Json done = wait_for(batch, "completed");
  EXPECT_EQ(done["request_counts"], Json({{"total", 23}, {"completed", 20}, {"failed", 3}}));
  EXPECT_EQ(done["metadata"], Json({{"a", "b"}}));
  for (const char* time : {"created_at", "in_progress_at", "finalizing_at", "completed_at"})
    EXPECT_TRUE(done[time].is_number_integer()) << time;
  const std::vector<Json> answers = content(done["output_file_id"]), errors = content(done["error_file_id"]);
  EXPECT_EQ(ids(answers), all(20));
  for (const Json& one : answers) EXPECT_EQ(one["response"]["body"]["usage"]["completion_tokens"], 5);
  ASSERT_EQ(errors.size(), 3u);
  for (const char* reason : {"line 22: not valid JSON", "line 23: is no batch line", "line 24: "})
    EXPECT_TRUE(std::ranges::any_of(errors, [&](const Json& one) {
      return one["error"]["message"].get<std::string>().starts_with(reason) && one["response"]["status_code"] == 400;
    })) << reason;
  EXPECT_EQ(get("/v1/files?purpose=batch_output&limit=1")["data"].size(), 1u);
  EXPECT_EQ(get("/v1/files?purpose=batch_output")["data"].size(), 2u);
  EXPECT_EQ(get("/v1/batches")["data"][0], done);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "batches")) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << entry.path();
  }
  EXPECT_EQ(ask("POST", "/v1/batches/" + batch + "/cancel").status, 409);
  const Json files = get("/v1/files")["data"];
  EXPECT_EQ(files.size(), 3u);
  for (const Json& one : files) EXPECT_EQ(ask("DELETE", "/v1/files/" + one["id"].get<std::string>()).status, 200);
  EXPECT_EQ(ask("GET", "/v1/files/" + file).status, 404);
  EXPECT_EQ(names_in_folder(), (std::vector<std::string>{batch + ".json", "lock"}));
}

// A server that comes back answers each line once, also if its predecessor was cut off in the middle of an answer.
TEST_F(BatchesTest, ComesBackInTheMiddle) {
  constexpr int kLines = 60;
  start();
  const std::string batch = id_of(create(id_of(upload(lines(kLines, 40)))));
  const auto completed = [&] { return get("/v1/batches/" + batch)["request_counts"]["completed"].get<int>(); };
  for (int cut = 0; cut < 3; ++cut) {
    const int before = completed();
    while (completed() < before + 5) std::this_thread::sleep_for(milliseconds(2));
    stop();
    const std::filesystem::path files = folder_ / "batches";
    const auto append = [&](const char* ending, const std::string& text) {
      std::ofstream(files / (batch + ending), std::ios::app | std::ios::binary) << text;
    };
    append(".output", "{\"id\": \"batch_req");  // as a kill may leave it
    if (cut == 1) append(".journal", "7 0 1");
    if (cut == 2)
      std::filesystem::resize_file(files / (batch + ".journal"),
                                   std::filesystem::file_size(files / (batch + ".journal")) - 1);
    test::write_bytes(files / "file-half.data", "no object was written for it");
    start();
    EXPECT_FALSE(std::filesystem::exists(files / "file-half.data"));
    EXPECT_GE(completed(), before + 5 - (cut == 2 ? 1 : 0));
  }
  EXPECT_LT(completed(), kLines) << "nothing was left for the last server";
  const Json done = wait_for(batch, "completed");
  EXPECT_EQ(done["request_counts"], Json({{"total", kLines}, {"completed", kLines}, {"failed", 0}}));
  EXPECT_TRUE(done["error_file_id"].is_null());
  EXPECT_EQ(ids(content(done["output_file_id"])), all(kLines));
  stop();
  start();
  EXPECT_EQ(get("/v1/batches/" + batch), done);
  EXPECT_EQ(ids(content(done["output_file_id"])), all(kLines));
}

// Answers of two models are never in one file: a batch that has begun fails, and one that waits is answered.
TEST_F(BatchesTest, ComesBackWithOtherWeights) {
  start();
  const std::string file = id_of(upload(lines(60, 40))), batch = id_of(create(file)), waiting = id_of(create(file));
  while (get("/v1/batches/" + batch)["request_counts"]["completed"] < 5) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(get("/v1/batches/" + waiting)["status"], "validating");
  stop();
  made_by_ = "1";
  start();
  const Json failed = wait_for(batch, "failed");
  EXPECT_NE(json_text(failed["errors"]).find("other weights or options"), std::string::npos);
  const int64_t completed = failed["request_counts"]["completed"];
  EXPECT_GE(completed, 5);
  EXPECT_LT(completed, 60);
  EXPECT_EQ(std::ssize(content(failed["output_file_id"])), completed);
  EXPECT_EQ(wait_for(waiting, "completed")["request_counts"]["completed"], 60);
}

// Batches that wait for their turn hold no open files.
TEST_F(BatchesTest, ManyWait) {
  draws_ = false;
  max_open_ = 1;
  start();
  const auto open_files = [] { return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd")); };
  const std::string file = id_of(upload(lines(2, 3)));
  const std::string first = id_of(create(file));
  wait_for(first, "in_progress");
  const auto before = open_files();
  std::vector<std::string> others;
  for (int i = 0; i < 20; ++i) others.push_back(id_of(create(file)));
  EXPECT_LE(open_files(), before + 4);
  EXPECT_EQ(parse_json(ask("POST", "/v1/batches/" + others.back() + "/cancel").body, "answer")["status"], "cancelled");
  others.pop_back();
  drawer_.emplace(live_.replica(0));
  for (const std::string& one : others) EXPECT_EQ(wait_for(one, "completed")["request_counts"]["completed"], 2);
}

// An answer is never shorter than that of a job without the server's limit.
TEST_F(BatchesTest, AnswersThatTheServerWouldCut) {
  max_tokens_ = 40;
  start();
  const std::string batch = id_of(create(id_of(upload(lines(1, 37) + lines(1, 38)))));
  const Json done = wait_for(batch, "completed");
  EXPECT_EQ(done["request_counts"], Json({{"total", 2}, {"completed", 1}, {"failed", 1}}));
  EXPECT_EQ(content(done["output_file_id"])[0]["response"]["body"]["usage"]["completion_tokens"], 37);
  EXPECT_EQ(content(done["error_file_id"])[0]["error"]["message"],
            "line 2: 3 tokens and 38 of the answer, expected at most 40 in all on this server");
}

// Faulty lines need no model, so they do not wait for the next look at the batches either.
TEST_F(BatchesTest, FaultyLinesAreFast) {
  start();
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "{}\n";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_for(id_of(create(id_of(upload(text)))), "completed")["request_counts"]["failed"], 10'000);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8)) << "at 32 lines in 50 ms it is 15 s";
}

// A pipeline with room for one sequence: a line that has begun makes room for a client, and begins again.
TEST_F(BatchesTest, AClientTakesThePlaceOfALine) {
  draws_ = false;
  max_open_ = 1;
  start();
  RequestSource& source = live_.replica(0);
  const std::string batch = id_of(create(id_of(upload(lines(2, 3)))));
  std::optional<Request> line;
  while (!line && !HasFailure()) line = source.next();
  test::HttpClient client(listener_->address().port);
  client.send(test::http_request("POST", "/v1/completions", completion(2)));
  std::vector<int32_t> cancelled;
  for (int i = 0; i < 500 && cancelled.empty(); ++i, std::this_thread::sleep_for(milliseconds(10)))
    cancelled = source.cancelled();
  EXPECT_EQ(cancelled, std::vector{line->sample});
  const std::optional<Request> own = source.next();
  ASSERT_TRUE(own);
  EXPECT_EQ(own->max_new, 2);
  source.begun(own->sample, 0);
  source.drawn({{own->sample, {.token = 300, .ends = FinishReason::kLength}}});
  EXPECT_EQ(client.reply().status, 200);
  EXPECT_EQ(get("/v1/batches/" + batch)["request_counts"]["completed"], 0);
  drawer_.emplace(source);
  EXPECT_EQ(wait_for(batch, "completed")["request_counts"]["completed"], 2);
}

TEST_F(BatchesTest, Cancelled) {
  start();
  const std::string file = id_of(upload(lines(200, 50))), batch = id_of(create(file));
  EXPECT_EQ(ask("DELETE", "/v1/files/" + file).status, 409) << "it is in use";
  while (get("/v1/batches/" + batch)["request_counts"]["completed"] < 2) std::this_thread::sleep_for(milliseconds(2));
  const Json cancelled = parse_json(ask("POST", "/v1/batches/" + batch + "/cancel").body, "answer");
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_TRUE(cancelled["cancelled_at"].is_number_integer());
  const int64_t completed = cancelled["request_counts"]["completed"];
  EXPECT_GE(completed, 2);
  EXPECT_LT(completed, 200);
  EXPECT_EQ(std::ssize(content(cancelled["output_file_id"])), completed);
  EXPECT_EQ(ask("DELETE", "/v1/files/" + file).status, 200);
}

TEST_F(BatchesTest, Refusals) {
  start();
  const std::string file = id_of(upload(lines(1, 1)));
  EXPECT_EQ(upload("{}", "fine-tune").status, 400);
  EXPECT_EQ(upload("").status, 400);
  const auto field = [](const std::string& name, const std::string& value) {
    return "--B\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
  };
  for (const std::string& more :
       {field("expires_after", "1"), field("expires_after[seconds]", "3600"),
        field("expires_after[anchor]", "created_at") + field("expires_after[seconds]", "3599"),
        field("expires_after[anchor]", "created_at") + field("expires_after[seconds]", "soon"),
        field("expires_after[anchor]", "last_used") + field("expires_after[seconds]", "3600")}) {
    const HttpReply refused = upload("{}", "batch", more);
    EXPECT_EQ(refused.status, 400) << more;
    EXPECT_NE(refused.body.find("expires_after"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(create(file, "/v1/completions", {{"anchor", "created_at"}, {"seconds", 1}}).status, 400);
  EXPECT_EQ(ask("POST", "/v1/files", "{}").status, 400);
  EXPECT_EQ(create("file-0").status, 400);
  EXPECT_EQ(create(file, "/v1/responses").status, 400);
  EXPECT_EQ(
      ask("POST", "/v1/batches", json_text(Json{{"input_file_id", file}, {"endpoint", "/v1/completions"}})).status,
      400);
  for (const char* path : {"/v1/files/..%2flock", "/v1/files/lock", "/v1/files/../lock", "/v1/batches/..%2f..%2fx"})
    EXPECT_EQ(ask("GET", path).status, 404) << path;
  EXPECT_EQ(ask("GET", "/v1/files?limit=0").status, 400);
  EXPECT_EQ(ask("GET", "/v1/files?after=none").status, 404);
  EXPECT_EQ(ask("POST", "/v1/files/" + file).status, 405);
  const Json empty = wait_for(id_of(create(id_of(upload("\n \n")))), "failed");
  EXPECT_EQ(empty["errors"]["data"][0]["code"], "invalid_file");
  test::expect_error(
      [&] {
        BatchStore(folder_ / "batches", {1 << 20, 1 << 20}, milliseconds(60));
      },
      ExitCode::kCantCreate, {"another server"});
}

TEST_F(BatchesTest, WithoutAFolder) {
  listen();
  serve();
  for (const char* path : {"/v1/files", "/v1/batches", "/v1/files/file-1", "/v1/batches/batch_1"}) {
    EXPECT_EQ(ask("GET", path).status, 404);
    EXPECT_NE(ask("GET", path).body.find("--batch-dir"), std::string::npos);
  }
}

}  // namespace
}  // namespace lfm2::serve
