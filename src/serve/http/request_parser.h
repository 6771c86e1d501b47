// Reads one request from bytes that arrive in pieces of any size. This class finds the end of the head and limits its
// size; Boost.Beast parses the head, and BodyReader reads the body. Only request_parser.cpp includes Boost headers.
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
    kNeedMore,  // all usable bytes were used; the caller passes the rest again with more bytes
    kHead,      // the head is read; without a body, kComplete follows
    kComplete,
    kRefused,  // refusal() is the answer; no further bytes can be read
  };
  struct Result {
    Step step = Step::kNeedMore;
    size_t used = 0;  // bytes that the caller removes
  };

  // The limits must outlive the parser. Bodies are counted in the budget.
  RequestParser(const Limits& limits, std::shared_ptr<ByteBudget> bodies);
  ~RequestParser();

  // Reads the bytes that follow those already used.
  Result put(std::string_view bytes);

  Request& request();               // complete after kComplete; without its body after kHead
  const Response& refusal() const;  // after kRefused
  // After kHead:
  bool has_body() const { return !body_.complete(); }
  bool expects_continue() const;  // the client waits for "100 Continue" before it sends the body
  bool keep_alive() const;        // whether the client wants to keep the connection

 private:
  class Beast;
  Result find_head(std::string_view bytes);
  Result read_head(std::string_view head);
  Result refuse(Response answer);

  const Limits& limits_;
  std::unique_ptr<Beast> beast_;
  BodyReader body_;
  bool head_done_ = false;
  size_t searched_ = 0;    // of the head: bytes searched for line ends so far
  size_t line_begin_ = 0;  // where the current line of the head begins
  size_t lines_ = 0;       // number of lines of the head so far
};

}  // namespace lfm2::http
