// One open HTTP request of the Api: receives the tokens of its samples and sends the answer as soon as possible.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/response_builder.h"
#include "serve/http/event_stream.h"
#include "serve/http/message.h"
#include "serve/http/responder.h"
#include "serve/live_requests.h"

namespace lfm2::serve {

// Used by one thread at a time.
class PendingResponse {
 public:
  using Clock = std::chrono::steady_clock;
  // The samples have the numbers `first_sample` and following.
  PendingResponse(std::unique_ptr<ResponseBuilder> builder, int32_t first_sample, int32_t samples,
                  http::Responder responder, Clock::time_point deadline)
      : first_sample_(first_sample),
        samples_(samples),
        deadline_(deadline),
        builder_(std::move(builder)),
        responder_(std::move(responder)) {}

  // Adds a token of one of the samples. Returns false if the answer is no longer wanted.
  bool add(const Drawn& drawn) {
    if (drawn.replica != replica_) responder_.note_replica(replica_ = drawn.replica);
    const auto index = static_cast<size_t>(drawn.sample - first_sample_);
    builder_->add(index, drawn.token, drawn.cached);
    // Text for a slow client is collected until the client has read enough, or until the last token. One event per
    // token needs many times the bytes of the text, and a client that stalls for a second would be disconnected.
    return (!builder_->streams() || send(builder_->events(index, responder_.behind()))) && !responder_.gone();
  }
  bool done() const { return builder_->done(); }    // all samples have ended
  bool large() const { return builder_->large(); }  // finish() takes long enough to delay other answers
  // Sends the rest of an answer that is done. Returns false if the client gets an error instead, or is gone.
  bool finish() {
    if (builder_->streams()) return send(builder_->last_events()) && responder_.end();
    return responder_.answer({.content_type = "application/json", .body = builder_->body()});
  }
  // Ends the answer with an error; a stream gets it as an event.
  void fail(int status, std::string_view message) {
    if (!began_)
      responder_.answer(http::error_response(status, message));
    else if (send(builder_->error_events(status, message)))
      responder_.end();
  }

  bool gone() const { return responder_.gone(); }
  int32_t first_sample() const { return first_sample_; }
  int32_t samples() const { return samples_; }
  Clock::time_point deadline() const { return deadline_; }
  Clock::time_point begin() const { return begin_; }

 private:
  bool send(const std::vector<StreamEvent>& events) {
    if (!events.empty() && !std::exchange(began_, true) &&
        !responder_.begin_stream(200, http::kEventStream, {{"Cache-Control", "no-cache"}}))
      return false;
    for (const StreamEvent& event : events)
      if (!responder_.write(http::event_text(event.data, event.name))) return false;
    return true;
  }

  const int32_t first_sample_, samples_;
  const Clock::time_point begin_ = Clock::now(), deadline_;
  const std::unique_ptr<ResponseBuilder> builder_;
  const http::Responder responder_;
  bool began_ = false;    // whether a stream has begun
  int32_t replica_ = -1;  // that drew the newest token
};

}  // namespace lfm2::serve
