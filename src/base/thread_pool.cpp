// The caller opens the gate to a task. Workers join, process the items of their shares, steal from other shares, and
// leave. The caller then closes the gate and waits for the workers that are still inside. Workers sleep on the task's
// number (a futex). With a mutex they would wake one by one, which takes longer than a product of one row.
#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace lfm2 {

namespace {

// How long threads poll: longer than the work of one thread between the operators of a layer, and shorter than a time
// slice.
constexpr auto kEagerTime = std::chrono::microseconds(200);
constexpr int kLooks = 64;  // polls between two reads of the clock
constexpr uint32_t kOpen = uint32_t{1} << 31;

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Polls until there() is true. Returns false after kEagerTime, or at once if the pool is not eager.
template <class F>
bool ThreadPool::look_for(F&& there) const {
  if (there()) return true;
  if (!eager_) return false;
  for (const auto end = std::chrono::steady_clock::now() + kEagerTime; std::chrono::steady_clock::now() < end;)
    for (int look = 0; look < kLooks; ++look) {
      if (there()) return true;
      pause_processor();
    }
  return false;
}

ThreadPool::ThreadPool(int threads, bool eager) : shares_(static_cast<size_t>(std::max(threads, 1))), eager_(eager) {
  expect(threads >= 1, "ThreadPool: at least one thread");
  try {
    for (size_t worker = 1; worker < static_cast<size_t>(threads); ++worker)
      workers_.emplace_back([this, worker] { worker_loop(worker); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("thread {} of {} cannot be created: {}: expected fewer --threads, or room for more (ulimit -u)",
                    workers_.size() + 2, threads, error.code().message()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  ++generation_;
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(size_t count, Task task) {
  if (workers_.empty() || count <= 1) {
    for (size_t first = 0; first < count; first += task.most) {
      shares_[0].left.store(first, std::memory_order_relaxed);
      task.call(task.context, first, std::min(first + task.most, count), 0);
    }
    return;
  }
  expect((gate_ & kOpen) == 0, "ThreadPool: parallel_for inside parallel_for");
  expect(count < kOneEnd, "ThreadPool: too many items");
  task_ = task;
  for (size_t worker = 0; worker < shares_.size(); ++worker)
    shares_[worker].left.store(share_begin(count, worker) * kOneFirst + share_begin(count, worker + 1) * kOneEnd,
                               std::memory_order_relaxed);
  gate_ += kOpen;
  ++generation_;
  generation_.notify_all();
  run_items(task, 0);

  // All items are claimed. A worker that wakes only now finds the gate closed, so the caller does not wait for it.
  gate_ -= kOpen;
  if (!look_for([this] { return all_left(); })) {
    std::unique_lock lock(mutex_);
    caller_sleeps_ = true;
    work_left_.wait(lock, [this] { return all_left(); });
    caller_sleeps_ = false;
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

uint64_t ThreadPool::activity() const {
  uint64_t sum = generation_.load(std::memory_order_relaxed);
  for (const Share& share : shares_) sum += share.left.load(std::memory_order_relaxed);
  return sum;
}

bool ThreadPool::all_left() const { return gate_ == 0; }

// A worker that found the gate closed was also counted as inside for a moment, in which the caller may have gone to
// sleep.
void ThreadPool::leave() {
  if ((--gate_ & ~kOpen) != 0 || !caller_sleeps_) return;
  { const std::lock_guard lock(mutex_); }
  work_left_.notify_one();
}

void ThreadPool::worker_loop(size_t worker) {
  uint32_t seen = 0;
  while (true) {
    if (!look_for([&] { return generation_ != seen; })) generation_.wait(seen);
    seen = generation_;
    if (stopping_) return;  // read after generation_: stopping has its own generation, which must not count as seen
    if ((gate_ & kOpen) == 0) continue;  // other threads have claimed all items
    // The task may have ended meanwhile, and the next one begun; the worker then helps with that one. So it reads the
    // generation again inside the gate, where no further task can begin.
    if ((gate_++ & kOpen) != 0) {
      seen = generation_;
      run_items(task_, worker);
    }
    leave();
  }
}

// Claims the first items of the worker's share or, if that is empty, the last items of another share, which its owner
// would reach last. Returns an empty range if all shares are empty.
ThreadPool::Range ThreadPool::claim(size_t worker, size_t most) {
  for (size_t other = 0; other < shares_.size(); ++other) {
    std::atomic<uint64_t>& share = shares_[(worker + other) % shares_.size()].left;
    uint64_t left = share.load(std::memory_order_relaxed);
    while (left % kOneEnd < left / kOneEnd) {
      const uint64_t first = left % kOneEnd, end = left / kOneEnd;
      const uint64_t count = std::min<uint64_t>(most, (end - first + 1) / 2);
      if (share.compare_exchange_weak(left, other == 0 ? left + count * kOneFirst : left - count * kOneEnd,
                                      std::memory_order_relaxed))
        return other == 0 ? Range{first, first + count} : Range{end - count, end};
    }
  }
  return {};
}

void ThreadPool::run_items(Task task, size_t worker) {
  try {
    for (Range range; range = claim(worker, task.most), range.first < range.end;)
      task.call(task.context, range.first, range.end, worker);
  } catch (...) {
    for (Share& share : shares_)
      share.left.store(kNone, std::memory_order_relaxed);  // the others stop after their current item
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace lfm2
