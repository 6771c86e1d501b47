// Header fields by name, and answers that report an error.
#include "serve/http/message.h"

#include <algorithm>
#include <charconv>

#include "base/json/error_json.h"
#include "base/json/json.h"

namespace lfm2::http {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

void Headers::set(std::string_view name, std::string_view value) {
  for (auto& [known, old] : fields_)
    if (equal_ignoring_case(known, name)) {
      old = value;
      return;
    }
  add(name, value);
}

const std::string* Headers::find(std::string_view name) const {
  for (const auto& [known, value] : fields_)
    if (equal_ignoring_case(known, name)) return &value;
  return nullptr;
}

Response error_response(int status, std::string_view message, Fields headers) {
  return {.status = status,
          .content_type = "application/json",
          .body = json_text(OrderedJson{{"error", error_object(message, status)}}),
          .headers = std::move(headers)};
}

std::string_view reason_phrase(int status) {
  constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                           {202, "Accepted"},
                                                           {204, "No Content"},
                                                           {304, "Not Modified"},
                                                           {308, "Permanent Redirect"},
                                                           {400, "Bad Request"},
                                                           {401, "Unauthorized"},
                                                           {403, "Forbidden"},
                                                           {404, "Not Found"},
                                                           {405, "Method Not Allowed"},
                                                           {408, "Request Timeout"},
                                                           {409, "Conflict"},
                                                           {413, "Content Too Large"},
                                                           {414, "URI Too Long"},
                                                           {415, "Unsupported Media Type"},
                                                           {417, "Expectation Failed"},
                                                           {422, "Unprocessable Content"},
                                                           {429, "Too Many Requests"},
                                                           {431, "Request Header Fields Too Large"},
                                                           {500, "Internal Server Error"},
                                                           {501, "Not Implemented"},
                                                           {503, "Service Unavailable"},
                                                           {504, "Gateway Timeout"},
                                                           {505, "HTTP Version Not Supported"}};
  for (const auto& [known, reason] : kReasons)
    if (known == status) return reason;
  return "Status";
}

std::string decoded(std::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned char byte = 0;
    const char *first = path.data() + i + 1, *last = first + 2;
    const bool coded = path[i] == '%' && i + 2 < path.size() && std::from_chars(first, last, byte, 16).ptr == last;
    text += coded ? static_cast<char>(byte) : path[i];
    if (coded) i += 2;
  }
  return text;
}

}  // namespace lfm2::http
