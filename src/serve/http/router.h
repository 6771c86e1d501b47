// Maps methods and paths to handlers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/service.h"

namespace lfm2::http {

class Router {
 public:
  // Paths must match exactly. A path that ends with "/*" matches every path below it, unless another route matches
  // exactly. The handler of GET also handles HEAD; the server sends its answers without a body.
  void add(std::string_view method, std::string_view path, Handler handler);

  // The answer if no handler matches the request: 404, 405 with the allowed methods, or the answer to OPTIONS.
  std::optional<Response> refusal(const Request& request) const;
  // Calls the handler of a request that refusal() does not refuse.
  void handle(Request&& request, Responder responder) const;

 private:
  using Methods = std::map<std::string, Handler, std::less<>>;
  const Methods* find(std::string_view path) const;

  std::map<std::string, Methods, std::less<>> paths_;
};

}  // namespace lfm2::http
