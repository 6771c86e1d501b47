// What a device offers: memory, streams, events and the operators. Each process has one Backend, chosen at the start.
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
#include "kernels/work_done_signal.h"

namespace lfm2 {

// Owns one allocation, and frees it with the deleter that it was made with.
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

// A point in a stream. An event that was never recorded counts as done. Recording it again moves it to the new point.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
};

inline constexpr int64_t kUntagged = -1;
// A finished piece of work; times are seconds of the host's steady clock (steady_seconds()).
struct Span {
  int64_t tag = 0;  // the tag given to submit(), or kUntagged
  double start = 0, end = 0;
};
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A queue of work that runs in order. submit() runs `work` at once on CUDA, where it enqueues kernels, and on a thread
// on the CPU.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void submit(std::function<void()> work, int64_t tag = kUntagged) = 0;
  virtual void record(Event& event) = 0;         // `event` is done when everything submitted so far is done
  virtual void wait(Event& event) = 0;           // later work starts when `event`, as recorded now, is done
  virtual void check() = 0;                      // throws the error of work that failed
  virtual std::vector<Span> pop_finished() = 0;  // submitted work that ended since the last call, in order
  // Returns when nothing is queued or running; called before memory that the work uses is freed.
  virtual void drain() noexcept = 0;
};

// Which elements of a tensor a weight fills: `block` elements of every `stride`, from `first` on. With `block` 0, all
// its elements are contiguous.
//   0        first     first + stride
//   |--------|block|---|block|---|block|---
struct Placement {
  int64_t first = 0, block = 0, stride = 0;
};

// How a reader thread brings bytes to the device: it fills a piece, passes it to put(), and fills the next piece during
// the copy.
class Loader {
 public:
  // Small, so that the pieces are allocated at once, and what was read is still in a processor's cache when its
  // checksum is computed.
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  virtual ~Loader() = default;
  // Returns kPieceBytes to fill, once the last copy out of them has ended.
  virtual std::span<std::byte> piece() = 0;
  // Converts the first `count` elements of the piece from type `from` and writes them to `target`. They are the
  // weight's elements from `element` on, in the places that `place` defines. `element` and `count` are multiples of
  // place.block.
  virtual void put(const Tensor& target, const Placement& place, int64_t element, DType from, int64_t count) = 0;
  virtual void finish() = 0;  // returns when everything that was put is on the device
};

// Work that was recorded once and can be enqueued again as a whole.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // call only inside compute().submit(...)
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description() const = 0;  // for the end table, such as "CPU, 2 threads, avx512"

  virtual Buffer allocate(size_t bytes) = 0;  // device memory; Error(kUnavailable) if there is not enough
  // Host memory that the device copies from and to at full speed.
  virtual Buffer allocate_host(size_t bytes) = 0;
  // Free device memory at this moment; other processes may use the device, too.
  virtual uint64_t free_bytes() const = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // Whether allocate() returns memory that MPI and the host may touch.
  virtual bool memory_is_host_memory() const = 0;
  // A count that changes while a long operator makes progress; any thread may call this. It stays 0 on a GPU, whose
  // operators take milliseconds. On a CPU they may take minutes.
  virtual uint64_t activity() const { return 0; }
  // Signals the end of work on this backend's streams; null if the backend cannot.
  virtual WorkDoneSignal* work_done() { return nullptr; }

  // Reserves SMs for the kernels of transfers, which occupy them while they wait for the other side. Products whose
  // CTAs would fill the device leave these SMs free. Otherwise a CTA that finds no SM starts only after another one has
  // ended, which doubles the time of its kernel.
  virtual void reserve_sms(int /*sms*/) {}

  virtual Stream& compute() = 0;  // the stream that Ops enqueues on
  virtual Ops& ops() = 0;         // call only inside compute().submit(...)
  // Records what `work` enqueues on compute() without running it; null if the device cannot record. `work` must have
  // run before with the same shapes, and the memory that it uses must live as long as the recording.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
  // Enqueues a copy on `stream`; each side may be host or device memory.
  virtual void copy(Stream& stream, void* to, const void* from, size_t bytes) = 0;
  // Enqueues a copy on compute(), as operators are enqueued.
  virtual void copy_to_host(void* host, const Tensor& source) = 0;

  // A device may hold the weights of matrix products prepacked. prepacked() returns the tensor w, [n, k] or [matrices,
  // n, k], marked as tiled if the device prepacks it. Once its rows are loaded, prepack() reorders them in place.
  virtual Tensor prepacked(const Tensor& w) const { return w; }
  virtual void prepack(std::span<const Tensor> /*tiled*/) {}

  // Only the calling thread may use the loader.
  virtual std::unique_ptr<Loader> create_loader() = 0;
  // Converts `count` elements from type `from` and writes them to `target`, from element `first` on. Returns after they
  // have arrived.
  virtual void upload(const Tensor& target, int64_t first, DType from, const void* source, int64_t count) = 0;
};

}  // namespace lfm2
