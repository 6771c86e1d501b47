// Bodies of a known length, and chunks (RFC 9112, 7.1). Extensions of chunks and trailer fields are read and forgotten.
#include "serve/http/body_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace lfm2::http {

namespace {

constexpr size_t kMaxLineBytes = 1024;  // of a chunk's size with its extension, or of a trailer field

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number at the beginning of the text, and the rest of the text; empty if there is no number below 2^60.
std::optional<uint64_t> leading_hex(std::string_view& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || value >> 60 != 0 || text.starts_with('-')) return {};
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// Bodies are JSON in UTF-8, as they are.
std::optional<Response> refuse_coding(const Headers& headers) {
  const std::string* coding = headers.find("Content-Encoding");
  if (coding != nullptr && !equal_ignoring_case(*coding, "identity"))
    return error_response(
        415, fmt::format("Content-Encoding {} is not supported: send the body uncompressed.", printable(*coding)));
  const std::string* type = headers.find("Content-Type");
  constexpr std::string_view kCharset = "charset=";
  std::string_view rest = type != nullptr ? std::string_view(*type) : std::string_view();
  const auto at = std::search(rest.begin(), rest.end(), kCharset.begin(), kCharset.end(), [](char a, char b) {
    return equal_ignoring_case({&a, 1}, {&b, 1});
  });
  if (at == rest.end()) return {};
  rest.remove_prefix(static_cast<size_t>(at - rest.begin()) + kCharset.size());
  if (rest.starts_with('"')) rest.remove_prefix(1);
  rest = rest.substr(0, rest.find_first_of("\"; \t"));
  for (const std::string_view known : {"utf-8", "utf8", "us-ascii"})
    if (equal_ignoring_case(rest, known)) return {};
  return error_response(415, fmt::format("charset {} is not supported: expected UTF-8.", printable(rest)));
}

}  // namespace

std::optional<Response> BodyReader::begin(const Headers& headers) {
  if (std::optional<Response> refusal = refuse_coding(headers)) return refusal;
  const std::string* length = headers.find("Content-Length");
  if (headers.find("Transfer-Encoding") != nullptr) {
    if (length != nullptr) return error_response(400, "A body in chunks that has a Content-Length too.");
    state_ = State::kChunkSize;
    return {};
  }
  if (length == nullptr) return {};
  if (length->empty() || !std::all_of(length->begin(), length->end(), is_digit))
    return error_response(400, "The Content-Length is not a number.");
  const auto error = std::from_chars(length->data(), length->data() + length->size(), remaining_).ec;
  if (error != std::errc() || remaining_ > limits_.max_body_bytes)
    return error_response(413, fmt::format("The body is larger than {} bytes.", limits_.max_body_bytes));
  state_ = remaining_ > 0 ? State::kData : State::kComplete;
  return {};
}

size_t BodyReader::put(std::string_view bytes, Request& request) {
  const size_t all = bytes.size();
  while (!refusal_ && !complete() && !bytes.empty()) {
    size_t used = 0;
    switch (state_) {
      case State::kData:
      case State::kChunkData:
        used = read_data(bytes, request);
        break;
      case State::kChunkSize:
        used = read_chunk_size(bytes, request);
        break;
      case State::kChunkEnd:
        used = read_chunk_end(bytes);
        break;
      case State::kTrailer:
        used = read_trailer(bytes);
        break;
      case State::kComplete:
        break;
    }
    if (used == 0) break;
    bytes.remove_prefix(used);
  }
  return all - bytes.size();
}

// The first line without its line end; empty if it is incomplete or refused.
std::optional<std::string_view> BodyReader::line(std::string_view bytes) {
  const size_t newline = bytes.substr(0, kMaxLineBytes).find('\n');
  if (newline == std::string_view::npos) {
    if (bytes.size() >= kMaxLineBytes) refuse(400, "A chunk whose size, extension or trailer is too long.");
    return {};
  }
  const std::string_view text = bytes.substr(0, newline > 0 ? newline - 1 : 0);
  const auto allowed = [](char c) { return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != 0x7f); };
  if (newline > 0 && bytes[newline - 1] == '\r' && std::all_of(text.begin(), text.end(), allowed)) return text;
  refuse(400, "A line between chunks that has control characters, or does not end with CR LF.");
  return {};
}

// The body grows with the bytes that arrive, whatever length was announced, and the budget counts its memory.
size_t BodyReader::read_data(std::string_view bytes, Request& request) {
  bytes = bytes.substr(0, static_cast<size_t>(std::min<uint64_t>(remaining_, bytes.size())));
  const size_t needed = request.body.size() + bytes.size(), held = request.share.bytes();
  if (needed > held) {
    const size_t room = std::max(needed, std::min(2 * held, limits_.max_body_bytes));
    if (!request.share.grow(room - held)) {
      refuse(503, "The bodies of all requests together are larger than the server allows.");
      return 0;
    }
    request.body.reserve(room);
  }
  request.body += bytes;
  remaining_ -= bytes.size();
  if (remaining_ == 0) state_ = state_ == State::kData ? State::kComplete : State::kChunkEnd;
  return bytes.size();
}

size_t BodyReader::read_chunk_size(std::string_view bytes, const Request& request) {
  const auto text = line(bytes);
  if (!text) return 0;
  std::string_view rest = *text;
  const auto size = leading_hex(rest);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  if (!size || (!rest.empty() && rest[0] != ';')) {
    refuse(400, "A chunk without a size.");
    return 0;
  }
  if (*size > limits_.max_body_bytes - request.body.size()) {
    refuse(413, fmt::format("The body is larger than {} bytes.", limits_.max_body_bytes));
    return 0;
  }
  remaining_ = *size;
  state_ = *size > 0 ? State::kChunkData : State::kTrailer;
  return text->size() + 2;
}

size_t BodyReader::read_chunk_end(std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n";
  if (!kEnd.starts_with(bytes.substr(0, kEnd.size()))) refuse(400, "A chunk that is longer than its size.");
  if (refusal_ || bytes.size() < kEnd.size()) return 0;
  state_ = State::kChunkSize;
  return kEnd.size();
}

size_t BodyReader::read_trailer(std::string_view bytes) {
  const auto text = line(bytes);
  if (!text) return 0;
  trailer_bytes_ += text->size();
  if (trailer_bytes_ > limits_.max_header_bytes) {
    refuse(431, "The fields after the chunks are too long.");
    return 0;
  }
  if (text->empty()) state_ = State::kComplete;
  return text->size() + 2;
}

}  // namespace lfm2::http
