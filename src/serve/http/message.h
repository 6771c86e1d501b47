// The requests that handlers receive and the answers that they return.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/byte_budget.h"

namespace lfm2::http {

bool equal_ignoring_case(std::string_view a, std::string_view b);  // ignores the case of ASCII letters

using Fields = std::vector<std::pair<std::string, std::string>>;

// The header fields of a request. Names are compared without case.
class Headers {
 public:
  void add(std::string_view name, std::string_view value) { fields_.emplace_back(name, value); }
  void set(std::string_view name, std::string_view value);  // replaces the first such field, or adds one
  const std::string* find(std::string_view name) const;     // the first such field; null if there is none
  const Fields& all() const { return fields_; }

 private:
  Fields fields_;
};

struct Request {
  std::string method = {};  // as sent: "GET"
  std::string path = {};    // as sent, still percent-encoded, without the query; it begins with '/', or is "*"
  std::string query = {};   // after the '?', still encoded
  bool http_1_0 = false;
  Headers headers = {};  // Host, Authorization, Origin and Content-Length occur at most once
  std::string body = {};
  std::string peer = {};  // address and port of the client
  std::string id = {};    // the client's X-Request-Id, or one made by the server
  ByteShare share = {};   // counts the body during the request's lifetime
};

struct Response {
  int status = 200;
  std::string content_type = {};  // empty: no such field
  std::string body = {};
  Fields headers = {};  // the handler's; the server adds connection, length, date and request id
};

// {"error": error_object()}, as clients of OpenAI's interface expect.
Response error_response(int status, std::string_view message, Fields headers = {});

std::string_view reason_phrase(int status);

// Decodes the percent-encoding of a path; invalid codes stay as they are.
std::string decoded(std::string_view path);

}  // namespace lfm2::http
