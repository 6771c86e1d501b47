// What the access log has of each request.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

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

// The record of the request that a connection reads or answers, as far as it has come.
class OpenRecord {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit OpenRecord(std::string peer) { record_.peer = std::move(peer); }

  void begin(Time now) {  // another request of the same peer
    record_ = {.time = std::chrono::system_clock::now(), .peer = std::move(record_.peer)};
    begin_ = now;
  }
  void name(std::string method, std::string path, std::string id) {
    record_.method = std::move(method);
    record_.path = std::move(path);
    record_.id = std::move(id);
  }
  void status(int status) { record_.status = status; }
  void sent(size_t bytes) { record_.bytes += bytes; }
  void end(Notes notes, bool complete, Time now, const std::function<void(const AccessRecord&)>& log) {
    record_.notes = std::move(notes);
    record_.complete = complete;
    record_.seconds = std::chrono::duration<double>(now - begin_).count();
    if (log) log(record_);
  }

  const AccessRecord& get() const { return record_; }

 private:
  AccessRecord record_;
  Time begin_;
};

}  // namespace lfm2::http
