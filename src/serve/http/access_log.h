// What is written down of each request: never its query, its headers or its body, nor what was answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lfm2::http {

struct AccessRecord {
  std::chrono::system_clock::time_point time = {};  // of the request's first byte
  std::string id = {}, peer = {};
  std::string method = {}, path = {};  // empty where the request could not be read
  int status = 0;                      // 0: the client went before anything was answered
  uint64_t bytes = 0;                  // of the answer and its head, as far as they were sent
  double seconds = 0;                  // from the request's first byte to the last one of the answer
  bool complete = false;               // whether the whole answer was sent
  std::optional<uint64_t> seed = {};   // where the server drew one
};

// The record as JSON on one line, without a line break.
std::string access_line(const AccessRecord& record);

}  // namespace lfm2::http
