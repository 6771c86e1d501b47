// Queues the bytes of an answer for the connection, within the limits, and notifies the handler when its client is
// gone.
#include "serve/http/exchange.h"

#include <utility>

#include "base/error.h"
#include "serve/http/response_head.h"

namespace lfm2::http {

namespace {

constexpr size_t kHead = 4096;  // a client with at most this unsent is not slow: it is the stream's head

// Statuses whose answers have neither a body nor a length.
bool has_no_body(int status) { return status == 204 || status == 304; }

}  // namespace

Exchange::Exchange(std::shared_ptr<const Shared> shared, Client client, std::function<void()> wake)
    : shared_(std::move(shared)), client_(std::move(client)), wake_(std::move(wake)), outbox_(shared_->unsent) {}

void Exchange::notify() {
  if (notified_ || !wake_) return;
  notified_ = true;
  wake_();
}

Fields Exchange::with_own(const Fields& headers) const {
  Fields all = headers;
  all.insert(all.end(), client_.fields.begin(), client_.fields.end());
  return all;
}

void Exchange::note_seed(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  notes_.seed = seed;
}

void Exchange::note_replica(int32_t replica) {
  const std::lock_guard lock(mutex_);
  notes_.replicas.insert(replica);
}

Notes Exchange::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

void Exchange::queue_answer(const Response& answer) {
  const bool no_body = has_no_body(answer.status);
  keep_alive_ = client_.keep_alive && !shared_->draining;
  const Fields headers = with_own(answer.headers);
  std::string text = head_text({.status = answer.status,
                                .content_type = answer.content_type,
                                .headers = headers,
                                .request_id = client_.request_id,
                                .length = no_body ? std::nullopt : std::optional(answer.body.size()),
                                .keep_alive = keep_alive_,
                                .http_1_0 = client_.http_1_0});
  if (!no_body && !client_.is_head) text += answer.body;
  status_ = answer.status;
  state_ = State::kEnded;
  outbox_.add(text);
}

bool Exchange::answer(const Response& answer) {
  std::function<void(Gone)> ended;
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kWaiting, "a request was answered twice");
  const bool fits = answer.body.size() <= shared_->limits.max_answer_bytes;
  queue_answer(
      fits ? answer
           : error_response(500, "The answer is larger than the server allows; ask for less, or for a stream."));
  ended.swap(callback_);
  notify();
  return fits && !outbox_.broken();
}

bool Exchange::begin_stream(int status, std::string_view content_type, const Fields& headers) {
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kWaiting && !has_no_body(status), "a stream that begins after an answer, or without a body");
  keep_alive_ = client_.keep_alive && streams_chunks() && !shared_->draining;
  const Fields all = with_own(headers);
  const std::string text = head_text({.status = status,
                                      .content_type = content_type,
                                      .headers = all,
                                      .request_id = client_.request_id,
                                      .chunked = streams_chunks(),
                                      .keep_alive = keep_alive_,
                                      .http_1_0 = client_.http_1_0});
  status_ = status;
  state_ = State::kStreaming;
  outbox_.add(text);
  notify();
  return !outbox_.broken();
}

bool Exchange::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kStreaming, "a piece of a stream that has not begun, or has ended");
  if (text.empty() || client_.is_head) return true;
  const Limits& limits = shared_->limits;
  const bool piles_up = outbox_.unsent() > kHead && outbox_.unsent() + text.size() > limits.max_unsent_bytes;
  if (piles_up || text.size() > limits.max_answer_bytes) {
    outbox_.break_off();
  } else if (streams_chunks()) {
    std::string chunk;
    append_chunk(chunk, text);
    outbox_.add(chunk);
  } else {
    outbox_.add(text);
  }
  notify();
  return !outbox_.broken();
}

bool Exchange::end() {
  std::function<void(Gone)> ended;
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kStreaming, "the end of a stream that has not begun, or has ended");
  state_ = State::kEnded;
  if (streams_chunks() && !client_.is_head) outbox_.add(kLastChunk);
  ended.swap(callback_);
  notify();
  return !outbox_.broken();
}

bool Exchange::behind() const {
  const std::lock_guard lock(mutex_);
  return outbox_.unsent() > shared_->limits.behind_bytes;
}

void Exchange::on_gone(std::function<void(Gone)> callback) {
  std::optional<Gone> gone;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded && !gone_) return;
    gone = gone_;
    if (!gone) callback_.swap(callback);
  }
  if (gone && callback) callback(*gone);
}

bool Exchange::gone() const {
  const std::lock_guard lock(mutex_);
  return !wanted();
}

void Exchange::abandon() {
  std::function<void(Gone)> ended;
  const std::lock_guard lock(mutex_);
  if (!wanted() || state_ == State::kEnded) return;
  if (state_ == State::kWaiting)
    queue_answer(error_response(500, "The server failed to answer this request."));
  else
    outbox_.break_off();
  ended.swap(callback_);
  notify();
}

Exchange::Progress Exchange::progress() {
  const std::lock_guard lock(mutex_);
  notified_ = false;
  return {.ended = state_ == State::kEnded,
          .broken = outbox_.broken(),
          .keep_alive = keep_alive_,
          .any_unsent = outbox_.unsent() > 0,
          .status = status_};
}

std::string Exchange::pop() {
  const std::lock_guard lock(mutex_);
  return outbox_.pop();
}

void Exchange::sent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  outbox_.sent(bytes);
}

void Exchange::take_over(const Response& answer, Gone reason) {
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || !wanted()) return;
    if (state_ == State::kWaiting)
      queue_answer(answer);
    else
      outbox_.break_off();
    gone_ = reason;
    callback.swap(callback_);
  }
  if (callback) callback(reason);
}

void Exchange::leave(Gone reason) {
  std::function<void(Gone)> callback;
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    wake.swap(wake_);
    callback.swap(callback_);
    outbox_.drop();
    if (state_ == State::kEnded || gone_) return;
    gone_ = reason;
  }
  if (callback) callback(reason);
}

// Tells the exchange when the last copy of a Responder is gone.
struct Responder::Handle {
  explicit Handle(std::shared_ptr<Exchange> of) : exchange(std::move(of)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { exchange->abandon(); }

  const std::shared_ptr<Exchange> exchange;
};

Responder::Responder(std::shared_ptr<Exchange> exchange) : handle_(std::make_shared<Handle>(std::move(exchange))) {}

bool Responder::answer(const Response& answer) const { return handle_->exchange->answer(answer); }

bool Responder::begin_stream(int status, std::string_view content_type, const Fields& headers) const {
  return handle_->exchange->begin_stream(status, content_type, headers);
}

bool Responder::write(std::string_view text) const { return handle_->exchange->write(text); }

bool Responder::end() const { return handle_->exchange->end(); }

bool Responder::behind() const { return handle_->exchange->behind(); }

void Responder::on_gone(std::function<void(Gone)> callback) const { handle_->exchange->on_gone(std::move(callback)); }

void Responder::note_seed(uint64_t seed) const { handle_->exchange->note_seed(seed); }

void Responder::note_replica(int32_t replica) const { handle_->exchange->note_replica(replica); }

bool Responder::gone() const { return handle_->exchange->gone(); }

}  // namespace lfm2::http
