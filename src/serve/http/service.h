// The functions that a server calls with each request, on the server's thread. None of them may block.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "serve/http/access_log.h"
#include "serve/http/message.h"
#include "serve/http/responder.h"

namespace lfm2::http {

using Handler = std::function<void(Request&&, Responder)>;

struct Service {
  // Checks the head of a request before its body is read, and may rewrite its path for the handler. If it returns an
  // answer, that is sent, and the handler is not called.
  std::function<std::optional<Response>(Request&)> admit = {};
  std::function<Fields(const Request&)> fields = {};  // header fields of every answer to the request, refusals included
  Handler handle = {};
  std::function<void(const AccessRecord&)> log = {};
  std::function<void(const std::string&)> report = {};  // called with the message of a handler's exception
};

}  // namespace lfm2::http
