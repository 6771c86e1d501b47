// The life of a connection: idle, reading, answering, and idle again or lingering until the client has closed too.
#include "serve/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "serve/http/response_head.h"

namespace lfm2::http {

namespace {

constexpr size_t kMaxIdBytes = 64;

// The number of bytes of empty lines before a request, which old clients send after a body.
size_t empty_lines(std::string_view text) {
  size_t bytes = 0;
  while (text.substr(bytes).starts_with("\r\n")) bytes += 2;
  return bytes;
}

Response draining_answer() { return error_response(503, "The server is shutting down."); }

}  // namespace

Connection::Connection(std::shared_ptr<Shared> shared, const Service& service, std::string peer,
                       std::function<void()> wake, Time now)
    : shared_(std::move(shared)),
      service_(service),
      wake_(std::move(wake)),
      deadline_(now + shared_->limits.read_time),
      record_(std::move(peer)) {}

Connection::~Connection() { close(Gone::kStopped); }

void Connection::received(std::string_view bytes, Time now) {
  if (closed() || lingers() || discards_) return;
  input_ += bytes;
  advance(now);
}

void Connection::advance(Time now) {
  while (state_ == State::kIdle || state_ == State::kReading)
    if (!read_some(now)) break;
}

bool Connection::read_some(Time now) {
  if (state_ == State::kIdle) {
    input_.erase(0, empty_lines(input_));
    if (input_.empty() || input_ == "\r") return false;
    state_ = State::kReading;
    deadline_ = now + shared_->limits.read_time;
    record_.begin(now);
    parser_ = std::make_unique<RequestParser>(shared_->limits, shared_->bodies);
  }
  const RequestParser::Result result = parser_->put(input_);
  input_.erase(0, result.used);
  switch (result.step) {
    case RequestParser::Step::kNeedMore:
      return false;
    case RequestParser::Step::kHead:
      head_read(now);
      return state_ == State::kReading;
    case RequestParser::Step::kComplete:
      start_handler(now);
      return false;
    case RequestParser::Step::kRefused:
      answer_and_close(parser_->refusal(), now);
      return false;
  }
  return false;
}

void Connection::name_request() {
  const Request& request = parser_->request();
  const std::string* id = request.headers.find("X-Request-Id");
  record_.name(request.method, request.path,
               id != nullptr && id->size() <= kMaxIdBytes && is_visible(*id)
                   ? *id
                   : fmt::format("{}-{}", shared_->id_prefix, ++shared_->requests));
}

void Connection::head_read(Time now) {
  name_request();
  Request& request = parser_->request();
  request.peer = record_.get().peer;
  request.id = record_.get().id;
  std::optional<Response> answer;
  if (shared_->draining)
    answer = draining_answer();
  else if (service_.admit)
    answer = service_.admit(request);
  if (answer && parser_->has_body()) {
    answer_and_close(*answer, now);
  } else if (answer) {
    begin_exchange(parser_->keep_alive(), now);
    exchange_->answer(*answer);
    settle(now);
  } else if (parser_->has_body() && parser_->expects_continue() && input_.empty()) {
    output_.add_interim(kContinue);
  }
}

void Connection::start_handler(Time now) {
  begin_exchange(parser_->keep_alive(), now);
  Request request = std::move(parser_->request());
  parser_.reset();
  try {
    service_.handle(std::move(request), Responder(exchange_));
  } catch (const std::exception& error) {  // its Responder has answered
    if (service_.report) service_.report(fmt::format("request {}: {}", record_.get().id, error.what()));
  }
  settle(now);
}

void Connection::begin_exchange(bool keep_alive, Time now) {
  state_ = State::kAnswering;
  deadline_ = now + shared_->limits.answer_time;
  if (record_.get().id.empty()) name_request();
  Fields fields = service_.fields ? service_.fields(parser_->request()) : Fields();
  exchange_ = std::make_shared<Exchange>(shared_,
                                         Exchange::Client{.request_id = record_.get().id,
                                                          .is_head = record_.get().method == "HEAD",
                                                          .http_1_0 = parser_->request().http_1_0,
                                                          .keep_alive = keep_alive,
                                                          .fields = fields},
                                         wake_);
}

void Connection::answer_and_close(const Response& answer, Time now) {
  discards_ = true;
  input_ = {};
  begin_exchange(false, now);
  exchange_->answer(answer);
  parser_.reset();  // the answer may be its refusal
  settle(now);
}

// Processes the handler's progress and the bytes that were sent.
void Connection::settle(Time now) {
  if (exchange_ == nullptr) return;
  const Exchange::Progress progress = exchange_->progress();
  record_.status(progress.status);
  if (progress.broken) return close(Gone::kSlow);
  if (!progress.ended) return;
  if (!progress.any_unsent) return finish(progress.keep_alive, now);
  if (state_ == State::kSending) return;
  state_ = State::kSending;
  deadline_ = now + shared_->limits.send_time;
}

void Connection::finish(bool keep_alive, Time now) {
  record_.end(exchange_->notes(), true, now, service_.log);
  exchange_->leave(Gone::kLeft);
  exchange_.reset();
  parser_.reset();
  if (hung_up_) return close(Gone::kLeft);
  if (keep_alive && !discards_ && !shared_->draining) {
    state_ = State::kIdle;
    deadline_ = now + shared_->limits.idle_time;
    if (input_.empty()) input_ = {};  // with its memory
    advance(now);
  } else {
    state_ = State::kLingering;
    deadline_ = now + shared_->limits.linger_time;
    input_ = {};
  }
}

void Connection::close(Gone reason) {
  if (closed()) return;
  state_ = State::kClosed;
  if (exchange_ != nullptr) {
    const std::shared_ptr<Exchange> exchange = std::move(exchange_);
    record_.status(exchange->progress().status);
    const Notes notes = exchange->notes();
    exchange->leave(reason);
    record_.end(notes, false, std::chrono::steady_clock::now(), service_.log);
  }
  parser_.reset();
  input_ = {};
  output_ = {};
}

void Connection::hung_up(Time now) {
  hung_up_ = true;
  if (exchange_ == nullptr || !exchange_->progress().ended) return close(Gone::kLeft);
  settle(now);
}

void Connection::woken(Time now) {
  settle(now);
  if (!shared_->draining) return;
  if (state_ == State::kIdle) close(Gone::kStopped);
  if (state_ == State::kReading) answer_and_close(draining_answer(), now);
}

void Connection::deadline_passed(Time now) {
  switch (state_) {
    case State::kReading:
      return answer_and_close(error_response(408, "The request did not arrive in time."), now);
    case State::kSending:
      return close(Gone::kSlow);
    case State::kAnswering:
      exchange_->take_over(error_response(504, "The answer took longer than the server allows."), Gone::kTime);
      return settle(now);
    case State::kIdle:
    case State::kLingering:
      return close(Gone::kTime);
    case State::kClosed:
      return;
  }
}

std::string_view Connection::unsent() {
  if (closed()) return {};
  if (output_.empty()) output_.refill(exchange_ != nullptr ? exchange_->pop() : std::string());
  return output_.unsent();
}

void Connection::sent(size_t bytes, Time now) {
  const size_t answered = output_.sent(bytes);
  if (exchange_ == nullptr) return;
  record_.sent(answered);
  exchange_->sent(answered);
  settle(now);
}

bool Connection::wants_input() const {
  if (closed() || hung_up_) return false;
  return !answers() || discards_ || input_.size() < shared_->limits.max_header_bytes;
}

}  // namespace lfm2::http
