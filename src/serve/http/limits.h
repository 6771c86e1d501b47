// What one HTTP server lets its clients use: bytes, connections and time. Every wait of the server ends by one of
// these.
#pragma once

#include <chrono>
#include <cstddef>

namespace lfm2::http {

struct Limits {
  size_t max_target_bytes = 2048;       // path and query: 414 beyond
  size_t max_header_bytes = 16 << 10;   // request line and header fields together: 431 beyond
  size_t max_fields = 100;              // header fields of a request: 431 beyond
  size_t max_body_bytes = 16 << 20;     // body of a request: 413 beyond
  size_t max_bodies_bytes = 256 << 20;  // bodies of all requests that are read or answered: 503 beyond
  // Bytes of a stream that the client has not read yet. A client that lets more pile up is disconnected; a single piece
  // may be larger, up to max_answer_bytes, where nothing but a head is unsent.
  size_t max_unsent_bytes = 1 << 20;
  size_t behind_bytes = 128 << 10;            // a client with more unread is slow: `Responder::behind()`
  size_t max_answer_bytes = 64 << 20;         // an answer that is no stream: 500 beyond; a piece of a stream
  size_t max_total_unsent_bytes = 512 << 20;  // unsent bytes of all connections; who goes beyond is disconnected
  size_t max_connections = 1024;              // 503 beyond

  // From the first byte of a request to its last one, so that a client cannot stay by sending a byte at a time. Also
  // the time that a new connection has to send something.
  std::chrono::milliseconds read_time{30'000};
  std::chrono::milliseconds idle_time{75'000};         // from an answer to the next request on the same connection
  std::chrono::milliseconds answer_time{3'600'000};    // from the request to the end of its answer; the last resort
  std::chrono::milliseconds send_time{60'000};         // from the end of the answer until the client has all of it
  std::chrono::milliseconds linger_time{2'000};        // what a client still sends is read for so long before closing
  std::chrono::milliseconds hang_up_look_time{1'000};  // how often a client that is not read from is looked at
};

}  // namespace lfm2::http
