// Names that every test of the HTTP transport uses.
#pragma once

#include <chrono>

#include "serve/http/limits.h"
#include "serve/http/message.h"
#include "serve/http/responder.h"

namespace lfm2::test {

using http::Gone;
using http::Limits;
using http::Request;
using http::Responder;
using http::Response;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

}  // namespace lfm2::test
