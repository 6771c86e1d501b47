// Who may use the server: clients with an API key. If no key is configured, programs of this machine and the server's
// own page.
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
  // Origins as browsers send them, or "*" for every page. If empty, no answer has CORS fields.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  bool allows(std::string_view origin) const;
  // The CORS fields of every answer to the request.
  Fields fields(const Request& request) const;
  // The answer to a preflight request, in which a browser asks whether a page may send a request. Browsers send no key
  // with it.
  std::optional<Response> preflight(const Request& request) const;

 private:
  std::vector<std::string> origins_;
};

class AccessRules {
 public:
  struct Options {
    std::vector<std::string> api_keys = {};    // each is accepted; empty: no key is needed
    std::vector<std::string> open_paths = {};  // paths that need no key
    // Names of this server besides localhost and IP addresses. Without a key, requests with another Host are refused.
    std::vector<std::string> own_names = {};
    // Pages from elsewhere that may use the server; must outlive the rules. Null: none.
    const Cors* cors = nullptr;
  };
  // Error(kData) for a key that no header can contain. The message does not reveal the key.
  explicit AccessRules(Options options);

  // The answer to a request that is not allowed: 401 or 403.
  std::optional<Response> refusal(const Request& request) const;

 private:
  std::optional<Response> without_key(const Request& request) const;

  Options options_;
};

// The time depends only on the lengths, not on how many bytes are equal.
bool equal_in_constant_time(std::string_view secret, std::string_view text);

}  // namespace lfm2::http
