// Who may use the server: those who have a key, or, where there is none, programs of this machine and its own page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/message.h"

namespace lfm2::http {

// Which web pages from elsewhere may use the server: cross-origin resource sharing (the Fetch standard, "CORS
// protocol").
class Cors {
 public:
  // Origins as browsers send them, or "*" for every page; none: no answer has a field of CORS.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  bool allows(std::string_view origin) const;
  // Of every answer to the request.
  Fields fields(const Request& request) const;
  // The answer where a browser asks whether a page may send a request: it sends no key with that question.
  std::optional<Response> preflight(const Request& request) const;

 private:
  std::vector<std::string> origins_;
};

class AccessRules {
 public:
  struct Options {
    std::vector<std::string> api_keys = {};    // any of them; empty: none is asked for
    std::vector<std::string> open_paths = {};  // paths that need no key
    // Names of this server, besides localhost and addresses. Where there is no key, requests to other names are
    // refused.
    std::vector<std::string> own_names = {};
    // Pages from elsewhere that may use the server; must outlive the rules. Null: none.
    const Cors* cors = nullptr;
  };
  // Error(kData) for a key that could not stand in a header. The message does not hold the key.
  explicit AccessRules(Options options);

  // The answer where the request is not allowed: 401, or 403.
  std::optional<Response> refusal(const Request& request) const;

 private:
  std::optional<Response> without_key(const Request& request) const;

  Options options_;
};

// Takes as long for every text of one length, however much of it is right.
bool equal_in_constant_time(std::string_view secret, std::string_view text);

}  // namespace lfm2::http
