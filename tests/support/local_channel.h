// Hidden states between stages that are threads of one process: for tests of the pipeline without MPI.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "comm/channel.h"

namespace lfm2 {

// One edge: the n-th send and the n-th receive meet here, and the side that comes second copies.
class LocalLink {
 public:
  using Ticket = uint64_t;
  Ticket post_send(const Tensor& from);
  Ticket post_receive(const Tensor& into);
  bool done(Ticket ticket);  // whether the transfer of this number is done; sender and receiver count alike

 private:
  void match();

  std::mutex mutex_;
  std::deque<Tensor> sends_, receives_;
  Ticket sends_posted_ = 0, receives_posted_ = 0, matched_ = 0;
};

class LocalChannel : public Channel {
 public:
  // A null link means that this stage is at that end of the pipeline.
  LocalChannel(LocalLink* previous, LocalLink* next, int buffers = kBuffers)
      : previous_(previous),
        next_(next),
        incoming_(static_cast<size_t>(buffers)),
        outgoing_(static_cast<size_t>(buffers)) {}

  void receive(int buffer, const Tensor& into) override;
  bool arrived(int buffer) override;
  void order_after_arrival(int, Stream&) override {}
  void send(int buffer, const Tensor& from, Event& computed) override;
  bool sent(int buffer) override;
  bool progress() override;
  Transfers pop_finished() override { return {}; }  // tests do not look at times

 private:
  struct Outgoing {
    Tensor from;
    Event* computed = nullptr;
    LocalLink::Ticket ticket = 0;  // ticket of the last send
  };
  LocalLink* previous_;
  LocalLink* next_;
  std::vector<LocalLink::Ticket> incoming_;  // [buffers]
  std::vector<Outgoing> outgoing_;           // [buffers]
  std::deque<int> pending_;                  // buffers whose transfer has not begun, in the order of send()
};

}  // namespace lfm2
