#include "serve/http/cors.h"

#include <algorithm>

namespace lfm2::http {

namespace {

constexpr std::string_view kAny = "*";
// Without it pages see no field but those of every answer.
const std::pair<std::string, std::string> kExposed{"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"};

}  // namespace

bool Cors::allows(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](std::string_view one) { return one == kAny || equal_ignoring_case(one, origin); });
}

Fields Cors::fields(const Request& request) const {
  if (origins_.empty()) return {};
  if (std::find(origins_.begin(), origins_.end(), kAny) != origins_.end())
    return {{"Access-Control-Allow-Origin", std::string(kAny)}, kExposed};
  Fields fields{{"Vary", "Origin"}};  // else a cache gives one page the answer to another one
  const std::string* origin = request.headers.find("Origin");
  if (origin == nullptr || !allows(*origin)) return fields;
  fields.emplace_back("Access-Control-Allow-Origin", *origin);
  fields.push_back(kExposed);
  return fields;
}

std::optional<Answer> Cors::preflight(const Request& request) const {
  const std::string* origin = request.headers.find("Origin");
  if (request.method != "OPTIONS" || origin == nullptr || !allows(*origin) ||
      request.headers.find("Access-Control-Request-Method") == nullptr)
    return {};
  Answer answer{.status = 204, .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"}}};
  if (const std::string* asked = request.headers.find("Access-Control-Request-Headers"))
    answer.headers.emplace_back("Access-Control-Allow-Headers", *asked);
  if (request.headers.find("Access-Control-Request-Private-Network") != nullptr)
    answer.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  answer.headers.emplace_back("Access-Control-Max-Age", "600");
  return answer;
}

}  // namespace lfm2::http
