// Hands everything on to the exchange, and tells it when the last copy is gone.
#include "serve/http/responder.h"

#include <utility>

#include "serve/http/exchange.h"

namespace lfm2::http {

struct Responder::Handle {
  explicit Handle(std::shared_ptr<Exchange> of) : exchange(std::move(of)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { exchange->abandon(); }

  const std::shared_ptr<Exchange> exchange;
};

Responder::Responder(std::shared_ptr<Exchange> exchange) : handle_(std::make_shared<Handle>(std::move(exchange))) {}

bool Responder::answer(const Answer& answer) const { return handle_->exchange->answer(answer); }

bool Responder::begin_stream(int status, std::string_view content_type, const Fields& headers) const {
  return handle_->exchange->begin_stream(status, content_type, headers);
}

bool Responder::write(std::string_view text) const { return handle_->exchange->write(text); }

bool Responder::end() const { return handle_->exchange->end(); }

bool Responder::behind() const { return handle_->exchange->behind(); }

void Responder::on_gone(std::function<void(Gone)> callback) const { handle_->exchange->on_gone(std::move(callback)); }

void Responder::note_seed(uint64_t seed) const { handle_->exchange->note_seed(seed); }

bool Responder::gone() const { return handle_->exchange->gone(); }

}  // namespace lfm2::http
