#include "serve/listener.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/json/json.h"
#include "serve/page/page.h"

namespace lfm2::serve {

namespace {

constexpr std::chrono::seconds kLastBytes{5};  // for the last bytes of answers, when the server ends

http::Limits http_limits(const ListenerSettings& settings) {
  http::Limits limits;
  limits.max_body_bytes = settings.max_body_bytes;
  limits.max_bodies_bytes = std::max(limits.max_bodies_bytes, 4 * settings.max_body_bytes);
  limits.answer_time = std::chrono::seconds(60) + settings.request_timeout;
  limits.max_connections = settings.max_connections;
  return limits;
}

std::vector<std::string> open_paths() {
  std::vector<std::string> paths = page_paths();
  paths.emplace_back("/health");
  return paths;
}

// If the server can be reached from other machines, clients may use this machine's name.
std::vector<std::string> own_names(const ListenerSettings& settings) {
  std::vector<std::string> names = settings.allowed_hosts;
  names.push_back(settings.host);
  char host[HOST_NAME_MAX + 1] = {};
  const bool loopback = settings.host == "localhost" || settings.host == "::1" || settings.host.starts_with("127.");
  if (!loopback && ::gethostname(host, sizeof host - 1) == 0) names.emplace_back(host);
  return names;
}

}  // namespace

Listener::Listener(const ListenerSettings& settings, LogWriter* log)
    : log_(log),
      root_path_(settings.root_path),
      cors_(settings.cors_origins),
      access_({.api_keys = settings.api_keys,
               .open_paths = open_paths(),
               .own_names = own_names(settings),
               .cors = &cors_}),
      server_(http_limits(settings), service()) {
  address_ = server_.listen(settings.host, settings.port);
  server_.start();
}

http::Service Listener::service() {
  http::Service service;
  service.fields = [this](const http::Request& request) { return cors_.fields(request); };
  service.admit = [this](http::Request& request) -> std::optional<http::Response> {
    if (std::optional<http::Response> preflight = cors_.preflight(request)) return preflight;
    if (std::optional<http::Response> moved = strip_root_path(request.path)) return moved;
    if (std::optional<http::Response> refusal = access_.refusal(request)) return refusal;
    if (const http::Router* router = router_) return router->refusal(request);
    return http::error_response(503, "loading: the weights are not there yet", {{"Retry-After", "5"}});
  };
  service.handle = [this](http::Request&& request, http::Responder responder) {
    router_.load()->handle(std::move(request), std::move(responder));
  };
  if (log_ != nullptr) {
    service.log = [this](const http::AccessRecord& record) { log_->write(http::access_line(record)); };
    service.report = [this](const std::string& text) { log_->write(json_text(OrderedJson{{"error", text}})); };
  }
  return service;
}

// A proxy may keep or remove the prefix. The page's links are relative, so its path needs the final slash.
std::optional<http::Response> Listener::strip_root_path(std::string& path) const {
  if (root_path_.empty() || !path.starts_with(root_path_)) return {};
  if (path == root_path_) return http::Response{.status = 308, .headers = {{"Location", root_path_ + '/'}}};
  if (path[root_path_.size()] == '/') path.erase(0, root_path_.size());
  return {};
}

void Listener::close() {
  server_.stop_accepting();
  server_.wait_until_closed(kLastBytes);
  server_.stop();
}

}  // namespace lfm2::serve
