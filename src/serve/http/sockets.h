// Addresses and options of TCP sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lfm2::http {

struct Address {
  std::string host;  // numeric IP address
  uint16_t port = 0;

  std::string text() const;  // "127.0.0.1:8000", "[::1]:8000"
  bool is_loopback() const;  // whether only programs of this machine can connect
};

// Bounds the kernel's buffers of a listening socket's connections, which the limits do not count.
void bound_buffers(int listening);
// Options of a connection: no delay, and an end if the client vanishes or accepts nothing for `send_time`.
void set_options(int connection, std::chrono::milliseconds send_time);
// Whether the other side closed the connection or broke it, even if unread bytes precede that.
bool has_hung_up(int connection);

}  // namespace lfm2::http
