// Reads the body that follows a head: a body of the announced length, or chunks. This replaces Beast's reader of
// chunks, which lets a quoted extension continue past the end of its line, depending on which bytes have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace lfm2::http {

class BodyReader {
 public:
  // The limits must outlive the reader.
  explicit BodyReader(const Limits& limits) : limits_(limits) {}

  // Reads from the head how the body is sent. Returns an answer if the body is refused before it arrives.
  std::optional<Response> begin(const Headers& headers);
  bool complete() const { return state_ == State::kComplete; }

  // Reads the bytes that follow those already used, appends to the request's body, and returns how many it used. How
  // the bytes are cut into pieces changes neither the body nor a refusal.
  size_t put(std::string_view bytes, Request& request);
  const std::optional<Response>& refusal() const { return refusal_; }

 private:
  enum class State : uint8_t { kData, kChunkSize, kChunkData, kChunkEnd, kTrailer, kComplete };

  void refuse(int status, std::string_view message) { refusal_ = error_response(status, message); }
  std::optional<std::string_view> line(std::string_view bytes);
  size_t read_data(std::string_view bytes, Request& request);
  size_t read_chunk_size(std::string_view bytes, const Request& request);
  size_t read_chunk_end(std::string_view bytes);
  size_t read_trailer(std::string_view bytes);

  const Limits& limits_;
  State state_ = State::kComplete;
  uint64_t remaining_ = 0;  // of the data or of the chunk
  size_t trailer_bytes_ = 0;
  std::optional<Response> refusal_;
};

}  // namespace lfm2::http
