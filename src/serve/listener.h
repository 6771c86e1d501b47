// The server's port, open from before the weights are loaded until the last answer. Until an Api serves, permitted
// requests get a 503.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/access_rules.h"
#include "serve/http/router.h"
#include "serve/http/server.h"
#include "serve/log_writer.h"

namespace lfm2::serve {

struct ListenerSettings {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  std::vector<std::string> api_keys = {};
  std::vector<std::string> allowed_hosts = {};  // accepted names in Host, besides `host`, localhost and IP addresses
  std::vector<std::string> cors_origins = {};   // see http::Cors
  std::string root_path = {};                   // "" or "/prefix": paths match with it and without it
  size_t max_body_bytes = size_t{16} << 20;
  std::chrono::seconds request_timeout{600};
  size_t max_connections = 1024;
};

class Listener {
 public:
  // Answers requests from here on. The log, which may be null, must outlive this. Error(kUnavailable) if the address
  // cannot be bound.
  Listener(const ListenerSettings& settings, LogWriter* log);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { close(); }

  const http::Address& address() const { return address_; }
  LogWriter* log() const { return log_; }
  // From now on the router handles the requests. It must live until close().
  void serve(const http::Router& router) { router_ = &router; }
  // Accepts no more requests, waits some seconds for answers to reach their clients, and closes all connections.
  void close();
  http::Counts counts() const { return server_.counts(); }

 private:
  http::Service service();
  std::optional<http::Response> strip_root_path(std::string& path) const;

  LogWriter* const log_;
  const std::string root_path_;
  const http::Cors cors_;
  const http::AccessRules access_;
  std::atomic<const http::Router*> router_ = nullptr;
  http::Server server_;
  http::Address address_;
};

}  // namespace lfm2::serve
