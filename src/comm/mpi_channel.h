// Hidden states over MPI, directly between the stages' buffers where MPI takes their memory, else by way of copies on
// the host (staged). Transfers go on while a wait polls progress().
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
  // From each rank of `pipeline` to the next, in a ring also from the last to the first. Collective.
  MpiChannel(const MpiGroup& pipeline, Backend& backend, const ChannelShape& shape);
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel() override;

  void receive(int buffer, const Tensor& into) override;
  bool arrived(int buffer) override;
  void order_after_arrival(int buffer, Stream& compute) override;
  void send(int buffer, const Tensor& from, Event& computed) override;
  bool sent(int buffer) override;
  void progress() override;
  Transfers take_finished() override;

 private:
  struct Incoming {
    Tensor into;  // the stage's buffer
    Buffer host;  // empty where MPI writes into the stage's buffer itself
    MPI_Request request = MPI_REQUEST_NULL;
    bool copying = false;  // the message has arrived in `host`, and its copy to the device is enqueued
    double started = 0;    // time at which the receive was posted; 0 once its end was noted
    std::unique_ptr<Event> copied;
  };
  struct Outgoing {
    Tensor from;  // the stage's buffer
    Buffer host;
    Event* ready = nullptr;  // the event after which MPI may read: computed, or copied to the host
    MPI_Request request = MPI_REQUEST_NULL;
    double started = 0;
    std::unique_ptr<Event> copied;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::optional<int> previous_, next_;  // ranks of comm_; nothing at the ends of the pipeline
  Backend& backend_;
  std::unique_ptr<Stream> to_device_,
      to_host_;  // two streams, so that neither direction waits for the other; null where nothing is copied
  std::vector<Incoming> incoming_;  // [buffers]
  std::vector<Outgoing> outgoing_;  // [buffers]
  // Buffers whose transfer has not begun, in the order of send(), on which the receiver relies.
  std::deque<int> pending_;
  Transfers finished_;
  // Over device buffers, until one was received and one was sent.
  std::unique_ptr<FatalSignals> until_proven_;
  bool has_received_, has_sent_;
  void note_proof(bool& done);
};

// Why the channel copies GPU memory to the host before MPI gets it, as the library itself says; empty where MPI takes
// GPU memory (device buffers). Call after the start of MPI.
std::string mpi_staging_reason();

}  // namespace lfm2
