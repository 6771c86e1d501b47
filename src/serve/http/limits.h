// The bytes, connections and time that an HTTP server allows its clients. One of these limits ends every wait of the
// server.
#pragma once

#include <chrono>
#include <cstddef>

namespace lfm2::http {

struct Limits {
  size_t max_target_bytes = 2048;       // path and query: 414 beyond
  size_t max_header_bytes = 16 << 10;   // request line and header fields together: 431 beyond
  size_t max_fields = 100;              // header fields of a request: 431 beyond
  size_t max_body_bytes = 16 << 20;     // body of a request: 413 beyond
  size_t max_bodies_bytes = 256 << 20;  // bodies of all open requests: 503 beyond
  // Bytes of a stream that the client has not read yet. A client with more unread bytes is disconnected. A single piece
  // may be larger, up to max_answer_bytes, if at most a head is unsent.
  size_t max_unsent_bytes = 1 << 20;
  size_t behind_bytes = 128 << 10;     // a client with more unread bytes is slow: `Responder::behind()`
  size_t max_answer_bytes = 64 << 20;  // an answer without streaming (500 beyond), or a piece of a stream
  size_t max_total_unsent_bytes =
      512 << 20;                  // unsent bytes of all connections; a client that exceeds it is disconnected
  size_t max_connections = 1024;  // 503 beyond

  // From the first byte of a request to its last, so that a client cannot hold a connection by sending a byte at a
  // time. Also the time in which a new connection must send its first byte.
  std::chrono::milliseconds read_time{30'000};
  std::chrono::milliseconds idle_time{75'000};         // between an answer and the next request of the connection
  std::chrono::milliseconds answer_time{3'600'000};    // from the request to the end of its answer
  std::chrono::milliseconds send_time{60'000};         // from the end of the answer until all of it is sent
  std::chrono::milliseconds linger_time{2'000};        // how long further input is discarded before closing
  std::chrono::milliseconds hang_up_look_time{1'000};  // how often a client whose input is not read is checked
};

}  // namespace lfm2::http
