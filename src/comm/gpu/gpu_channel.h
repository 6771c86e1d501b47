// The common part of the channels between GPUs: CUDA streams wait for transfers, not the host. An edge is one direction
// between this rank and a neighbour. Each edge has a separate stream, so that neither a slow neighbour nor the other
// direction delays it.
#pragma once

#include <memory>
#include <vector>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "comm/wait.h"
#include "kernels/cuda/cuda_stream.h"

namespace lfm2 {

class GpuEdge {
 public:
  // `peer` is the other side's rank in the job.
  GpuEdge(int peer, int buffers);
  GpuEdge(const GpuEdge&) = delete;
  GpuEdge& operator=(const GpuEdge&) = delete;
  virtual ~GpuEdge() = default;

  // Starts a send or receive. The transfer waits on the GPU for `after`, unless it is null.
  void transfer(int buffer, const Tensor& tensor, const Wait& wait, Event* after = nullptr);
  bool done(int buffer);
  // Sorted by start, because the buffers are not polled in the order of use.
  std::vector<Span> pop_finished();
  void order_after(int buffer, Stream& compute);  // later work of `compute` starts when the buffer's transfer is done

  // Starts to connect the two sides.
  virtual void start() = 0;
  // False while the edge still connects in the background; no transfer can start then. Throws the known error of either
  // side.
  virtual bool settled() { return true; }
  // Ends the edge without the other side, within a second.
  virtual void abort() {}
  // Releases the other side's memory, once no transfer is left.
  virtual void close() {}
  RankActivity connecting() const { return {.phase = Phase::kConnect, .peer = peer_}; }

 protected:
  // Enqueues the transfer on stream().
  virtual void enqueue(const Tensor& tensor) = 0;
  cudaStream_t stream() const { return stream_.native(); }
  void drain() noexcept { stream_.drain(); }

  const int peer_;

 private:
  struct Timing {
    CudaTimingEvent start, end;
  };

  CudaStream stream_;
  std::vector<Timing> timing_;   // [buffers]
  std::vector<char> in_flight_;  // [buffers]: whether the buffer has a transfer whose end was not seen yet
  std::vector<Span> finished_;
};

class GpuChannel : public Channel {
 public:
  // `previous` is null on the first rank and `next` on the last, unless the pipeline is a ring.
  GpuChannel(const MpiGroup& group, Backend& backend, std::unique_ptr<GpuEdge> previous, std::unique_ptr<GpuEdge> next);
  GpuChannel(const GpuChannel&) = delete;
  GpuChannel& operator=(const GpuChannel&) = delete;
  ~GpuChannel() override;

  // Returns once each edge has transferred a test element. Collective.
  void connect();
  void abort();

  void receive(int buffer, const Tensor& into) override { previous_->transfer(buffer, into, wait_); }
  bool arrived(int) override { return true; }  // the compute stream waits instead of the host
  bool delivered(int buffer) override { return previous_->done(buffer); }
  void order_after_arrival(int buffer, Stream& compute) override { previous_->order_after(buffer, compute); }
  void send(int buffer, const Tensor& from, Event& computed) override {
    next_->transfer(buffer, from, wait_, &computed);
  }
  bool sent(int buffer) override { return next_->done(buffer); }
  bool progress() override;
  Transfers pop_finished() override;

 protected:
  void close_edges();
  // Leaks the edges, because the other sides may still use their memory.
  void abandon_edges();

 private:
  bool last_;  // the last rank of the pipeline
  Wait wait_;
  Buffer element_;  // two fp32 elements, for the first transfers
  std::unique_ptr<GpuEdge> previous_, next_;
};

// Connects the channel and returns it. After an error the process is about to end, so the channel is not destroyed: its
// destructor may wait forever.
std::unique_ptr<Channel> connect(std::unique_ptr<GpuChannel> channel);

}  // namespace lfm2
