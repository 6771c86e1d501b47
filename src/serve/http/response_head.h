// The bytes that HTTP puts around an answer.
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
  std::optional<size_t> length = {};  // of the body; empty: chunked, or until the connection closes
  bool chunked = false;
  bool keep_alive = false;
  bool http_1_0 = false;  // the client's version: it must be told that the connection stays
};

// Status line and header fields, followed by the empty line. Error(kSoftware) for names and values that would change
// how the head is read, which are a handler's mistake.
std::string head_text(const ResponseHead& head);

void append_chunk(std::string& text, std::string_view bytes);  // some bytes
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// Whether the text is one or more visible ASCII characters, such as what may stand in a request target.
bool is_visible(std::string_view text);

}  // namespace lfm2::http
