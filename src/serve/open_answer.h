// One HTTP request that is being answered, as the Api knows it: what was computed for its samples goes in, and the
// answer leaves as soon as it can.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "serve/http/message.h"
#include "serve/http/responder.h"
#include "serve/live_requests.h"

namespace lfm2::serve {

// Numbers of an answer, such as log-probabilities: writing more than these as text takes some 10 ms.
constexpr int64_t kLargeAnswer = 1 << 15;

// Used by one thread at a time.
class OpenAnswer {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~OpenAnswer() = default;

  // A token of one of the samples. False where nobody wants the answer any more.
  virtual bool take(const Drawn& drawn) = 0;
  // All of the samples are there.
  virtual bool done() const = 0;
  // Sends what of an answer that is done was not sent yet. False where the client gets something else: an error, or
  // nothing, as it is gone.
  virtual bool finish() = 0;
  // Its finish() takes long enough to hold up the answers of others.
  virtual bool large() const = 0;
  // Ends the answer with an error.
  virtual void fail(int status, std::string_view message) { responder_.answer(http::error_answer(status, message)); }

  bool gone() const { return responder_.gone(); }

  // The samples have the numbers `first_sample` and following.
  int32_t first_sample() const { return first_sample_; }
  int32_t samples() const { return samples_; }
  Clock::time_point deadline() const { return deadline_; }
  Clock::time_point begin() const { return begin_; }

 protected:
  OpenAnswer(int32_t first_sample, int32_t samples, http::Responder responder, Clock::time_point deadline)
      : first_sample_(first_sample), samples_(samples), responder_(std::move(responder)), deadline_(deadline) {}

  const int32_t first_sample_, samples_;
  const http::Responder responder_;

 private:
  const Clock::time_point begin_ = Clock::now(), deadline_;
};

}  // namespace lfm2::serve
