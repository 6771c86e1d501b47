// Hidden states over MPI, directly between the stages' buffers: for host memory, and for GPU memory if MPI accepts it
// (otherwise see staged_channel.h). Transfers advance while a wait polls progress().
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/channel.h"
#include "comm/fatal_signals.h"
#include "comm/mpi_world.h"

namespace lfm2 {

class MpiChannel : public Channel {
 public:
  // Connects each rank of `pipeline` to the next, in a ring also the last to the first. Buffers are in the memory of
  // `backend`. A micro-batch is cut into messages of `piece_bytes`; 0: chosen for that memory. Collective.
  MpiChannel(const MpiGroup& pipeline, const Backend& backend, const ChannelShape& shape, size_t piece_bytes = 0);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel() override;

  void receive(int buffer, const Tensor& into) override;
  bool arrived(int buffer) override;
  void order_after_arrival(int, Stream&) override {}  // MPI reports arrival only when the data is complete
  void send(int buffer, const Tensor& from, Event& computed) override;
  bool sent(int buffer) override;
  bool progress() override;
  Transfers pop_finished() override;

 private:
  // The messages of a micro-batch that MPI is transferring. A large micro-batch begins with an empty message, which
  // keeps the receiver from sleeping until the others arrive.
  struct Transfer {
    std::vector<MPI_Request> messages;
    size_t done = 0;  // number of leading messages that ended
    double started = 0;

    bool over() const { return done == messages.size(); }
    bool under_way(size_t least) const { return done >= least && !over(); }
  };
  struct Outgoing {
    Tensor from;
    Event* computed = nullptr;  // MPI may read the tensor after this event
  };

  // Calls `start` with each piece of the tensor: its first byte, the number of its elements, and the request to fill
  // in.
  template <class Start>
  void begin(Transfer& transfer, const Tensor& tensor, Start start);
  // Ends transfers in the order in which they began. Returns whether a message ended, or whether the oldest transfer
  // has ended at least `least` messages, so that its others end soon.
  static bool move(std::vector<Transfer>& transfers, std::deque<int>& begun, size_t least, std::vector<Span>& finished);

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::optional<int> previous_, next_;  // ranks of comm_; nothing at the ends of a pipeline
  size_t piece_bytes_;
  std::vector<Transfer> incoming_, outgoing_;  // [buffers]
  std::vector<Outgoing> to_send_;              // [buffers]
  // Buffers whose transfer has not begun, in the order of send(). The receiver relies on this order.
  std::deque<int> pending_;
  std::deque<int> receiving_, sending_;  // buffers whose transfer has begun, oldest first
  Transfers finished_;
  std::unique_ptr<FatalSignals> fatal_signals_;  // over GPU memory
};

// Why GPU memory must be copied to the host for MPI, according to the MPI library; empty if MPI accepts GPU memory
// (device buffers). Call after the start of MPI.
std::string mpi_staging_reason();
// The same for all ranks of the group, because MpiChannel and StagedChannel send different messages. Collective.
std::string mpi_staging_reason(const MpiGroup& ranks);

}  // namespace lfm2
