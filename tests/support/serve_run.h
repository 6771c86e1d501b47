// A server of the small trained model under mpirun, its clients, and jobs that have the same requests in a file. Used
// by the tests of serve.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/http_client.h"
#include "support/program.h"
#include "support/weights_support.h"

namespace lfm2::test {

using Arguments = std::vector<std::string>;

class ServeTest : public testing::Test {
 protected:
  void start(int ranks, const Arguments& more = {}, const std::string& dtype = "fp32") {
    Arguments command = mpi_command(ranks, LFM2_STAGE_PROGRAM);
    command.insert(command.end(), {"serve", "--threads", "1", "--weights", shards(ranks), "--port", "0",
                                   "--address-file", folder_ / "address", "--dtype", dtype});
    const Arguments machine = machine_options();
    command.insert(command.end(), machine.begin(), machine.end());
    command.insert(command.end(), more.begin(), more.end());
    std::filesystem::remove(folder_ / "address");
    server_.emplace(command);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(folder_ / "address") && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string address = read_bytes(folder_ / "address");  // http://127.0.0.1:PORT
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  // Ends the server, which must not lose anything by it.
  Outcome end() {
    server_->signal(SIGUSR1);
    Outcome outcome = server_->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_LT(outcome.err.find("loading; http://"), outcome.err.find("serving on http://")) << outcome.err;
    server_.reset();
    return outcome;
  }
  std::string shards(int ranks) const {
    return weights_.empty() ? golden_shards(model_, ranks == 1 ? 1 : 4) : weights_;
  }

  HttpReply ask(std::string_view method, std::string_view path, std::string_view body = {},
                std::string_view fields = {}) const {
    HttpClient client(port_);
    client.send(http_request(method, path, body, fields));
    return client.reply();
  }
  // The answers to bodies that come all at once.
  std::vector<Json> ask_all(std::string_view path, const std::vector<Json>& bodies) const {
    std::vector<Json> answers(bodies.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < bodies.size(); ++i)
      clients.emplace_back([&, i] {
        const HttpReply reply = ask("POST", path, json_text(bodies[i]));
        EXPECT_EQ(reply.status, 200) << reply.body;
        answers[i] = parse_json(reply.body, "answer");
      });
    for (std::thread& client : clients) client.join();
    return answers;
  }
  // The lines of the output of a job.
  std::vector<Json> output_of(const std::string& input, const Arguments& more,
                              const std::string& dtype = "fp32") const {
    write_bytes(folder_ / "in.jsonl", input);
    std::filesystem::remove(folder_ / "out.jsonl");
    Arguments arguments{"--weights",          shards(1), "--dtype", dtype, "--input", folder_ / "in.jsonl", "--output",
                        folder_ / "out.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome job = run_stage(1, arguments);
    EXPECT_EQ(job.exit_code, 0) << job.err;
    return json_lines(job.exit_code == 0 ? read_bytes(folder_ / "out.jsonl") : "");
  }
  Json get(std::string_view path) const { return parse_json(ask("GET", path).body, "answer"); }
  // The number of a name in the metrics: with its labels of that series, without them the sum over all replicas. -1 if
  // there is none.
  int64_t metric(const std::string& name) const {
    std::istringstream lines(ask("GET", "/metrics").body);
    int64_t sum = -1;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(name + " ") || line.starts_with(name + "{"))
        sum = std::max<int64_t>(sum, 0) + std::stoll(line.substr(line.rfind(' ')));
    return sum;
  }
  int64_t metric_of(int replica, const std::string& name) const {
    return metric(fmt::format("{}{{replica=\"{}\"}}", name, replica));
  }
  // The answers of a job that has these bodies in a file, each with the path that it is for.
  std::vector<Json> answers_of_job(const std::vector<std::pair<std::string, Json>>& asked, const Arguments& more = {},
                                   const std::string& dtype = "fp32") const {
    std::string lines;
    for (const auto& [path, body] : asked)
      lines += json_text(Json{{"custom_id", "a"}, {"method", "POST"}, {"url", path}, {"body", body}}) + "\n";
    std::vector<Json> answers;
    for (const Json& line : output_of(lines, more, dtype)) answers.push_back(line["response"]["body"]);
    EXPECT_EQ(answers.size(), asked.size());
    return answers;
  }
  bool becomes_idle() const {
    for (int i = 0; i < 400; ++i) {
      if (metric("lfm2_num_requests_running") == 0 && metric("lfm2_num_requests_waiting") == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }

  TemporaryFolder folder_;
  std::string model_ = "kjv-moe";
  std::filesystem::path weights_;  // where they are no golden ones
  std::optional<RunningProgram> server_;
  uint16_t port_ = 0;
};

// Clients that leave in the middle of their answers, until `over`.
inline void leave_answers(uint16_t port, const std::atomic<bool>& over, const std::string& body) {
  std::mt19937 random(3);
  while (!over) {
    HttpClient client(port);
    client.send(http_request("POST", "/v1/completions", body));
    if (random() % 2 == 0) client.read_some(std::chrono::milliseconds(random() % 30));
    client.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
  }
}

struct Predicted {
  int64_t accepted = 0, rejected = 0;
};

// Takes the numbers of drafts out of a usage.
inline Predicted take_predicted(Json& usage) {
  if (!usage.contains("completion_tokens_details")) return {};
  Json& details = usage["completion_tokens_details"];
  const Predicted found{details.value("accepted_prediction_tokens", 0), details.value("rejected_prediction_tokens", 0)};
  details.erase("accepted_prediction_tokens");
  details.erase("rejected_prediction_tokens");
  if (details.empty()) usage.erase("completion_tokens_details");
  return found;
}

// What a server says beyond a job: how many tokens of the prompts the prefix cache had.
inline int64_t take_cached_tokens(Json& usage) {
  const int64_t cached = usage.at("prompt_tokens_details").at("cached_tokens");
  usage.erase("prompt_tokens_details");
  return cached;
}

}  // namespace lfm2::test
