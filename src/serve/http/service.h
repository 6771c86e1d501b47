// What a server is for: the functions that it calls with each request, on its own thread. None of them may block.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "serve/http/message.h"
#include "serve/http/responder.h"

namespace lfm2::http {

// What is written down of each request: never its query, its headers or its body, nor what was answered.
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

using Handler = std::function<void(Request&&, Responder)>;

struct Service {
  // Looks at the head of a request before any of its body is taken, and may rewrite its path for the handler. With an
  // answer, the handler never sees the request.
  std::function<std::optional<Response>(Request&)> admit = {};
  std::function<Fields(const Request&)> fields = {};  // that every answer to the request has, refusals included
  Handler handle = {};
  std::function<void(const AccessRecord&)> log = {};
  std::function<void(const std::string&)> report = {};  // of a handler that threw: what it said
};

}  // namespace lfm2::http
