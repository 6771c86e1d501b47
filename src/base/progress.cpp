// Draws lines such as "split  [#########           ]  45 %  7.5 GB  1.21 GB/s  0:07 left".
#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace lfm2 {

namespace {

constexpr int kBarWidth = 24;
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

std::string amount_text(double amount, Progress::Unit unit) {
  switch (unit) {
    case Progress::Unit::kBytes:
      return amount < 1e9 ? fmt::format("{:.0f} MB", amount / 1e6) : fmt::format("{:.2f} GB", amount / 1e9);
    case Progress::Unit::kSamples:
      return amount < 100 ? fmt::format("{:.1f} samples", amount) : fmt::format("{:.0f} samples", amount);
    case Progress::Unit::kTokens:
      return fmt::format("{:.0f} tokens", amount);
  }
  return {};
}

}  // namespace

Progress::Progress(std::string title, uint64_t total, Unit unit, ProgressMode mode, std::function<void()> pulse)
    : title_(std::move(title)),
      total_(total),
      unit_(unit),
      shown_(mode == ProgressMode::kOn || (mode == ProgressMode::kAuto && ::isatty(STDERR_FILENO) == 1)),
      pulse_(std::move(pulse)),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

Progress::~Progress() {
  if (!shown_) return;
  draw(std::chrono::steady_clock::now());
  (void)!::write(STDERR_FILENO, "\n", 1);
}

void Progress::add(uint64_t amount) {
  if (pulse_) pulse_();
  done_ = std::min(done_ + amount, total_);
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - drawn_ >= kRedrawInterval) draw(now);
}

void Progress::draw(std::chrono::steady_clock::time_point now) {
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = total_ == 0 ? 1.0 : static_cast<double>(done_) / static_cast<double>(total_);
  const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0.0;
  const auto left = static_cast<int64_t>(rate > 0 ? static_cast<double>(total_ - done_) / rate : 0.0);
  const int filled = static_cast<int>(share * kBarWidth);
  const std::string line = fmt::format(
      "\r{}  [{:#<{}}{: <{}}] {:3.0f} %  {}  {}/s  {}:{:02} left ", title_, "", filled, "", kBarWidth - filled,
      share * 100, amount_text(static_cast<double>(done_), unit_), amount_text(rate, unit_), left / 60, left % 60);
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lfm2
