// Hidden states over MPI between ranks whose slots lie in host memory. Non-blocking: progress() is called by every
// wait.
#pragma once

#include <array>
#include <deque>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

class MpiChannel : public Channel {
 public:
  static constexpr int kNoPeer = -1;
  // `previous` and `next` are ranks of `comm`, kNoPeer at the ends. The channel works on a duplicate of `comm`.
  MpiChannel(MPI_Comm comm, int previous, int next);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel() override;

  void receive(int slot, const Tensor& into) override;
  bool arrived(int slot) override;
  void order_after_arrival(int, Stream&) override {}  // arrived() is only true once the data is there
  void send(int slot, const Tensor& from, Event& computed) override;
  bool sent(int slot) override;
  void progress() override;
  double sending_seconds() const override { return sending_seconds_; }

 private:
  struct Outgoing {
    Tensor from;
    Event* computed = nullptr;
    MPI_Request request = MPI_REQUEST_NULL;
    double started = 0;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  int previous_, next_;
  std::array<MPI_Request, kSlots> incoming_;
  std::array<Outgoing, kSlots> outgoing_;
  std::deque<int> pending_;  // slots whose transfer has not begun, in the order of send(): the receiver counts on it
  double sending_seconds_ = 0;
};

}  // namespace lfm2
