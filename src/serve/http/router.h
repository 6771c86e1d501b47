// Which handler takes which method and path.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/service.h"

namespace lfm2::http {

class Router {
 public:
  // A path is compared as it stands; one that ends with "/*" takes every path below, unless another one fits exactly.
  // The handler of GET also takes HEAD, whose answers the server sends without their bodies.
  void add(std::string_view method, std::string_view path, Handler handler);

  // The answer where no handler takes the request: 404, 405 with the methods that are allowed, or those for OPTIONS.
  std::optional<Response> refusal(const Request& request) const;
  // A request that is not refused.
  void handle(Request&& request, Responder responder) const;

 private:
  using Methods = std::map<std::string, Handler, std::less<>>;
  const Methods* find(std::string_view path) const;

  std::map<std::string, Methods, std::less<>> paths_;
};

}  // namespace lfm2::http
