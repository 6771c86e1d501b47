// The threads that share the loops of the CPU operators. Owned by CpuBackend; the thread that calls parallel_for works,
// too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lfm2 {

class ThreadPool {
 public:
  // `eager`: every thread has a processor that no other works on at the same time, or seldom, so that it may look for
  // work, or for the end of it, for a while before it sleeps. Waking a thread takes longer than many an operator on a
  // single row.
  explicit ThreadPool(int threads, bool eager = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }
  // Changes with every item that is taken.
  size_t activity() const { return next_.load(std::memory_order_relaxed); }

  // Calls f(item, worker) once for every item in [0, count), in any order; concurrent calls differ in worker <
  // threads(). Returns when all calls have returned. Throws the first exception of f; some items may not have run then.
  // Not reentrant.
  template <class F>
  void parallel_for(size_t count, F&& f) {
    run(count, Task{[](void* context, size_t item, size_t worker) {
                      (*static_cast<std::remove_reference_t<F>*>(context))(item, worker);
                    },
                    const_cast<void*>(static_cast<const void*>(&f))});
  }

 private:
  // A reference to the caller's f without its type, so that a call allocates nothing.
  struct Task {
    void (*call)(void* context, size_t item, size_t worker) = nullptr;
    void* context = nullptr;
  };
  // Processors fetch lines of 64 bytes in pairs. What different threads write at the same time stands that far apart.
  static constexpr size_t kLine = 128;

  void run(size_t count, Task task);
  template <class F>
  bool look_for(F&& there) const;
  void stop();  // and waits for the threads
  void worker_loop(size_t worker);
  void take_items(size_t count, Task task, size_t worker);
  bool all_left() const;
  void leave();

  // Written by the caller alone, between two tasks. A change of generation_ tells the workers of a new one; only those
  // inside read the task.
  alignas(kLine) Task task_;
  std::atomic<size_t> count_{0};  // number of items of task_
  std::atomic<uint32_t> generation_{0};
  // Whether a worker may join, and the number of workers inside.
  alignas(kLine) std::atomic<uint32_t> gate_{0};
  alignas(kLine) std::atomic<size_t> next_{0};  // the first item that nobody has taken

  // A caller that is to sleep says so before it looks a last time; the worker that leaves last looks for it after that.
  alignas(kLine) std::mutex mutex_;
  std::condition_variable work_left_;
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::exception_ptr error_;  // the first error of task_; written under the mutex
  const bool eager_;
  std::vector<std::thread> workers_;
};

}  // namespace lfm2
