// The handler's side of a request: answers it, now or later, from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "serve/http/message.h"

namespace lfm2::http {

class Exchange;

// Why an answer is no longer wanted.
enum class Gone : uint8_t {
  kLeft,     // the client closed the connection
  kSlow,     // the client did not read: too much was unsent
  kTime,     // the answer took longer than the server allows
  kStopped,  // the server ends
};

// What a handler adds to the access log.
struct Notes {
  std::optional<uint64_t> seed = {};  // if the server drew one
  std::set<int32_t> replicas = {};    // of several replicas: those that computed the answer
};

// Copies share one request. No function blocks. A handler calls either answer(), or begin_stream(), any number of
// write(), and end(); another order is Error(kSoftware). These functions return false if the client is gone, and the
// handler may then stop working. answer() also returns false if the answer was too large; the client then gets a 500.
// If the last copy is destroyed without an answer, the client gets a 500.
class Responder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange);

  bool answer(const Response& answer) const;
  bool begin_stream(int status, std::string_view content_type, const Fields& headers = {}) const;
  bool write(std::string_view text) const;
  bool end() const;
  // Whether the client reads slowly. A handler that can send the rest of a stream in fewer bytes later then waits with
  // it.
  bool behind() const;

  // Sets the callback for a client that leaves before the answer is complete, replacing an earlier one. It is called
  // once, on the server's thread, which it must not block, or within this call if the client is already gone. It is
  // never called after answer() or end().
  void on_gone(std::function<void(Gone)> callback) const;
  bool gone() const;
  // For the access log: see Notes.
  void note_seed(uint64_t seed) const;
  void note_replica(int32_t replica) const;

 private:
  struct Handle;
  std::shared_ptr<const Handle> handle_;
};

}  // namespace lfm2::http
