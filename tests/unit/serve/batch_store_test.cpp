// The folder of files and batches: whose they are, when they go, and what a full folder, a full disk and too little
// memory leave.
#include "serve/batches/batch_store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "support/served_batches.h"

namespace lfm2::serve {
namespace {

using BatchStoreTest = BatchesTest;

// A description that cannot be read may be mended, so the content stays.
TEST_F(BatchStoreTest, AnUnreadableDescriptionKeepsItsContent) {
  start();
  const std::string file = id_of(upload(lines(1, 1)));
  stop();
  const std::filesystem::path object = folder_ / "batches" / (file + ".json");
  const std::string text = test::read_bytes(object);
  test::write_bytes(object, "");
  start();
  EXPECT_EQ(ask("GET", "/v1/files/" + file).status, 404);
  stop();
  test::write_bytes(object, text);
  start();
  EXPECT_EQ(ask("GET", "/v1/files/" + file + "/content").body, lines(1, 1));
}

TEST_F(BatchStoreTest, AKeySeesItsOwn) {
  start(uint64_t{1} << 30, {"first", "second"});
  key_ = "first";
  const std::string file = id_of(upload(lines(2, 3))), batch = id_of(create(file));
  const Json done = wait_for(batch, "completed");
  const std::string output = done["output_file_id"];
  key_ = "second";
  EXPECT_TRUE(get("/v1/files")["data"].empty());
  EXPECT_TRUE(get("/v1/batches")["data"].empty());
  for (const std::string& id : {file, output}) {
    EXPECT_EQ(ask("GET", "/v1/files/" + id).status, 404);
    EXPECT_EQ(ask("GET", "/v1/files/" + id + "/content").status, 404);
    EXPECT_EQ(ask("DELETE", "/v1/files/" + id).status, 404);
  }
  EXPECT_EQ(ask("GET", "/v1/batches/" + batch).status, 404);
  EXPECT_EQ(ask("POST", "/v1/batches/" + batch + "/cancel").status, 404);
  EXPECT_EQ(create(file).status, 400);
  key_ = "first";
  EXPECT_EQ(get("/v1/files")["data"].size(), 2u);
  key_ = "third";
  EXPECT_EQ(ask("GET", "/v1/files").status, 401);
}

// What a key fills is no loss to another key.
TEST_F(BatchStoreTest, AKeyHasItsShare) {
  start(uint64_t{1} << 20, {"first", "second"});
  const std::string half(400 << 10, 'x');
  key_ = "first";
  const std::string file = id_of(upload(half));
  EXPECT_EQ(upload(half).status, 413);
  key_ = "second";
  id_of(upload(half));
  stop();
  start(uint64_t{1} << 20, {"first", "second"});
  key_ = "first";
  EXPECT_EQ(upload(half).status, 413) << "a server that comes back counts the same";
  EXPECT_EQ(ask("DELETE", "/v1/files/" + file).status, 200);
  id_of(upload(half));
}

TEST_F(BatchStoreTest, FilesExpire) {
  const auto expire = [&](const std::string& file) {  // as if its time had come while the server was away
    stop();
    const std::filesystem::path object = folder_ / "batches" / (file + ".json");
    Json stored = parse_json(test::read_bytes(object), "object");
    stored["object"]["expires_at"] = 1;
    test::write_bytes(object, json_text(stored));
    start();
    for (int i = 0; i < 2; ++i) get("/v1/files");  // the second answer follows a look at what expired
  };
  draws_ = false;
  start();
  const std::string more =
      "--B\r\nContent-Disposition: form-data; name=\"expires_after[anchor]\"\r\n\r\ncreated_at\r\n"
      "--B\r\nContent-Disposition: form-data; name=\"expires_after[seconds]\"\r\n\r\n7200\r\n";
  const std::string input = id_of(upload(lines(2, 3), "batch", more)), other = id_of(upload(lines(2, 3)));
  const Json file = get("/v1/files/" + input);
  EXPECT_EQ(file["expires_at"], file["created_at"].get<int64_t>() + 7200);
  EXPECT_TRUE(get("/v1/files/" + other)["expires_at"].is_null());
  const std::string batch = id_of(create(input, "/v1/completions", {{"anchor", "created_at"}, {"seconds", 3600}}));
  expire(input);
  EXPECT_EQ(ask("GET", "/v1/files/" + input).status, 200) << "a batch needs it";
  drawer_.emplace(live_.replica(0));
  const std::string output = wait_for(batch, "completed")["output_file_id"];
  const Json answers = get("/v1/files/" + output);
  EXPECT_EQ(answers["expires_at"], answers["created_at"].get<int64_t>() + 3600);
  drawer_.reset();
  expire(output);
  for (const std::string& gone : {input, output}) {
    EXPECT_EQ(ask("GET", "/v1/files/" + gone).status, 404);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "batches" / (gone + ".data")));
  }
  EXPECT_EQ(ask("GET", "/v1/files/" + other).status, 200);
}

// The content of a file whose description cannot be written does not stay.
TEST_F(BatchStoreTest, AFileWithoutADescription) {
  BatchStore store(folder_ / "batches", {1 << 20, 1 << 20});
  std::filesystem::create_directories(folder_ / "batches" / "file-1.json" / "in the way");
  EXPECT_THROW(store.add_file("file-1", "", "name", "batch", std::string(900 << 10, 'x')), Error);
  EXPECT_EQ(names_in_folder(), (std::vector<std::string>{"file-1.json", "lock"}));
  EXPECT_TRUE(store.has_room("", 900 << 10));
}

TEST_F(BatchStoreTest, AFullFolder) {
  max_open_ = 64;
  start(uint64_t{1} << 20);
  const HttpReply large = upload(std::string(1 << 20, 'x'));
  EXPECT_EQ(large.status, 413) << large.body;
  const std::string batch = id_of(create(id_of(upload(lines(400, 100, R"(, "logprobs": 5)")))));
  const Json failed = wait_for(batch, "failed");
  EXPECT_EQ(failed["errors"]["data"][0]["code"], "server_error");
  EXPECT_GT(failed["request_counts"]["completed"], 0);
  EXPECT_EQ(std::ssize(content(failed["output_file_id"])), failed["request_counts"]["completed"].get<int64_t>());
  EXPECT_EQ(ask("POST", "/v1/completions", completion(3)).status, 200) << "the server lives";
  EXPECT_EQ(ask("DELETE", "/v1/files/" + failed["output_file_id"].get<std::string>()).status, 200);
  EXPECT_EQ(wait_for(id_of(create(id_of(upload(lines(3, 3))))), "completed")["request_counts"]["completed"], 3);
}

// The same where the system refuses to write: the batch fails, with the answers that it has, and the server lives.
TEST_F(BatchStoreTest, AFullDisk) {
  ignore_file_size_signal();
  max_open_ = 32;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  start();
  const std::string file = id_of(upload(lines(200, 60)));
  const rlimit few{8 << 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &few), 0);
  const Json failed = wait_for(id_of(create(file)), "failed");
  EXPECT_EQ(upload(lines(200, 60)).status, 500);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(failed["errors"]["data"][0]["code"], "server_error");
  const int64_t completed = failed["request_counts"]["completed"];
  EXPECT_GT(completed, 0);
  EXPECT_EQ(std::ssize(content(failed["output_file_id"])), completed) << "no half line";
  EXPECT_EQ(wait_for(id_of(create(file)), "completed")["request_counts"]["completed"], 200);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)  // they take no such limit
// Memory that is missing for a moment fails no batch.
TEST_F(BatchStoreTest, WithoutMemoryForAWhile) {
  start();
  const std::string line = lines(1, 3, fmt::format(R"(, "user": "{}")", std::string(15 << 20, 'x')));
  const std::string file = id_of(upload(line + lines(5, 3)));
  std::ifstream statm("/proc/self/statm");
  uint64_t pages[6] = {};
  for (uint64_t& one : pages) statm >> one;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit few{pages[5] * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (8 << 20), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &few), 0);
  const std::string batch = id_of(create(file));
  std::this_thread::sleep_for(milliseconds(300));
  const Json waits = get("/v1/batches/" + batch);
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_NE(waits["status"], "failed") << waits;
  EXPECT_EQ(wait_for(batch, "completed")["request_counts"]["completed"], 6);
}
#endif

}  // namespace
}  // namespace lfm2::serve
