// What a server is for: the functions that it calls with each request, on its own thread. None of them may block.
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
  // Looks at the head of a request before any of its body is taken, and may rewrite its path for the handler. With an
  // answer, the handler never sees the request.
  std::function<std::optional<Answer>(Request&)> admit = {};
  std::function<Fields(const Request&)> fields = {};  // that every answer to the request has, refusals included
  Handler handle = {};
  std::function<void(const AccessRecord&)> log = {};
  std::function<void(const std::string&)> report = {};  // of a handler that threw: what it said
};

}  // namespace lfm2::http
