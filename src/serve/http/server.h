// An HTTP server with one thread, which moves bytes between sockets and connections and keeps their
// deadlines. It knows neither what is served nor to whom; see Service.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "serve/http/limits.h"
#include "serve/http/service.h"

namespace lfm2::http {

struct Address {
  std::string host;  // as a number
  uint16_t port = 0;

  std::string text() const;  // "127.0.0.1:8000", "[::1]:8000"
  bool is_loopback() const;  // only programs of this machine reach it
};

struct Counts {
  size_t connections = 0;            // open now
  size_t exchanges = 0;              // requests that are being answered
  size_t body_bytes = 0;             // of requests that were not let go of
  size_t unsent_bytes = 0;           // of answers
  uint64_t refused_connections = 0;  // since the start: there were too many
};

class Server {
 public:
  Server(const Limits& limits, Service service);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // as stop()

  // Waits for connections from now on; they are answered once start() was called. The host is an address or a name, of
  // which the first address is taken, IPv4 before IPv6. Port 0 takes any free one. Error(kUnavailable) where that
  // address cannot be had: like a GPU that is not there, it is a thing of the machine that the run needs.
  Address listen(const std::string& host, uint16_t port);
  void start();

  // Draining: no new connections are accepted and idle ones closed; further requests on the others get a 503. An answer
  // that has begun continues until its connection closes.
  void stop_accepting();
  // True once every connection is closed; false where some is still open after this time.
  bool wait_until_closed(std::chrono::milliseconds time);
  // Ends everything at once. Handlers that have not ended their answers hear that their clients are gone. Not to be
  // called by a handler: it waits for the server's thread.
  void stop();

  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lfm2::http
