// Hidden states over MPI between ranks whose slots lie in host memory. Non-blocking: progress() is called by every
// wait.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

class MpiChannel : public Channel {
 public:
  static constexpr int kNoPeer = -1;
  // `previous` and `next` are ranks of `comm`, kNoPeer at the ends. The channel works on a duplicate of `comm`.
  // `slot_bytes` of the largest micro-batch.
  MpiChannel(MPI_Comm comm, int previous, int next, Backend& backend, size_t slot_bytes);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel() override;

  void receive(int slot, const Tensor& into) override;
  bool arrived(int slot) override;
  void order_after_arrival(int slot, Stream& compute) override;
  void send(int slot, const Tensor& from, Event& computed) override;
  bool sent(int slot) override;
  void progress() override;
  Transfers take_finished() override;

 private:
  struct Incoming {
    Tensor into;  // the slot
    Buffer host;  // empty where MPI writes into the slot itself
    MPI_Request request = MPI_REQUEST_NULL;
    bool copying = false;  // the message is here, its copy to the device is enqueued
    double started = 0;    // 0: its arrival was seen
    std::unique_ptr<Event> copied;
  };
  struct Outgoing {
    Tensor from;  // the slot
    Buffer host;
    Event* ready = nullptr;  // computed, or copied to the host
    MPI_Request request = MPI_REQUEST_NULL;
    double started = 0;
    std::unique_ptr<Event> copied;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  int previous_, next_;
  Backend& backend_;
  std::unique_ptr<Stream> to_device_,
      to_host_;  // null where there is nothing to copy; two, so that neither direction waits
  std::array<Incoming, kSlots> incoming_;
  std::array<Outgoing, kSlots> outgoing_;
  std::deque<int> pending_;  // slots whose transfer has not begun, in the order of send(): the receiver counts on it
  Transfers finished_;
};

// Whether MPI_Send takes GPU memory: what the library says of itself (MPIX_Query_cuda_support).
bool mpi_is_cuda_aware();

}  // namespace lfm2
