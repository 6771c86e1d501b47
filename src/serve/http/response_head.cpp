// Writes the heads of answers.
#include "serve/http/response_head.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace lfm2::http {

namespace {

bool is_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\t' || (c >= ' ' && c != 0x7f); });
}

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), allowed);
}

void append_field(std::string& text, std::string_view name, std::string_view value) {
  expect(is_name(name) && is_value(value), "a header field of an answer with characters that it may not have");
  fmt::format_to(std::back_inserter(text), "{}: {}\r\n", name, value);
}

// Not strftime, whose names depend on the locale.
std::string date_text() { return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))); }

}  // namespace

bool is_visible(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::string head_text(const ResponseHead& head) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason_phrase(head.status));
  append_field(text, "Date", date_text());
  if (!head.content_type.empty()) {
    append_field(text, "Content-Type", head.content_type);
    append_field(text, "X-Content-Type-Options", "nosniff");
  }
  if (head.length) append_field(text, "Content-Length", std::to_string(*head.length));
  if (head.chunked) append_field(text, "Transfer-Encoding", "chunked");
  if (!head.request_id.empty()) append_field(text, "X-Request-Id", head.request_id);
  for (const auto& [name, value] : head.headers) append_field(text, name, value);
  if (!head.keep_alive)
    append_field(text, "Connection", "close");
  else if (head.http_1_0)
    append_field(text, "Connection", "keep-alive");
  text += "\r\n";
  return text;
}

std::string last_answer(const Response& answer) {
  return head_text({.status = answer.status,
                    .content_type = answer.content_type,
                    .headers = answer.headers,
                    .length = answer.body.size()}) +
         answer.body;
}

void append_chunk(std::string& text, std::string_view bytes) {
  fmt::format_to(std::back_inserter(text), "{:x}\r\n", bytes.size());
  text += bytes;
  text += "\r\n";
}

}  // namespace lfm2::http
