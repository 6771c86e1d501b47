// Passes the head to Beast as a whole, because versions of Boost differ in what the limit of the head covers and in
// folded lines.
#include "serve/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "serve/http/response_head.h"

namespace lfm2::http {

namespace {

namespace beast = boost::beast::http;
using ErrorCode = boost::beast::error_code;

// Beside the target, a request line has a method and a version.
constexpr size_t kRestOfRequestLine = 64;

// Fields that may occur only once, because two readers of the request could use different values.
bool must_stand_once(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "host", "content-length", "transfer-encoding", "authorization", "origin", "content-type", "expect"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](std::string_view known) { return equal_ignoring_case(known, name); });
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

// Beast calls the functions of this class with each part of the request.
class RequestParser::Beast final : public beast::basic_parser<true> {
 public:
  Beast(const Limits& limits, std::shared_ptr<ByteBudget> bodies) : limits_(limits) {
    request.share = ByteShare(std::move(bodies));
    header_limit(std::numeric_limits<std::uint32_t>::max());  // bounded by RequestParser
    skip(true);                                               // bodies are read by BodyReader
  }

  // The answer to the client for Beast's error, unless one of the functions below has set it.
  void explain(const ErrorCode& error) {
    if (refusal) return;
    if (error == beast::error::bad_version)
      refusal = error_response(505, "Not a request of HTTP/1.0 or HTTP/1.1.");
    else
      refusal = error_response(400, fmt::format("Not a valid HTTP request: {}.", error.message()));
  }

  Request request;
  std::optional<Response> refusal;
  bool expects_continue = false;

 private:
  void refuse(int status, std::string_view message, ErrorCode& error) {
    refusal = error_response(status, message);
    error = beast::error::bad_value;
  }

  void on_request_impl(beast::verb, boost::beast::string_view method, boost::beast::string_view target, int version,
                       ErrorCode& error) override {
    request.method = view(method);
    request.http_1_0 = version == 10;
    std::string_view whole = view(target);
    if (whole.size() > limits_.max_target_bytes)
      return refuse(414, fmt::format("The target is longer than {} bytes.", limits_.max_target_bytes), error);
    if (!is_visible(whole)) return refuse(400, "The target has characters that must be encoded.", error);
    constexpr std::string_view kScheme = "http://";
    if (equal_ignoring_case(whole.substr(0, kScheme.size()), kScheme)) {  // as clients ask proxies
      whole.remove_prefix(kScheme.size());
      const size_t end = std::min(whole.find('/'), whole.size());
      authority_ = whole.substr(0, end);
      whole.remove_prefix(end);
    }
    const size_t question = std::min(whole.find('?'), whole.size());
    request.path = whole.substr(0, question);
    request.query = whole.substr(std::min(question + 1, whole.size()));
    if (!request.path.starts_with('/') && (request.path != "*" || request.method != "OPTIONS"))
      refuse(400, "The target does not begin with \"/\".", error);
  }

  void on_field_impl(beast::field, boost::beast::string_view name, boost::beast::string_view value,
                     ErrorCode& error) override {
    const std::string_view key = view(name), text = view(value);
    if (must_stand_once(key) && request.headers.find(key) != nullptr)
      return refuse(400, fmt::format("The header field {} stands twice.", key), error);
    request.headers.add(key, text);
    if (equal_ignoring_case(key, "transfer-encoding")) {
      if (!equal_ignoring_case(text, "chunked"))
        refuse(501, "The only Transfer-Encoding that is understood is chunked.", error);
      else if (request.http_1_0)
        refuse(400, "HTTP/1.0 has no Transfer-Encoding.", error);
    } else if (equal_ignoring_case(key, "expect") && !request.http_1_0) {
      expects_continue = equal_ignoring_case(text, "100-continue");
      if (!expects_continue) refuse(417, "The only expectation that is understood is 100-continue.", error);
    }
  }

  void on_header_impl(ErrorCode& error) override {
    if (!request.http_1_0 && request.headers.find("host") == nullptr)
      return refuse(400, "The header field Host is missing.", error);
    if (!authority_.empty()) request.headers.set("Host", authority_);
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(boost::beast::string_view bytes, ErrorCode&) override { return bytes.size(); }
  void on_chunk_header_impl(std::uint64_t, boost::beast::string_view, ErrorCode&) override {}
  size_t on_chunk_body_impl(std::uint64_t, boost::beast::string_view bytes, ErrorCode&) override {
    return bytes.size();
  }
  void on_finish_impl(ErrorCode&) override {}
  // Overrides in Boost 1.90 and later.
  void on_trailer_field_impl(beast::field, boost::beast::string_view, boost::beast::string_view, ErrorCode&) {}
  void on_response_impl(int, boost::beast::string_view, int, ErrorCode&) override {}

  const Limits& limits_;
  std::string authority_;  // of an absolute target, which replaces Host
};

RequestParser::RequestParser(const Limits& limits, std::shared_ptr<ByteBudget> bodies)
    : limits_(limits), beast_(std::make_unique<Beast>(limits, std::move(bodies))), body_(limits) {}

RequestParser::~RequestParser() = default;

Request& RequestParser::request() { return beast_->request; }

const Response& RequestParser::refusal() const { return *beast_->refusal; }

bool RequestParser::expects_continue() const { return beast_->expects_continue; }

bool RequestParser::keep_alive() const { return beast_->keep_alive(); }

RequestParser::Result RequestParser::refuse(Response answer) {
  beast_->refusal = std::move(answer);
  return {Step::kRefused, 0};
}

// Searches for the empty line after the head, and refuses bytes that Beast should not see. `used` is the size of the
// complete head. The result does not depend on how the bytes are cut into pieces.
RequestParser::Result RequestParser::find_head(std::string_view bytes) {
  const std::string_view allowed = bytes.substr(0, limits_.max_header_bytes);
  const size_t max_request_line = limits_.max_target_bytes + kRestOfRequestLine;
  const auto too_long_line = [&] {
    return refuse(error_response(414, fmt::format("The target is longer than {} bytes.", limits_.max_target_bytes)));
  };
  while (true) {
    const size_t newline = allowed.find('\n', searched_);
    if (newline == std::string_view::npos) break;
    const size_t length = newline - line_begin_;  // with the carriage return
    if (lines_ == 0 && length > max_request_line) return too_long_line();
    if (length == 0 || allowed[newline - 1] != '\r')
      return refuse(error_response(400, "A line of the head does not end with CR LF."));
    const char first = allowed[line_begin_];
    searched_ = line_begin_ = newline + 1;
    if (length == 1 && lines_ > 0) return {Step::kHead, searched_};
    if (lines_ > 0 && (first == ' ' || first == '\t'))
      return refuse(error_response(400, "A header field continues on a second line."));
    if (++lines_ > limits_.max_fields + 1)
      return refuse(error_response(431, fmt::format("More than {} header fields.", limits_.max_fields)));
  }
  searched_ = allowed.size();
  if (lines_ == 0 && bytes.size() > max_request_line) return too_long_line();
  if (bytes.size() >= limits_.max_header_bytes)
    return refuse(error_response(431, fmt::format("The header is larger than {} bytes.", limits_.max_header_bytes)));
  return {};
}

RequestParser::Result RequestParser::put(std::string_view bytes) {
  if (!head_done_) {
    const Result head = find_head(bytes);
    return head.step == Step::kHead ? read_head(bytes.substr(0, head.used)) : head;
  }
  const size_t used = body_.put(bytes, beast_->request);
  if (body_.refusal()) return refuse(*body_.refusal());
  return {body_.complete() ? Step::kComplete : Step::kNeedMore, used};
}

RequestParser::Result RequestParser::read_head(std::string_view head) {
  ErrorCode error;
  const size_t used = beast_->put(boost::asio::const_buffer(head.data(), head.size()), error);
  if (error) {
    beast_->explain(error);
    return {Step::kRefused, used};
  }
  if (!beast_->is_done() || used != head.size()) return refuse(error_response(400, "Not a valid HTTP request."));
  if (auto refusal = body_.begin(beast_->request.headers)) return refuse(*std::move(refusal));
  head_done_ = true;
  return {Step::kHead, used};
}

}  // namespace lfm2::http
