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
    : shared_(std::move(shared)), client_(std::move(client)), wake_(std::move(wake)), unsent_(shared_->unsent) {}

void Exchange::notify() {
  if (notified_ || !wake_) return;
  notified_ = true;
  wake_();
}

bool Exchange::queue(std::string_view text) {
  if (unsent_.grow(text.size())) {
    outbox_ += text;
    return true;
  }
  broken_ = true;
  return false;
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
  queue(text);
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
  return fits && !broken_;
}

bool Exchange::begin_stream(int status, std::string_view content_type, const Fields& headers) {
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kWaiting && !has_no_body(status), "a stream that begins after an answer, or without a body");
  chunked_ = !client_.http_1_0;
  keep_alive_ = client_.keep_alive && chunked_ && !shared_->draining;
  const Fields all = with_own(headers);
  const std::string text = head_text({.status = status,
                                      .content_type = content_type,
                                      .headers = all,
                                      .request_id = client_.request_id,
                                      .chunked = chunked_,
                                      .keep_alive = keep_alive_,
                                      .http_1_0 = client_.http_1_0});
  status_ = status;
  state_ = State::kStreaming;
  queue(text);
  notify();
  return !broken_;
}

bool Exchange::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kStreaming, "a piece of a stream that has not begun, or has ended");
  if (text.empty() || client_.is_head) return true;
  const Limits& limits = shared_->limits;
  const bool piles_up = unsent_.bytes() > kHead && unsent_.bytes() + text.size() > limits.max_unsent_bytes;
  if (piles_up || text.size() > limits.max_answer_bytes) {
    broken_ = true;
  } else if (chunked_) {
    std::string chunk;
    append_chunk(chunk, text);
    queue(chunk);
  } else {
    queue(text);
  }
  notify();
  return !broken_;
}

bool Exchange::end() {
  std::function<void(Gone)> ended;
  const std::lock_guard lock(mutex_);
  if (!wanted()) return false;
  expect(state_ == State::kStreaming, "the end of a stream that has not begun, or has ended");
  state_ = State::kEnded;
  if (chunked_ && !client_.is_head) queue(kLastChunk);
  ended.swap(callback_);
  notify();
  return !broken_;
}

bool Exchange::behind() const {
  const std::lock_guard lock(mutex_);
  return unsent_.bytes() > shared_->limits.behind_bytes;
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
    broken_ = true;
  ended.swap(callback_);
  notify();
}

Exchange::Progress Exchange::progress() {
  const std::lock_guard lock(mutex_);
  notified_ = false;
  return {.ended = state_ == State::kEnded,
          .broken = broken_,
          .keep_alive = keep_alive_,
          .any_unsent = unsent_.bytes() > 0,
          .status = status_};
}

std::string Exchange::pop() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outbox_, {});
}

void Exchange::sent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  unsent_.shrink(bytes);
}

void Exchange::take_over(const Response& answer, Gone reason) {
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || !wanted()) return;
    if (state_ == State::kWaiting)
      queue_answer(answer);
    else
      broken_ = true;
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
    outbox_ = {};
    unsent_ = {};
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
