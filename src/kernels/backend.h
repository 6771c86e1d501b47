// What a device offers: memory, streams, events and the operators. One Backend per process, chosen once in main.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace lfm2 {

// Owns one allocation; freed with the deleter it was made with.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, void (*release)(void*)) : data_(data, release), bytes_(bytes) {}

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, void (*)(void*)> data_{nullptr, +[](void*) {}};
  size_t bytes_ = 0;
};

// A point in a stream. Never recorded counts as done. Re-recording moves it to the new point.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
};

// A finished piece of work, in seconds of the host's steady clock (steady_seconds()).
struct Span {
  int64_t tag = 0;  // as given to submit()
  double start = 0, end = 0;
};
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Work in order. submit() may run the work at once (CUDA: the work itself enqueues kernels) or on a thread (CPU).
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void submit(std::function<void()> work, int64_t tag = 0) = 0;
  virtual void record(Event& event) = 0;          // `event` is done when everything submitted so far is done
  virtual void wait(Event& event) = 0;            // later work starts when `event`, as recorded now, is done
  virtual void check() = 0;                       // throws the error of work that failed, if any did
  virtual std::vector<Span> take_finished() = 0;  // submitted work that ended since the last call, in order
  virtual void drain() noexcept = 0;  // returns when nothing is queued or running; before memory in use is freed
};

// Which elements of a tensor a weight fills: from `first` on `block` of its elements, the next `block` one `stride`
// further, and so on. A block of 0: all behind one another.
struct Placement {
  int64_t first = 0, block = 0, stride = 0;
};

// A reader thread's way to bring bytes to the device: it fills a piece, hands it over, fills the next meanwhile.
class Loader {
 public:
  static constexpr size_t kPieceBytes = size_t{8} << 20;

  virtual ~Loader() = default;
  virtual std::span<std::byte> piece() = 0;  // kPieceBytes to fill; waits until nothing is copied out of them any more
  // Writes the first `count` elements of the piece, converted from `from`, as elements `element` … of what `place`
  // says, in whole blocks.
  virtual void put(const Tensor& target, const Placement& place, int64_t element, DType from, int64_t count) = 0;
  virtual void finish() = 0;  // returns when all that was put has arrived
};

// Work that was enqueued once while it was recorded, to be enqueued again at once.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // call only inside compute().submit(...)
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description() const = 0;  // for the end table: "CPU, 2 threads, avx512"

  virtual Buffer allocate(size_t bytes) = 0;       // on the device; Error(kUnavailable) where memory is short
  virtual Buffer allocate_host(size_t bytes) = 0;  // host memory that the device copies from and to at full speed
  virtual uint64_t free_bytes() const = 0;         // of device memory, now; shared with whoever else uses the device
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual bool memory_is_host_memory() const = 0;  // of allocate(): MPI and the host may touch it

  virtual Stream& compute() = 0;  // the stream that Ops enqueues on
  virtual Ops& ops() = 0;         // call only inside compute().submit(...)
  // What `work` enqueues on compute(), without running it; null where the device cannot record. `work` must have run
  // before with the same shapes, and the memory it names must stay.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
  // Enqueued on `stream`, between host and device memory in any direction.
  virtual void copy(Stream& stream, void* to, const void* from, size_t bytes) = 0;
  // Enqueued like an operator.
  virtual void copy_to_host(void* host, const Tensor& source) = 0;

  // For the calling thread alone.
  virtual std::unique_ptr<Loader> create_loader() = 0;
  // Writes `count` elements, converted from `from`, at element `first` of `target`; returns when they are there.
  virtual void upload(const Tensor& target, int64_t first, DType from, const void* source, int64_t count) = 0;
};

}  // namespace lfm2
