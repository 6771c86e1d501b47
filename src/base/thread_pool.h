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
  // `eager`: every thread has a processor that is seldom shared. So a thread polls for work, or for the end of the
  // work, before it sleeps: waking a thread takes longer than many operators on a single row.
  explicit ThreadPool(int threads, bool eager = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }
  // Changes with every range of items that is taken, but the first one of a task that one thread does alone.
  uint64_t activity() const;

  // Calls f(item, worker) once for every item in [0, count), in any order; concurrent calls differ in worker <
  // threads(). Returns when all calls have returned. Throws the first exception of f; some items may not have run then.
  // Not reentrant.
  // Each worker has a share of neighbouring items, the same for equal counts, and takes them in order. One that has
  // finished its share takes from the ends of the others'.
  template <class F>
  void parallel_for(size_t count, F&& f) {
    parallel_for_ranges(count, 1, [&](size_t first, size_t, size_t worker) { f(first, worker); });
  }
  // The same with f(first, end, worker) for ranges of items, where a range costs less than its items one by one. Each
  // takes half of what is left of a share, but at most `most` items: the last ones are single, so that all workers end
  // at about the same time. A worker without others takes `most` at once.
  template <class F>
  void parallel_for_ranges(size_t count, size_t most, F&& f) {
    run(count, Task{[](void* context, size_t first, size_t end, size_t worker) {
                      (*static_cast<std::remove_reference_t<F>*>(context))(first, end, worker);
                    },
                    const_cast<void*>(static_cast<const void*>(&f)), most});
  }
  // The item of `count` that the worker most likely takes after `item`, or `item` if its share ends there.
  size_t next_item(size_t item, size_t count, size_t worker) const {
    return item >= share_begin(count, worker) && item + 1 < share_begin(count, worker + 1) ? item + 1 : item;
  }

 private:
  // A reference to the caller's f without its type, so that a call allocates nothing.
  struct Task {
    void (*call)(void* context, size_t first, size_t end, size_t worker) = nullptr;
    void* context = nullptr;
    size_t most = 1;
  };
  // Processors fetch lines of 64 bytes in pairs. What different threads write at the same time stands that far apart.
  static constexpr size_t kLine = 128;
  // What is left of a worker's share: the first item in the lower half of the bits, the end in the upper half.
  struct alignas(kLine) Share {
    std::atomic<uint64_t> left{0};
  };
  static constexpr uint64_t kOneFirst = 1, kOneEnd = uint64_t{1} << 32, kNone = 0;
  struct Range {
    size_t first = 0, end = 0;
  };

  size_t share_begin(size_t count, size_t worker) const { return count * worker / threads(); }
  void run(size_t count, Task task);
  template <class F>
  bool look_for(F&& there) const;
  void stop();  // and waits for the threads
  void worker_loop(size_t worker);
  void run_items(Task task, size_t worker);
  Range claim(size_t worker, size_t most);
  bool all_left() const;
  void leave();

  // Written by the caller alone, between two tasks. A change of generation_ tells the workers of a new one; only those
  // inside read the task.
  alignas(kLine) Task task_;
  std::atomic<uint32_t> generation_{0};
  // Whether a worker may join, and the number of workers inside.
  alignas(kLine) std::atomic<uint32_t> gate_{0};
  std::vector<Share> shares_;  // one for each worker, the caller's first

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
