// Writes the head of an answer and the chunks of its body.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace lfm2::http {

struct ResponseHead {
  int status = 200;
  std::string_view content_type = {};
  const Fields& headers;
  std::string_view request_id = {};
  std::optional<size_t> length = {};  // of the body; empty: chunked, or the body ends with the connection
  bool chunked = false;
  bool keep_alive = false;
  bool http_1_0 = false;  // the client uses HTTP/1.0 and needs "Connection: keep-alive"
};

// Status line and header fields, followed by the empty line. Error(kSoftware) if a handler's field has a name or value
// that would break the head, such as a line break.
std::string head_text(const ResponseHead& head);

// A whole answer after which the connection closes.
std::string last_answer(const Response& answer);

void append_chunk(std::string& text, std::string_view bytes);  // `bytes` is not empty
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// Whether the text consists of one or more visible ASCII characters, as a request target does.
bool is_visible(std::string_view text);

}  // namespace lfm2::http
