// Reads one request from bytes that come in pieces of any size. The head is found and bounded here; Boost.Beast reads
// what is in it, and the body. No Boost header is included but in request_parser.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "serve/http/body_reader.h"
#include "serve/http/byte_budget.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace lfm2::http {

class RequestParser {
 public:
  enum class Step {
    kNeedMore,  // all usable bytes were used: the rest comes again, followed by more
    kHead,      // the head is read; without a body, kComplete follows
    kComplete,
    kRefused,  // refusal() says why; no further bytes can be read
  };
  struct Result {
    Step step = Step::kNeedMore;
    size_t used = 0;  // bytes that the caller forgets
  };

  // The limits must outlive the parser. Bodies are counted in the budget.
  RequestParser(const Limits& limits, std::shared_ptr<ByteBudget> bodies);
  ~RequestParser();

  // Continues with the bytes after those that were used.
  Result put(std::string_view bytes);

  Request& request();               // whole once put() said kComplete, without body once it said kHead
  const Response& refusal() const;  // after kRefused
  // After kHead:
  bool has_body() const { return !body_.complete(); }
  bool expects_continue() const;  // the client waits for "100 Continue" before it sends the body
  bool keep_alive() const;        // as the client wishes

 private:
  class Beast;
  Result find_head(std::string_view bytes);
  Result read_head(std::string_view head);
  Result refuse(Response answer);

  const Limits& limits_;
  std::unique_ptr<Beast> beast_;
  BodyReader body_;
  bool head_done_ = false;
  size_t searched_ = 0;    // of the head: no line ends in the bytes before
  size_t line_begin_ = 0;  // of the head's newest line
  size_t lines_ = 0;       // of the head, so far
};

}  // namespace lfm2::http
