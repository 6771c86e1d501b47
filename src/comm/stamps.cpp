// The ring of a rank's stamps, and activities as text.
#include "comm/stamps.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/backend.h"

namespace lfm2 {

namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
}

std::string to_text(const RankActivity& activity) {
  std::string unit =
      activity.unit < 0 ? "" : fmt::format("{} {}", activity.step ? "step" : "micro-batch", activity.unit);
  if (activity.unit >= 0 && activity.piece >= 0) unit += fmt::format(" (piece {})", activity.piece);
  const std::string of_unit = unit.empty() ? "" : " of " + unit;
  switch (activity.phase) {
    case Phase::kStart:
      return "starts";
    case Phase::kRead:
      return "reads its inputs";
    case Phase::kLoad:
      return "loads weights";
    case Phase::kPrepare:
      return "prepares the run";
    case Phase::kConnect:
      return fmt::format("waits for rank {} to connect", activity.peer);
    case Phase::kCompute:
      return unit.empty() ? "computes" : "computes " + unit;
    case Phase::kReceive:
      return fmt::format("waits for {} from rank {}", unit, activity.peer);
    case Phase::kSend:
      return fmt::format("waits until rank {} takes {}", activity.peer, unit);
    case Phase::kStep:
      return fmt::format("waits for rank {} to announce {}", activity.peer, unit);
    case Phase::kTokens:
      return fmt::format("waits for tokens from rank {} to make {}", activity.peer, unit);
    case Phase::kIdle:
      return "has nothing to do";
    case Phase::kWrite:
      return fmt::format("writes results{}", of_unit);
    case Phase::kMeet:
      return fmt::format("waits for all ranks at \"{}\"", activity.label);
    case Phase::kEnd:
      return "ends";
  }
  return "?";
}

void RankStamps::start(int rank) {
  rank_.store(rank, kRelaxed);
  pid_.store(getpid(), kRelaxed);
  for (std::atomic<uint64_t>* count : {&entered_, &pulses_, &looks_, &beats_}) count->store(0, kRelaxed);
  enter({.phase = Phase::kStart});
}

void RankStamps::enter(const RankActivity& activity) {
  const uint64_t number = entered_.load(kRelaxed);
  Slot& slot = slots_[number % kKept];
  std::array<uint64_t, kLabelBytes / sizeof(uint64_t)> label{};
  activity.label.copy(reinterpret_cast<char*>(label.data()), kLabelBytes);
  for (size_t i = 0; i < label.size(); ++i) slot.label[i].store(label[i], kRelaxed);
  slot.seconds.store(steady_seconds(), kRelaxed);
  slot.limit.store(activity.limit_seconds, kRelaxed);
  slot.unit.store(activity.unit, kRelaxed);
  slot.piece.store(activity.piece, kRelaxed);
  slot.peer.store(activity.peer, kRelaxed);
  slot.phase.store(activity.phase, kRelaxed);
  slot.step.store(activity.step, kRelaxed);
  entered_.store(number + 1, std::memory_order_release);
}

RankActivity RankStamps::Slot::activity() const {
  return {.phase = phase.load(kRelaxed),
          .unit = unit.load(kRelaxed),
          .piece = piece.load(kRelaxed),
          .step = step.load(kRelaxed),
          .peer = peer.load(kRelaxed),
          .label = {},
          .limit_seconds = limit.load(kRelaxed)};
}

RankActivity RankStamps::newest() const {
  return slots_[(entered_.load(std::memory_order_acquire) - 1) % kKept].activity();
}

std::vector<RankStamps::Entry> RankStamps::entries() const {
  const uint64_t end = entered_.load(std::memory_order_acquire);
  std::vector<Entry> entries;
  for (uint64_t number = end - std::min<uint64_t>(end, kKept); number < end; ++number) {
    const Slot& slot = slots_[number % kKept];
    std::array<uint64_t, kLabelBytes / sizeof(uint64_t)> words{};
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot.label[i].load(kRelaxed);
    std::array<char, kLabelBytes + 1> text{};
    std::memcpy(text.data(), words.data(), kLabelBytes);
    entries.push_back({.seconds = slot.seconds.load(kRelaxed), .activity = slot.activity(), .label = text.data()});
  }
  // Set only now, when the entries no longer move.
  for (Entry& entry : entries) entry.activity.label = entry.label;
  return entries;
}

}  // namespace lfm2
