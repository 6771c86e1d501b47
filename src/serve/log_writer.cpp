// The thread holds the shared state, not the LogWriter, because a thread that hangs in a write is abandoned.
#include "serve/log_writer.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace lfm2::serve {

std::string without_controls(const std::string& json) {
  std::string text;
  for (size_t at = 0; at < json.size();) {
    const auto byte = [&](size_t i) { return at + i < json.size() ? static_cast<unsigned char>(json[at + i]) : 0u; };
    const unsigned two = (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f),
                   three = (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    const bool c1 = byte(0) == 0xc2 && two < 0xa0, turns = byte(0) == 0xe2 && ((three >= 0x2028 && three <= 0x202e) ||
                                                                               (three >= 0x2066 && three <= 0x2069));
    if (byte(0) == 0x7f || c1 || turns) {
      text += fmt::format("\\u{:04x}", turns ? three : c1 ? two : 0x7f);
      at += turns ? 3 : c1 ? 2 : 1;
    } else {
      text += json[at++];
    }
  }
  return text;
}

namespace {

constexpr std::chrono::seconds kFarewell{1};

// Returns false if the rest cannot be written.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<size_t>(written));
    else if (errno == EAGAIN)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    else if (errno != EINTR)
      return false;
  }
  return true;
}

}  // namespace

struct LogWriter::State {
  State(int of_file, size_t most) : descriptor(of_file), max_bytes(most) {}
  void run();

  const int descriptor;
  const size_t max_bytes;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex:
  std::string waiting;
  uint64_t dropped = 0, said = 0;  // dropped lines, and how many of them the log has reported
  bool ends = false, done = false;
};

void LogWriter::State::run() {
  sigset_t pipe{};  // if the reader is gone, write() returns an error instead of raising a signal
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ends || !waiting.empty(); });
    if (waiting.empty()) break;
    std::string text = std::exchange(waiting, {});
    if (const uint64_t lost = dropped - std::exchange(said, dropped); lost > 0)
      text += fmt::format("{{\"dropped_lines\":{}}}\n", lost);
    lock.unlock();
    const bool written = write_all(descriptor, text);
    lock.lock();
    if (!written) dropped += static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  }
  done = true;
  changed.notify_all();
}

LogWriter::LogWriter(int descriptor, size_t max_bytes) : state_(std::make_shared<State>(descriptor, max_bytes)) {
  std::thread([state = state_] { state->run(); }).detach();
}

LogWriter::~LogWriter() {
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kFarewell, [this] { return state_->done; });
}

void LogWriter::write(std::string_view line) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() + line.size() + 1 > state_->max_bytes) {
    ++state_->dropped;
    return;
  }
  if (state_->waiting.empty()) state_->changed.notify_all();
  state_->waiting.append(line) += '\n';
}

uint64_t LogWriter::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

}  // namespace lfm2::serve
