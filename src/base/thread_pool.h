// The threads that share the loops of the CPU operators. CpuBackend owns the pool. The thread that calls parallel_for()
// works, too.
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
  // `eager`: every thread has a processor almost to itself. A thread then polls for work before it sleeps, because
  // waking a thread takes longer than many operators on a single row.
  explicit ThreadPool(int threads, bool eager = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }
  // A counter for the watchdog: it changes with every range that a worker claims, except the first range of a task that
  // one thread runs alone.
  uint64_t activity() const;

  // Calls f(item, worker) once for every item in [0, count), in any order; concurrent calls have different `worker` <
  // threads(). Returns when all calls have returned. Rethrows the first exception of f, after which some items may not
  // have run. Not reentrant. Each worker has a share of neighbouring items, which depends only on `count`, and
  // processes it in order. A worker that has finished its share steals from the ends of other shares.
  template <class F>
  void parallel_for(size_t count, F&& f) {
    parallel_for_ranges(count, 1, [&](size_t first, size_t, size_t worker) { f(first, worker); });
  }
  // The same with f(first, end, worker), for work where a range costs less than its items one by one. A worker claims
  // half of the rest of a share, but at most `most` items. The last ranges are single items, so that all workers end at
  // about the same time. A pool of one thread always claims `most` items.
  template <class F>
  void parallel_for_ranges(size_t count, size_t most, F&& f) {
    run(count, Task{[](void* context, size_t first, size_t end, size_t worker) {
                      (*static_cast<std::remove_reference_t<F>*>(context))(first, end, worker);
                    },
                    const_cast<void*>(static_cast<const void*>(&f)), most});
  }
  // The item that the worker most probably processes after `item`, of `count` items in all; `item` itself if the
  // worker's share ends there. Callers prefetch its data.
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
  // Processors fetch cache lines of 64 bytes in pairs, so data that different threads write is 128 bytes apart.
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

  // Only the caller writes task_, between two tasks. A change of generation_ announces a new task to the workers. Only
  // workers that passed the gate read task_.
  alignas(kLine) Task task_;
  std::atomic<uint32_t> generation_{0};
  // Whether a worker may join, and the number of workers inside.
  alignas(kLine) std::atomic<uint32_t> gate_{0};
  std::vector<Share> shares_;  // one for each worker, the caller's first

  // Before the caller sleeps, it sets caller_sleeps_ and then checks for work once more. The last worker to leave reads
  // caller_sleeps_ after it has left, so no wake-up is lost.
  alignas(kLine) std::mutex mutex_;
  std::condition_variable work_left_;
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::exception_ptr error_;  // the first error of task_; written under the mutex
  const bool eager_;
  std::vector<std::thread> workers_;
};

}  // namespace lfm2
