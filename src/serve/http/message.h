// Requests as handlers get them, and answers as they give them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/byte_budget.h"

namespace lfm2::http {

bool equal_ignoring_case(std::string_view a, std::string_view b);  // of ASCII letters

using Fields = std::vector<std::pair<std::string, std::string>>;

// The header fields of a request. Names compare without regard to case.
class Headers {
 public:
  void add(std::string_view name, std::string_view value) { fields_.emplace_back(name, value); }
  void set(std::string_view name, std::string_view value);  // in place of the first such field, or a new one
  const std::string* find(std::string_view name) const;     // the first such field; null where there is none
  const Fields& all() const { return fields_; }

 private:
  Fields fields_;
};

struct Request {
  std::string method = {};  // as sent: "GET"
  std::string path = {};    // as sent, still percent-encoded, without the query; it begins with '/', or is "*"
  std::string query = {};   // after the '?', still encoded
  bool http_1_0 = false;
  Headers headers = {};  // Host, Authorization, Origin and Content-Length stand there once at most
  std::string body = {};
  std::string peer = {};  // address and port of the client
  std::string id = {};    // of the client's own X-Request-Id, or one of ours
  ByteShare share = {};   // counts the body as long as the request lives
};

struct Response {
  int status = 200;
  std::string content_type = {};  // empty: no such field
  std::string body = {};
  Fields headers = {};  // further ones; the server adds those of the connection, the length, date and id
};

// {"error": error_object()}, as clients of OpenAI's interface expect.
Response error_response(int status, std::string_view message, Fields headers = {});

std::string_view reason_phrase(int status);

// A path without percent-encoding; what is no such code stays as it is.
std::string decoded(std::string_view path);

}  // namespace lfm2::http
