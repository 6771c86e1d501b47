// Reads just enough HTTP to tell replies apart.
#include "support/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace lfm2::test {

HttpClient::HttpClient(uint16_t port, int receive_buffer_bytes) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  if (receive_buffer_bytes > 0)
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (socket_ < 0 || ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("the test's client cannot connect");
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), ended_(other.ended_), input_(std::move(other.input_)) {}

HttpClient::~HttpClient() { close(); }

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpClient::fill(std::chrono::milliseconds patience) {
  pollfd wanted{.fd = socket_, .events = POLLIN, .revents = 0};
  if (ended_ || ::poll(&wanted, 1, static_cast<int>(patience.count())) <= 0) return false;
  char buffer[16 << 10];
  const ssize_t got = ::recv(socket_, buffer, sizeof(buffer), 0);
  ended_ = got <= 0;
  if (got > 0) input_.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

std::string HttpClient::read_some(std::chrono::milliseconds patience) {
  if (input_.empty()) fill(patience);
  return std::exchange(input_, {});
}

bool HttpClient::closed(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!ended_ && std::chrono::steady_clock::now() < end) fill(std::chrono::milliseconds(50));
  return ended_;
}

void HttpClient::shut_writing() { ::shutdown(socket_, SHUT_WR); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  ended_ = true;
}

void HttpClient::reset() {
  const linger none{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  close();
}

HttpReply HttpClient::reply(bool to_head, std::chrono::milliseconds patience) {
  HttpReply reply;
  const auto line = [&]() -> std::string {
    size_t end;
    while ((end = input_.find("\r\n")) == std::string::npos)
      if (!fill(patience)) return {};
    std::string text = input_.substr(0, end);
    input_.erase(0, end + 2);
    return text;
  };
  const auto take = [&](size_t bytes) {
    while (input_.size() < bytes)
      if (!fill(patience)) break;
    reply.body += input_.substr(0, bytes);
    const bool all = input_.size() >= bytes;
    input_.erase(0, bytes);
    return all;
  };
  const std::string first = line();
  if (!first.starts_with("HTTP/1.1 ")) return reply;
  reply.status = std::stoi(first.substr(9, 3));
  for (std::string field = line(); !field.empty(); field = line()) {
    std::string name = field.substr(0, field.find(": "));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers[name] = field.substr(std::min(name.size() + 2, field.size()));
  }
  if (to_head || reply.status == 204 || reply.status == 304 || reply.status < 200) {
    reply.whole = true;
  } else if (reply.headers.contains("content-length")) {
    reply.whole = take(std::stoul(reply.headers["content-length"]));
  } else if (reply.headers.contains("transfer-encoding")) {
    while (true) {
      const std::string size = line();
      if (size.empty()) return reply;
      const size_t bytes = std::stoul(size, nullptr, 16);
      if (!take(bytes)) return reply;
      line();
      if (bytes == 0) break;
    }
    reply.whole = true;
  } else {
    while (fill(patience)) continue;
    reply.body = std::exchange(input_, {});
    reply.whole = ended_;
  }
  return reply;
}

std::string http_request(std::string_view method, std::string_view target, std::string_view body,
                         std::string_view fields) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}", method, target, fields);
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  return fmt::format("{}\r\n{}", text, body);
}

}  // namespace lfm2::test
