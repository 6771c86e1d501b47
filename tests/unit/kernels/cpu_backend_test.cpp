// The CPU backend without its operators: memory, uploads, the stream and its events.
#include "kernels/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/host_tensor.h"

namespace lfm2 {
namespace {

using test::HostTensor;

bool becomes_done(const Event& event) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!event.done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return event.done();
}

// Work that blocks a stream until the gate is opened.
class Gate {
 public:
  auto work() {
    return [this] { open_.wait(false); };
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

TEST(CpuStreamTest, WorkRunsInOrder) {
  std::vector<int> order;
  {
    CpuStream stream;
    for (int i = 0; i < 1000; ++i) stream.submit([&order, i] { order.push_back(i); });
  }  // the destructor runs all work
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(CpuStreamTest, AnEventIsDoneWhenTheWorkBeforeItIs) {
  CpuEvent event;
  Gate gate;
  CpuStream stream;
  EXPECT_TRUE(event.done());  // never recorded
  stream.submit(gate.work());
  stream.record(event);
  EXPECT_FALSE(event.done());
  gate.open();
  EXPECT_TRUE(becomes_done(event));
}

TEST(CpuStreamTest, AWaitHearsThatAnEventIsDone) {
  using namespace std::chrono_literals;
  CpuBackend backend(1);
  WorkDoneSignal& work_done = *backend.work_done();
  CpuEvent event;
  Gate gate;
  backend.compute().submit(gate.work());
  backend.compute().record(event);
  const uint64_t seen = work_done.count();
  EXPECT_FALSE(event.done());
  work_done.wait(seen, 1ms);  // in vain
  EXPECT_EQ(work_done.count(), seen);
  gate.open();
  const auto start = std::chrono::steady_clock::now();
  work_done.wait(seen, 60s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_TRUE(event.done());
}

TEST(CpuStreamTest, RecordingAgainMovesTheEvent) {
  CpuEvent event;
  Gate first, second;
  CpuStream stream;
  stream.submit(first.work());
  stream.record(event);
  const uint64_t first_point = event.recorded();
  stream.submit(second.work());
  stream.record(event);
  first.open();
  event.wait(first_point);
  EXPECT_FALSE(event.done());
  second.open();
  EXPECT_TRUE(becomes_done(event));
}

TEST(CpuStreamTest, WaitHoldsAnotherStreamUntilThePointOfTheCall) {
  CpuEvent event, passed;
  Gate first, second;
  std::atomic<bool> first_done{false}, seen{false};
  CpuStream producer, consumer;
  producer.submit(first.work());
  producer.submit([&] { first_done = true; });
  producer.record(event);
  consumer.wait(event);
  consumer.submit([&] { seen = first_done.load(); });
  consumer.record(passed);
  producer.submit(second.work());
  producer.record(event);  // recorded after the wait, so it must not hold the consumer up
  EXPECT_FALSE(passed.done());
  first.open();
  EXPECT_TRUE(becomes_done(passed));
  EXPECT_TRUE(seen);
  EXPECT_FALSE(event.done());
  second.open();
}

TEST(CpuStreamTest, AWaitForAnUnrecordedEventPasses) {
  CpuEvent never, passed;
  CpuStream stream;
  stream.wait(never);
  stream.record(passed);
  EXPECT_TRUE(becomes_done(passed));
}

TEST(CpuStreamTest, AnErrorIsKeptSkipsLaterWorkAndStillCompletesEvents) {
  CpuEvent event;
  std::atomic<bool> later{false};
  CpuStream stream;
  EXPECT_NO_THROW(stream.check());
  stream.submit([] { throw std::runtime_error("first"); });
  stream.submit([] { throw std::runtime_error("second"); });
  stream.submit([&] { later = true; });
  stream.record(event);
  EXPECT_TRUE(becomes_done(event));
  EXPECT_FALSE(later);
  for (int i = 0; i < 2; ++i) {
    try {
      stream.check();
      ADD_FAILURE() << "check() did not throw";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "first");
    }
  }
}

TEST(CpuBackendTest, MemoryIsAlignedAndNeverNull) {
  CpuBackend backend(1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    const Buffer buffer = backend.allocate(bytes), host = backend.allocate_host(bytes);
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(host.data()) % 64, 0u);
    EXPECT_EQ(buffer.bytes(), bytes);
    std::fill_n(buffer.data(), bytes, std::byte{1});
  }
}

TEST(CpuBackendTest, TooMuchMemoryIsRefusedWithTheByteCount) {
  CpuBackend backend(1);
  // More bytes than an address can count are refused before the allocator is called, because sanitizers abort there.
  const size_t bytes = ~size_t{0};
  try {
    backend.allocate(bytes);
    ADD_FAILURE() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
  }
// The allocators of the sanitizers abort.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
  EXPECT_THROW(backend.allocate(size_t{1} << 55), Error);
#endif
}

TEST(CpuBackendTest, UploadConvertsIntoItsPlaceOnly) {
  CpuBackend backend(1);
  const std::vector<float> source = {1.5f, -2.0f, 1.00390625f};  // the last one is a tie in bf16
  HostTensor target(DType::kBf16, {2, 3});
  target.fill(7.0);
  backend.upload(target, 2, DType::kF32, source.data(), 3);
  EXPECT_EQ(target.values(), (std::vector<double>{7, 7, 1.5, -2, 1, 7}));
  EXPECT_THROW(backend.upload(target, 4, DType::kF32, source.data(), 3), Error);

  HostTensor copy(DType::kBf16, {2, 3});
  backend.copy_to_host(copy->data, target);
  EXPECT_TRUE(test::same_bits(copy, target));
}

TEST(CpuBackendTest, OperatorsRunOnTheComputeStream) {
  CpuBackend backend(2);
  EXPECT_NE(backend.description().find("CPU, 2 threads"), std::string::npos) << backend.description();
  HostTensor x(DType::kF32, {3, 4}), weight(DType::kF32, {4}), out(DType::kF32, {3, 4}), wrong(DType::kF32, {3, 5});
  x.fill(0.0);
  weight.fill(1.0);
  const auto event = backend.create_event();
  backend.compute().submit([&] { backend.ops().rms_norm(x, weight, 1e-5f, out); });
  backend.compute().record(*event);
  EXPECT_TRUE(becomes_done(*event));
  EXPECT_EQ(out.values(), std::vector<double>(12, 0.0));
  EXPECT_NO_THROW(backend.compute().check());
  backend.compute().submit([&] { backend.ops().rms_norm(x, weight, 1e-5f, wrong); });
  backend.compute().record(*event);
  EXPECT_TRUE(becomes_done(*event));
  EXPECT_THROW(backend.compute().check(), Error);
}

TEST(CpuBackendTest, InstructionsByName) {
  for (const Simd* table : available_simd())
    EXPECT_NE(CpuBackend(1, table->name).description().find(table->name), std::string::npos);
  EXPECT_EQ(CpuBackend(1).description(), CpuBackend(1, available_simd().front()->name).description());
  EXPECT_THROW(CpuBackend(1, "none"), Error);
}

}  // namespace
}  // namespace lfm2
