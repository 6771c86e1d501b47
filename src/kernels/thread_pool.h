// The threads that share the loops of the CPU operators. Owned by CpuBackend; the thread that calls parallel_for works,
// too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lfm2 {

class ThreadPool {
 public:
  // `eager`: every thread has a processor of its own, so that it may look for work, or for the end of it, for a while
  // before it sleeps. Waking a thread takes longer than many an operator on a single row.
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

  void run(size_t count, Task task);
  template <class F>
  void look_for(F&& there) const;
  void worker_loop(size_t worker);
  void take_items(size_t count, Task task, size_t worker);

  std::mutex mutex_;
  std::condition_variable work_ready_, work_left_;
  Task task_;                 // workers may join while task_.call is set
  size_t count_ = 0;          // number of items of task_
  std::exception_ptr error_;  // the first error of task_
  // These two are written under the mutex, and may be looked at without it.
  std::atomic<size_t> generation_{0};  // number of task_; a worker joins each task at most once
  std::atomic<size_t> active_{0};      // workers inside task_
  bool stopping_ = false;              // all from mutex_ to here is guarded by it
  std::atomic<size_t> next_{0};        // the first item that nobody has taken
  const bool eager_;
  std::vector<std::thread> workers_;
};

}  // namespace lfm2
