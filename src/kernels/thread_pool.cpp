// Workers wait until a task opens, take items from a shared counter, and leave. The caller then closes the task and
// waits for the workers that are still inside.
#include "kernels/thread_pool.h"

#include <chrono>
#include <utility>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// Longer than the work of one thread between the operators of a layer, and shorter than a time slice.
constexpr auto kEagerTime = std::chrono::microseconds(200);
constexpr int kLooks = 64;  // between two looks at the clock

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Returns when there() is true, or after a while.
template <class F>
void ThreadPool::look_for(F&& there) const {
  if (!eager_) return;
  for (const auto end = std::chrono::steady_clock::now() + kEagerTime; std::chrono::steady_clock::now() < end;)
    for (int look = 0; look < kLooks; ++look) {
      if (there()) return;
      pause_processor();
    }
}

ThreadPool::ThreadPool(int threads, bool eager) : eager_(eager) {
  expect(threads >= 1, "ThreadPool: at least one thread");
  for (size_t worker = 1; worker < static_cast<size_t>(threads); ++worker)
    workers_.emplace_back([this, worker] { worker_loop(worker); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
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
  {
    const std::lock_guard lock(mutex_);
    expect(task_.call == nullptr, "ThreadPool: parallel_for inside parallel_for");
    task_ = task;
    count_ = count;
    next_ = 0;
    ++generation_;
  }
  work_ready_.notify_all();
  take_items(count, task, 0);

  // All items are taken. A worker that wakes only now finds the task closed, so nobody waits for it.
  std::unique_lock lock(mutex_);
  task_ = Task{};
  if (active_ > 0) {
    lock.unlock();
    look_for([this] { return active_.load(std::memory_order_relaxed) == 0; });
    lock.lock();
  }
  work_left_.wait(lock, [this] { return active_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::worker_loop(size_t worker) {
  size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    if (task_.call == nullptr) seen = generation_;  // that one is closed
    if (!stopping_ && generation_ == seen) {
      lock.unlock();
      look_for([&] { return generation_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
    }
    work_ready_.wait(lock, [&] { return stopping_ || (task_.call != nullptr && generation_ != seen); });
    if (stopping_) return;
    seen = generation_;
    ++active_;
    const Task task = task_;
    const size_t count = count_;
    lock.unlock();
    take_items(count, task, worker);
    lock.lock();
    if (--active_ == 0) work_left_.notify_one();
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
