// Header fields by name, and answers that say what was wrong.
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

Answer error_answer(int status, std::string_view message, Fields headers) {
  return {.status = status,
          .content_type = "application/json",
          .body = json_text(OrderedJson{{"error", error_object(message, status)}}),
          .headers = std::move(headers)};
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 308:
      return "Permanent Redirect";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
  }
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
