// What the channels between GPUs share whose streams do the waiting. An edge is one direction between this rank and a
// neighbour. Each edge has a separate stream, so that neither a slow neighbour nor the other direction delays it.
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

  // Starts a send or receive. `after`, where there is one, is what the transfer waits for on the GPU.
  void transfer(int buffer, const Tensor& tensor, const Wait& wait, Event* after = nullptr);
  bool done(int buffer);
  // Sorted by their begin, because the buffers are not looked at in the order of use.
  std::vector<Span> pop_finished();
  void order_after(int buffer, Stream& compute);  // later work of `compute` starts when the buffer's transfer is done

  // Begins to connect the two sides.
  virtual void start() = 0;
  // False while the edge is busy in the background, where transfers cannot be started. Throws the error of either side
  // that is known by then.
  virtual bool settled() { return true; }
  // Ends the edge without the other side, in a second at most.
  virtual void abort() {}
  // Lets go of what belongs to the other side, once no transfer is left.
  virtual void close() {}
  RankActivity connecting() const { return {.phase = Phase::kConnect, .peer = peer_}; }

 protected:
  // Puts the transfer on stream().
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
  std::vector<char> in_flight_;  // [buffers]: whether a transfer of the buffer has not been seen to end
  std::vector<Span> finished_;
};

class GpuChannel : public Channel {
 public:
  // No edge at the ends of a pipeline that is no ring.
  GpuChannel(const MpiGroup& group, Backend& backend, std::unique_ptr<GpuEdge> previous, std::unique_ptr<GpuEdge> next);
  GpuChannel(const GpuChannel&) = delete;
  GpuChannel& operator=(const GpuChannel&) = delete;
  ~GpuChannel() override;

  // Returns once something has gone over each edge. Collective.
  void connect();
  void abort();

  void receive(int buffer, const Tensor& into) override { previous_->transfer(buffer, into, wait_); }
  bool arrived(int) override { return true; }  // the compute stream waits, and the host does not have to
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
  // Never frees the edges: the other sides may still use what belongs to them.
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
