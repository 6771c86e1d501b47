// The functions that a server calls with each request, on the server's thread. None of them may block.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "serve/http/message.h"
#include "serve/http/responder.h"

namespace lfm2::http {

// The log record of a request. It never contains the query, headers or body, nor the content of the answer.
struct AccessRecord {
  std::chrono::system_clock::time_point time = {};  // of the request's first byte
  std::string id = {}, peer = {};
  std::string method = {}, path = {};  // empty if the request could not be parsed
  int status = 0;                      // 0: the client left before an answer began
  uint64_t bytes = 0;                  // bytes of the answer, with its head, that were sent
  double seconds = 0;                  // from the request's first byte to the last one of the answer
  bool complete = false;               // whether the whole answer was sent
  Notes notes = {};
};

// The record as JSON on one line, without a line break.
std::string access_line(const AccessRecord& record);

using Handler = std::function<void(Request&&, Responder)>;

struct Service {
  // Checks the head of a request before its body is read, and may rewrite its path for the handler. If it returns an
  // answer, that is sent, and the handler is not called.
  std::function<std::optional<Response>(Request&)> admit = {};
  std::function<Fields(const Request&)> fields = {};  // header fields of every answer to the request, refusals included
  Handler handle = {};
  std::function<void(const AccessRecord&)> log = {};
  std::function<void(const std::string&)> report = {};  // called with the message of a handler's exception
};

}  // namespace lfm2::http
