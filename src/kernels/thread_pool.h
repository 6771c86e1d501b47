// The threads that share the loops of the CPU operators. Owned by CpuBackend; the thread that calls parallel_for takes
// part.
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
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }
  size_t activity() const { return next_.load(std::memory_order_relaxed); }  // changes with every item that is taken

  // Calls f(item, worker) once for every item in [0, count), in any order; worker < threads() tells concurrent calls
  // apart. Returns when all are done; throws the first exception of f, and then some items may not have run. Not
  // reentrant.
  template <class F>
  void parallel_for(size_t count, F&& f) {
    run(count, Task{[](void* context, size_t item, size_t worker) {
                      (*static_cast<std::remove_reference_t<F>*>(context))(item, worker);
                    },
                    const_cast<void*>(static_cast<const void*>(&f))});
  }

 private:
  // A type-erased reference to the caller's f: nothing is allocated per call.
  struct Task {
    void (*call)(void* context, size_t item, size_t worker) = nullptr;
    void* context = nullptr;
  };

  void run(size_t count, Task task);
  void worker_loop(size_t worker);
  void take_items(size_t count, Task task, size_t worker);

  std::mutex mutex_;
  std::condition_variable work_ready_, work_left_;
  Task task_;                    // open for workers to join while task_.call is set
  size_t count_ = 0;             // items of task_
  size_t generation_ = 0;        // of task_: a worker joins each at most once
  size_t active_ = 0;            // workers inside task_
  std::exception_ptr error_;     // the first of this task
  bool stopping_ = false;        // all above are guarded by mutex_
  std::atomic<size_t> next_{0};  // first item that nobody has taken
  std::vector<std::thread> workers_;
};

}  // namespace lfm2
