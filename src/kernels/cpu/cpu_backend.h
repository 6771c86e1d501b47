// The CPU as a device: memory, one compute stream, and the operators on a pool of threads. Main makes one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/host_memory.h"
#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/cpu/simd/simd.h"

namespace lfm2 {

class CpuBackend : public Backend {
 public:
  // `simd` names a set of instructions; "auto" selects the best one of this processor. Error(kUnavailable) if the
  // processor lacks it.
  // `eager`: see ThreadPool.
  explicit CpuBackend(int threads, std::string_view simd = "auto", bool eager = false);

  std::string description() const override;
  Buffer allocate(size_t bytes) override;
  Buffer allocate_host(size_t bytes) override;
  uint64_t free_bytes() const override { return available_host_memory(); }
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
  std::unique_ptr<Event> create_event() override;
  std::unique_ptr<Stream> create_stream() override;
  bool memory_is_host_memory() const override { return true; }
  uint64_t activity() const override { return pool_.activity(); }
  WorkDoneSignal* work_done() override { return &work_done_; }
  Stream& compute() override { return stream_; }
  Ops& ops() override { return ops_; }
  Tensor prepacked(const Tensor& w) const override { return ops_.prepacked(w); }
  void prepack(std::span<const Tensor> tiled) override;
  std::unique_ptr<Loader> create_loader() override;
  void copy(Stream& stream, void* to, const void* from, size_t bytes) override;
  void copy_to_host(void* host, const Tensor& source) override;
  void upload(const Tensor& target, int64_t first, DType from, const void* source, int64_t count) override;

 private:
  const Simd& simd_;
  ThreadPool pool_;
  CpuOps ops_;
  WorkDoneSignal work_done_;
  CpuStream stream_{&work_done_};  // last: its thread calls the operators, so it must end first
};

}  // namespace lfm2
