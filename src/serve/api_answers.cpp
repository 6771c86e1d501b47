// The writing half of the Api: drawn tokens become answers, on its two writing threads.
#include <fmt/format.h>

#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "serve/api.h"

namespace lfm2::serve {

namespace {

// How often the writer checks for disconnected clients and expired times.
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

int Api::status_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own != nullptr && own->code() == ExitCode::kData ? 400 : 500;
}

std::string Api::words_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "not enough memory" : error.what();
}

void Api::write_answers() {
  for (bool last = false; !last;) {
    {
      const std::lock_guard lock(mutex_);
      last = open_.writing_ends;
    }
    hand_out(live_.wait_for_tokens(last ? std::chrono::milliseconds(0) : kLook));
    drop_gone();
    end_late();
  }
  const std::lock_guard lock(mutex_);
  for (auto& [first, response] : open_.responses) {
    ++metrics_.requests_failed;
    response->fail(503, "the server is ending");
  }
  open_.responses.clear();
}

std::shared_ptr<PendingResponse> Api::find(int32_t sample) {
  const std::lock_guard lock(mutex_);
  const auto next = open_.responses.upper_bound(sample);
  if (next == open_.responses.begin()) return nullptr;
  const auto& [first, response] = *std::prev(next);
  return sample < first + response->samples() ? response : nullptr;
}

void Api::forget(int32_t first_sample) {
  std::shared_ptr<PendingResponse> forgotten;  // its responder may call back: not under the lock
  const std::lock_guard lock(mutex_);
  if (const auto found = open_.responses.find(first_sample); found != open_.responses.end()) {
    forgotten = std::move(found->second);
    open_.responses.erase(found);
  }
}

// Ends an answer whose samples have not ended: with an error, or with status 0 if the client is gone.
void Api::break_off(PendingResponse& response, int status, std::string_view why) {
  ++(status == 0 ? metrics_.requests_aborted : metrics_.requests_failed);
  for (int32_t i = 0; i < response.samples(); ++i) live_.cancel(response.first_sample() + i);
  if (status != 0) response.fail(status, why);
  forget(response.first_sample());
}

void Api::hand_out(const std::vector<Drawn>& tokens) {
  for (const Drawn& one : tokens) {
    if (workers_.batches->drawn(one)) continue;
    const std::shared_ptr<PendingResponse> response = find(one.sample);
    if (response == nullptr) continue;
    bool wanted = false;
    try {
      if (one.token.ends == FinishReason::kError)
        throw Error(ExitCode::kSoftware, one.token.error.empty() ? kNotFiniteError : one.token.error);
      wanted = response->add(one);
    } catch (const std::exception& error) {
      break_off(*response, status_of(error), words_of(error));
      continue;
    }
    if (response->done()) {
      forget(response->first_sample());
      if (response->large()) {
        const std::lock_guard lock(mutex_);
        open_.large.push_back(response);
        any_large_.notify_one();
      } else {
        finish(*response);
      }
    } else if (!wanted) {
      break_off(*response, 0, "");
    }
  }
}

void Api::finish(PendingResponse& response) {
  try {
    if (!response.finish()) {
      ++(response.gone() ? metrics_.requests_aborted : metrics_.requests_failed);
      return;
    }
    ++metrics_.requests_completed;
    metrics_.request_seconds.observe(std::chrono::duration<double>(Clock::now() - response.begin()).count());
  } catch (const std::exception& error) {  // as no memory for its text
    ++metrics_.requests_failed;
    response.fail(500, words_of(error));
  }
}

void Api::write_large_answers() {
  while (true) {
    std::unique_lock lock(mutex_);
    any_large_.wait(lock, [&] { return open_.large_end || !open_.large.empty(); });
    if (open_.large.empty()) return;
    const std::shared_ptr<PendingResponse> response = std::move(open_.large.front());
    open_.large.pop_front();
    lock.unlock();
    finish(*response);
  }
}

void Api::drop_gone() {
  std::vector<int32_t> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(open_.gone);
  }
  for (const int32_t first : gone) {
    const std::shared_ptr<PendingResponse> response = find(first);
    if (response != nullptr && response->first_sample() == first) break_off(*response, 0, "");
  }
}

void Api::end_late() {
  std::vector<std::shared_ptr<PendingResponse>> late;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    for (const auto& [first, response] : open_.responses)
      if (response->deadline() <= now) late.push_back(response);
  }
  for (const std::shared_ptr<PendingResponse>& response : late)
    break_off(*response, 504, fmt::format("no end after {} s", settings_.request_timeout.count()));
}

}  // namespace lfm2::serve
