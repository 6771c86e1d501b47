#include "serve/http/sockets.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace lfm2::http {

namespace {

constexpr int kSocketBufferBytes = 256 << 10;
// Clients that vanish without a word, such as a laptop that was closed, are noticed after about a minute.
constexpr int kSilentSeconds = 30, kProbeSeconds = 10, kProbes = 3;

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));  // an error only weakens a defence
}

}  // namespace

std::string Address::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

bool Address::is_loopback() const { return host == "::1" || host.starts_with("127."); }

void bound_buffers(int listening) {
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) set_option(listening, SOL_SOCKET, option, kSocketBufferBytes);
}

void set_options(int connection, std::chrono::milliseconds send_time) {
  set_option(connection, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(connection, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(connection, IPPROTO_TCP, TCP_KEEPIDLE, kSilentSeconds);
  set_option(connection, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(connection, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(send_time.count()));
}

bool has_hung_up(int connection) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state != TCP_ESTABLISHED;
}

}  // namespace lfm2::http
