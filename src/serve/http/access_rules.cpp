// Keys, and the defence of a server without one against web pages from elsewhere.
//
// A browser on this machine reaches every local port for every page that it shows. It names that page in Origin where
// it sends anything that could change something, so Origin must be the server's own. A page whose own name is made to
// point here (DNS rebinding) has the same origin as the server; but then Host has the page's name. A number in Host
// cannot be made to point elsewhere, so every address passes: it is one of ours, or of a tunnel to us.
#include "serve/http/access_rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/http/response_head.h"

namespace lfm2::http {

namespace {

constexpr std::string_view kAny = "*";
// Without it, pages can read only the standard fields of an answer.
const std::pair<std::string, std::string> kExposed{"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"};

bool is_port(std::string_view text) {
  return text.size() <= 5 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_address(int family, std::string_view text) {
  in6_addr address{};
  return ::inet_pton(family, std::string(text).c_str(), &address) == 1;
}

// The name or address in "name", "name:port" or "[address]:port"; empty for any other text.
std::string_view host_name(std::string_view host) {
  const bool bracketed = host.starts_with('[');
  const size_t end = bracketed ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string_view::npos) return {};
  const std::string_view rest = host.substr(bracketed ? end + 1 : end);
  if (!rest.empty() && (rest[0] != ':' || !is_port(rest.substr(1)))) return {};
  std::string_view name = bracketed ? host.substr(1, end - 1) : host.substr(0, end);
  if (!bracketed && name.ends_with('.')) name.remove_suffix(1);  // the root of all names
  return name;
}

}  // namespace

bool equal_in_constant_time(std::string_view secret, std::string_view text) {
  if (secret.empty()) return false;
  unsigned different = secret.size() == text.size() ? 0 : 1;
  for (size_t i = 0; i < text.size(); ++i)
    different |= static_cast<unsigned char>(text[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  return different == 0;
}

AccessRules::AccessRules(Options options) : options_(std::move(options)) {
  for (const std::string& key : options_.api_keys)
    if (!is_visible(key))
      throw Error(ExitCode::kData, "an API key that is empty, or has blanks or characters other than ASCII");
}

std::optional<Response> AccessRules::refusal(const Request& request) const {
  if (options_.api_keys.empty()) return without_key(request);
  const auto& open = options_.open_paths;
  if (std::find(open.begin(), open.end(), request.path) != open.end()) return {};
  constexpr std::string_view kScheme = "Bearer ";
  const std::string* given = request.headers.find("Authorization");
  const bool bearer =
      given != nullptr && equal_ignoring_case(std::string_view(*given).substr(0, kScheme.size()), kScheme);
  std::string_view key = bearer ? std::string_view(*given).substr(kScheme.size()) : std::string_view();
  key.remove_prefix(std::min(key.find_first_not_of(' '), key.size()));
  bool known = false;
  for (const std::string& one : options_.api_keys)
    if (equal_in_constant_time(one, key)) known = true;  // the others are compared too
  if (known) return {};
  return error_response(401, bearer ? "This API key is not known." : "An API key is needed: Authorization: Bearer KEY.",
                        {{"WWW-Authenticate", "Bearer"}});
}

std::optional<Response> AccessRules::without_key(const Request& request) const {
  const std::string* host = request.headers.find("Host");
  const std::string_view name = host != nullptr ? host_name(*host) : std::string_view();
  const auto is_name = [&](std::string_view own) { return !own.empty() && equal_ignoring_case(own, name); };
  const bool own = host != nullptr && host->starts_with('[')
                       ? is_address(AF_INET6, name)
                       : is_name("localhost") || is_address(AF_INET, name) ||
                             std::any_of(options_.own_names.begin(), options_.own_names.end(), is_name);
  if (!own)
    return error_response(403,
                          fmt::format("Without an API key the server answers only to its own address or localhost in "
                                      "Host: start it with --allowed-host {} or with --api-key-file.",
                                      name.empty() ? "NAME" : name));
  const std::string* origin = request.headers.find("Origin");
  if (origin == nullptr || (options_.cors != nullptr && options_.cors->allows(*origin))) return {};
  for (const std::string_view scheme : {"http://", "https://"})
    if (equal_ignoring_case(*origin, fmt::format("{}{}", scheme, *host))) return {};
  return error_response(
      403,
      "Without an API key the server does not answer to pages from elsewhere: start it with --cors-origin ORIGIN.");
}

bool Cors::allows(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](std::string_view one) { return one == kAny || equal_ignoring_case(one, origin); });
}

Fields Cors::fields(const Request& request) const {
  if (origins_.empty()) return {};
  if (std::find(origins_.begin(), origins_.end(), kAny) != origins_.end())
    return {{"Access-Control-Allow-Origin", std::string(kAny)}, kExposed};
  Fields fields{{"Vary", "Origin"}};  // else a cache could give a page the answer for another origin
  const std::string* origin = request.headers.find("Origin");
  if (origin == nullptr || !allows(*origin)) return fields;
  fields.emplace_back("Access-Control-Allow-Origin", *origin);
  fields.push_back(kExposed);
  return fields;
}

std::optional<Response> Cors::preflight(const Request& request) const {
  const std::string* origin = request.headers.find("Origin");
  if (request.method != "OPTIONS" || origin == nullptr || !allows(*origin) ||
      request.headers.find("Access-Control-Request-Method") == nullptr)
    return {};
  Response answer{.status = 204, .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"}}};
  if (const std::string* asked = request.headers.find("Access-Control-Request-Headers"))
    answer.headers.emplace_back("Access-Control-Allow-Headers", *asked);
  if (request.headers.find("Access-Control-Request-Private-Network") != nullptr)
    answer.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  answer.headers.emplace_back("Access-Control-Max-Age", "600");
  return answer;
}

}  // namespace lfm2::http
