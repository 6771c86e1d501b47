// Which web pages from elsewhere may use the server: cross-origin resource sharing (the Fetch standard, "CORS
// protocol").
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/message.h"

namespace lfm2::http {

class Cors {
 public:
  // Origins as browsers send them, or "*" for every page; none: no answer has a field of CORS.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  bool allows(std::string_view origin) const;
  // Of every answer to the request.
  Fields fields(const Request& request) const;
  // The answer where a browser asks whether a page may send a request: it sends no key with that question.
  std::optional<Answer> preflight(const Request& request) const;

 private:
  std::vector<std::string> origins_;
};

}  // namespace lfm2::http
