// The caller opens the gate to a task. Workers join, take items from a shared counter, and leave. The caller then
// closes the gate and waits for the workers that are still inside. Workers sleep on the number of the task: with a
// mutex they would wake one by one, which takes longer than a product of one row.
#include "kernels/thread_pool.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// Longer than the work of one thread between the operators of a layer, and shorter than a time slice.
constexpr auto kEagerTime = std::chrono::microseconds(200);
constexpr int kLooks = 64;  // between two looks at the clock
constexpr uint32_t kOpen = uint32_t{1} << 31;

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Returns true when there() is true, or false after a while.
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

ThreadPool::ThreadPool(int threads, bool eager) : eager_(eager) {
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
    for (size_t item = 0; item < count; ++item) {
      next_.store(item, std::memory_order_relaxed);
      task.call(task.context, item, 0);
    }
    return;
  }
  expect((gate_ & kOpen) == 0, "ThreadPool: parallel_for inside parallel_for");
  task_ = task;
  count_ = count;
  next_ = 0;
  gate_ += kOpen;
  ++generation_;
  generation_.notify_all();
  take_items(count, task, 0);

  // All items are taken. A worker that wakes only now finds the gate closed, so nobody waits for it.
  gate_ -= kOpen;
  if (!look_for([this] { return all_left(); })) {
    std::unique_lock lock(mutex_);
    caller_sleeps_ = true;
    work_left_.wait(lock, [this] { return all_left(); });
    caller_sleeps_ = false;
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool ThreadPool::all_left() const { return gate_ == 0; }

// A worker that finds the gate closed was inside, too, for a moment in which the caller may have fallen asleep.
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
    if (stopping_) return;  // behind the generation: the end comes with one of its own, which must not pass for seen
    if (next_ >= count_) continue;  // the others have taken all items
    // The task may have ended meanwhile, and even the next one begun, whose items are as welcome. So the generation is
    // read again inside, where no other can begin.
    if ((gate_++ & kOpen) != 0) {
      seen = generation_;
      take_items(count_, task_, worker);
    }
    leave();
  }
}

void ThreadPool::take_items(size_t count, Task task, size_t worker) {
  try {
    for (size_t item = next_.fetch_add(1); item < count; item = next_.fetch_add(1))
      task.call(task.context, item, worker);
  } catch (...) {
    next_ = count;  // the other workers stop after their current item
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace lfm2
