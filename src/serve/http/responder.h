// The handler's end of a request: answers it, now or later, from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "serve/http/message.h"

namespace lfm2::http {

class Exchange;

// Why nobody wants an answer any more.
enum class Gone : uint8_t {
  kLeft,     // the client closed the connection
  kSlow,     // the client did not read: too much was unsent
  kTime,     // the answer took longer than the server allows
  kStopped,  // the server ends
};

// Copies share one request. No function blocks. Those that send return false where the client is gone, and the handler
// may then stop working; answer() also where the answer was too large, and a 500 went out instead. An answer is either
// answer(), or begin_stream(), any number of write(), and end(); another order is a mistake of the handler:
// Error(kSoftware). Where the last copy goes without an answer, the client gets a 500.
class Responder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange);

  bool answer(const Response& answer) const;
  bool begin_stream(int status, std::string_view content_type, const Fields& headers = {}) const;
  bool write(std::string_view text) const;
  bool end() const;
  // The client has not read what was written. Whoever can say the rest of a stream in fewer bytes later waits with it.
  bool behind() const;

  // Called once if the client goes before the answer is complete: on the server's thread, which it must not block, or
  // within this call where that has happened already. Never called after answer() or end(). Replaces an earlier one.
  void on_gone(std::function<void(Gone)> callback) const;
  bool gone() const;
  // For the access log: the seed that the server drew for the request.
  void note_seed(uint64_t seed) const;

 private:
  struct Handle;
  std::shared_ptr<const Handle> handle_;
};

}  // namespace lfm2::http
