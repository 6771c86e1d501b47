// An HTTP server with one thread, which moves bytes between sockets and connections and enforces their deadlines.
// Service decides what is served and to whom.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "serve/http/limits.h"
#include "serve/http/service.h"
#include "serve/http/sockets.h"

namespace lfm2::http {

struct Counts {
  size_t connections = 0;            // open now
  size_t exchanges = 0;              // requests that are being answered
  size_t body_bytes = 0;             // of all open requests
  size_t unsent_bytes = 0;           // of answers
  uint64_t refused_connections = 0;  // since the start, because there were too many
};

class Server {
 public:
  Server(const Limits& limits, Service service);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // as stop()

  // Opens the listening socket; connections wait until start(). The host is an address or a name; of a name's addresses
  // the first is used, IPv4 before IPv6. Port 0 is any free port. Error(kUnavailable) if the address cannot be bound:
  // like a missing GPU, it is something of the machine that the run needs.
  Address listen(const std::string& host, uint16_t port);
  void start();

  // Draining: accepts no new connections and closes idle ones; further requests on the others get a 503. An answer that
  // has begun continues until its connection closes.
  void stop_accepting();
  // Returns true once every connection is closed, or false if some are still open after `time`.
  bool wait_until_closed(std::chrono::milliseconds time);
  // Closes everything at once. Handlers with unfinished answers get their on_gone callbacks. A handler must not call
  // this, because it waits for the server's thread.
  void stop();

  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lfm2::http
