// A server with files and batches in a folder, which outlives it. Used by the tests of both.
#pragma once

#include <algorithm>
#include <set>

#include "support/served_api.h"

namespace lfm2::serve {

using std::chrono::milliseconds;
using test::HttpReply;

class BatchesTest : public ApiTest {
 protected:
  ~BatchesTest() override { stop(); }

  // A server on a folder that may have files and batches of an earlier one.
  void start(uint64_t max_bytes = uint64_t{1} << 30, const std::vector<std::string>& keys = {}) {
    store_.emplace(folder_ / "batches", BatchStore::Room{max_bytes, max_bytes / std::max<size_t>(1, keys.size())});
    batches_ = {.store = &*store_,
                .has_keys = !keys.empty(),
                .max_open = max_open_,
                .made_by = made_by_,
                .context = {.lines = {.vocab = 1280, .max_positions = 100'000, .text = &text_, .continues = true},
                            .defaults = {.of_ids = {.max_new = 16}, .of_text = {.max_new = 16}},
                            .limits = {.max_prompt_tokens = max_tokens_, .max_edits = 8},
                            .facts = {.model = "lfm2",
                                      .tokenizer = &text_.tokenizer(),
                                      .answer_tokens = answer_tokens(text_.tokenizer())}}};
    listen({.api_keys = keys});
    serve();
    if (draws_) drawer_.emplace(live_.replica(0));
  }
  void stop() {
    close_all();
    store_.reset();
  }
  HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {}) const {
    test::HttpClient client(listener_->address().port);
    client.send(test::http_request(method, path, body, key_.empty() ? "" : "Authorization: Bearer " + key_ + "\r\n"));
    return client.reply();
  }
  Json get(const std::string& path) const { return parse_json(ask("GET", path).body, "answer"); }
  HttpReply upload(const std::string& content, const std::string& purpose = "batch",
                   const std::string& more = "") const {
    const auto part = [](const std::string& head, const std::string& text) {
      return "--B\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + text + "\r\n";
    };
    const std::string body = part(R"(name="purpose")", purpose) +
                             part(R"(name="file"; filename="../in.jsonl")", content) + more + "--B--\r\n";
    test::HttpClient client(listener_->address().port);
    client.send(test::http_request("POST", "/v1/files", body,
                                   "Content-Type: multipart/form-data; boundary=B\r\n" +
                                       (key_.empty() ? "" : "Authorization: Bearer " + key_ + "\r\n")));
    return client.reply();
  }
  static std::string id_of(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return parse_json(reply.body, "answer").value("id", "");
  }
  HttpReply create(const std::string& file, const std::string& endpoint = "/v1/completions",
                   const Json& expires = nullptr) const {
    return ask("POST", "/v1/batches",
               json_text(Json{{"input_file_id", file},
                              {"endpoint", endpoint},
                              {"completion_window", "24h"},
                              {"output_expires_after", expires},
                              {"metadata", {{"a", "b"}}}}));
  }
  static std::string lines(int count, int tokens, const std::string& fields = "") {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format(R"({{"custom_id": "{}", "method": "POST", "url": "/v1/completions", "body": {{"prompt": )"
                          R"([1, 2, {}], "max_tokens": {}{}}}}})",
                          i, i, tokens, fields) +
              "\n";
    return text;
  }
  Json wait_for(const std::string& batch, const std::string& status) const {
    Json now;
    for (int i = 0; i < 2000; ++i) {
      now = get("/v1/batches/" + batch);
      if (now["status"] == status) return now;
      std::this_thread::sleep_for(milliseconds(5));
    }
    ADD_FAILURE() << now;
    return now;
  }
  std::vector<Json> content(const Json& file) const {
    const HttpReply reply = ask("GET", "/v1/files/" + file.get<std::string>() + "/content");
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.whole);
    return test::json_lines(reply.body);
  }
  static std::multiset<int> ids(const std::vector<Json>& answers) {
    std::multiset<int> ids;
    for (const Json& one : answers) ids.insert(std::stoi(one["custom_id"].get<std::string>()));
    return ids;
  }
  static std::multiset<int> all(int count) {
    std::multiset<int> all;
    for (int i = 0; i < count; ++i) all.insert(i);
    return all;
  }
  std::vector<std::string> names_in_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "batches"))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  test::TemporaryFolder folder_;
  std::optional<BatchStore> store_;
  int64_t max_open_ = 4, max_tokens_ = 100'000;
  bool draws_ = true;
  std::string key_, made_by_ = "0";
};

}  // namespace lfm2::serve
