// The thread of the stream, and the tickets of its events.
#include "kernels/cpu/cpu_stream.h"

#include <algorithm>
#include <utility>

namespace lfm2 {

namespace {

CpuEvent& as_cpu_event(Event& event) {
  auto* cpu_event = dynamic_cast<CpuEvent*>(&event);
  expect(cpu_event != nullptr, "CpuStream: an event of another backend");
  return *cpu_event;
}

}  // namespace

bool CpuEvent::done() const {
  const std::lock_guard lock(mutex_);
  return completed_ >= recorded_;
}

uint64_t CpuEvent::record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

uint64_t CpuEvent::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void CpuEvent::complete(uint64_t ticket) {
  // Notifies under the lock: a thread that sees done() takes the lock before it destroys the event.
  const std::lock_guard lock(mutex_);
  completed_ = std::max(completed_, ticket);
  reached_.notify_all();
}

void CpuEvent::wait(uint64_t ticket) const {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return completed_ >= ticket; });
}

CpuStream::CpuStream(WorkDoneSignal* work_done) : work_done_(work_done), worker_([this] { worker_loop(); }) {}

CpuStream::~CpuStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pushed_.notify_one();
  worker_.join();
}

void CpuStream::submit(std::function<void()> work, int64_t tag) { push({std::move(work), false, tag}); }

void CpuStream::record(Event& event) {
  CpuEvent& recorded = as_cpu_event(event);
  push({[&recorded, ticket = recorded.record()] { recorded.complete(ticket); }, true, {}});
}

// Cannot deadlock: a ticket is recorded in a queue before anybody can wait for it, so waits form no cycle.
void CpuStream::wait(Event& event) {
  const CpuEvent& awaited = as_cpu_event(event);
  push({[&awaited, ticket = awaited.recorded()] { awaited.wait(ticket); }, false, {}});
}

void CpuStream::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

std::vector<Span> CpuStream::pop_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

void CpuStream::drain() noexcept {
  CpuEvent reached;
  record(reached);
  reached.wait(reached.recorded());
}

void CpuStream::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
  }
  pushed_.notify_one();
}

void CpuStream::worker_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    pushed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    if (error_ && !item.always) continue;
    lock.unlock();
    std::exception_ptr failure;
    const double start = steady_seconds();
    try {
      item.work();
    } catch (...) {
      failure = std::current_exception();
    }
    item.work = nullptr;  // destroys what the work captured before anybody can see it as done
    const double end = steady_seconds();
    if (item.always && work_done_ != nullptr) work_done_->note();
    lock.lock();
    if (item.tag) finished_.push_back({*item.tag, start, end});
    if (failure) error_ = failure;  // the first error; no work runs after it
  }
}

}  // namespace lfm2
