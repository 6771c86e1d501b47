// Finds handlers, and answers where there is none.
#include "serve/http/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "base/error.h"

namespace lfm2::http {

namespace {

constexpr std::string_view kBelow = "/*";

std::string_view handled_method(const Request& request) {
  return request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
}

}  // namespace

void Router::add(std::string_view method, std::string_view path, Handler handler) {
  const bool is_new = paths_[std::string(path)].emplace(method, std::move(handler)).second;
  expect(is_new, "two handlers for one method and path");
}

const Router::Methods* Router::find(std::string_view path) const {
  if (const auto exact = paths_.find(path); exact != paths_.end() && !path.ends_with(kBelow)) return &exact->second;
  for (size_t slash = path.size(); slash > 0 && slash != std::string_view::npos;) {
    slash = path.rfind('/', slash - 1);
    if (slash == std::string_view::npos || slash + 1 == path.size()) continue;
    const auto below = paths_.find(fmt::format("{}{}", path.substr(0, slash), kBelow));
    if (below != paths_.end()) return &below->second;
  }
  return nullptr;
}

std::optional<Response> Router::refusal(const Request& request) const {
  const bool asks_all = request.path == "*";  // the parser lets it pass only for OPTIONS
  const Methods* methods = asks_all ? nullptr : find(request.path);
  if (methods == nullptr && !asks_all) return error_response(404, fmt::format("There is no {}.", request.path));
  if (methods != nullptr && methods->contains(handled_method(request))) return {};
  std::set<std::string_view> allowed = {"OPTIONS"};
  for (const auto& [path, all] : paths_)
    for (const auto& [method, handler] : all)
      if (asks_all || &all == methods) {
        allowed.insert(method);
        if (method == "GET") allowed.insert("HEAD");
      }
  const Fields fields = {{"Allow", fmt::format("{}", fmt::join(allowed, ", "))}};
  if (request.method == "OPTIONS") return Response{.status = 204, .headers = fields};
  return error_response(405, fmt::format("{} is not allowed for {}.", request.method, request.path), fields);
}

void Router::handle(Request&& request, Responder responder) const {
  const Methods* methods = find(request.path);
  const auto handler = methods != nullptr ? methods->find(handled_method(request)) : Methods::const_iterator();
  expect(methods != nullptr && handler != methods->end(), "a request that no handler takes");
  handler->second(std::move(request), std::move(responder));
}

}  // namespace lfm2::http
