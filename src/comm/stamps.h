// Stamps record what a rank is doing. The rank writes them to memory that all ranks of its host share; their watchdogs
// read them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

enum class Phase : uint8_t {
  kStart,
  kRead,  // reads inputs and the structure of shards
  kLoad,
  kPrepare,
  kConnect,  // waits until the peer takes part in the start of a channel between GPUs
  kCompute,
  kReceive,  // waits for hidden states from the peer
  kSend,     // waits until the peer has received hidden states
  kStep,     // waits for the peer to announce the next step
  kTokens,   // waits for the peer to draw tokens
  kIdle,     // waits for requests
  kWrite,    // writes results
  kMeet,     // waits for all other ranks at the meeting `label`
  kEnd,
};

// What a rank is doing, and for whom it waits. Ranks are those of the whole job.
struct RankActivity {
  static constexpr int kNobody = -1;

  Phase phase = Phase::kStart;
  int64_t unit = -1;   // number of the micro-batch or step; -1: none
  int32_t piece = -1;  // number of the rank's piece of layers that the unit goes through; -1: the rank has only one
  bool step = false;   // whether `unit` counts steps, not micro-batches
  int peer = kNobody;
  std::string_view label = {};  // name of a meeting; only the first kLabelBytes are kept
  // The limit without progress in this activity; 0: --timeout, for disk access kDiskFactor times that.
  double limit_seconds = 0;
  bool waits() const { return peer != kNobody || phase == Phase::kMeet; }
};

// Text that follows "rank 2": "computes micro-batch 3", "waits for step 5 from rank 1".
std::string to_text(const RankActivity& activity);

// One rank's part of the shared memory. One thread at a time writes stamps; any thread may pulse. A reader may see a
// half-written stamp, which only spoils one line of a report.
class RankStamps {
 public:
  static constexpr size_t kKept = 32;  // number of stamps that are kept, the newest ones
  static constexpr size_t kLabelBytes = 24;

  // A stamp as entries() returns it.
  struct Entry {
    double seconds = 0;  // steady_seconds()
    RankActivity activity;
    std::string label;  // owns the text that activity.label points to
  };

  void start(int rank);                                              // called by the owner before any rank reads
  void enter(const RankActivity& activity);                          // writes a stamp, which counts as progress
  void pulse() { pulses_.fetch_add(1, std::memory_order_relaxed); }  // progress without a stamp
  // A wait polled its condition, which was still false.
  void look() { looks_.fetch_add(1, std::memory_order_relaxed); }
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }  // the process runs

  int rank() const { return rank_.load(std::memory_order_relaxed); }
  int pid() const { return pid_.load(std::memory_order_relaxed); }
  uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  uint64_t progress() const {
    return pulses_.load(std::memory_order_relaxed) + entered_.load(std::memory_order_relaxed);
  }
  RankActivity newest() const;         // its label is left out
  std::vector<Entry> entries() const;  // the oldest first; never empty after start()

 private:
  struct Slot {
    std::atomic<double> seconds, limit;
    std::atomic<int64_t> unit;
    std::atomic<int32_t> piece, peer;
    std::atomic<Phase> phase;
    std::atomic<bool> step;
    std::array<std::atomic<uint64_t>, kLabelBytes / sizeof(uint64_t)> label;
    RankActivity activity() const;  // its label is left out
  };

  std::atomic<int32_t> rank_, pid_;
  std::atomic<uint64_t> entered_, pulses_, looks_, beats_;
  std::array<Slot, kKept> slots_;
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "stamps are shared between processes");

}  // namespace lfm2
