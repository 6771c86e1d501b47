// Hidden states between GPUs of one host: a GPU's copy engine writes into the other GPU's memory (CUDA IPC). No SM
// takes part in the transfer, and a copy runs at the speed of the link. Free of CUDA headers, so that stage/job can
// include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// Tries whether each rank can copy into the memory of the next rank's GPU, in every pipeline of the job. Returns the
// reason if one of them cannot, else an empty text; the same on all ranks of the job. Collective.
std::string peer_copies_obstacle(const MpiGroup& job, const MpiGroup& pipeline, Backend& backend,
                                 double timeout_seconds);

// Slots for pieces of micro-batches in the memory of the receiving GPU. Each piece has a fixed cost besides its copy,
// so larger slots reach a higher bandwidth.
struct PeerSlots {
  size_t bytes = size_t{16} << 20;
  uint32_t count = 2;  // a power of two
};

// Connects this rank to its neighbours. Collective over all ranks. Error(kUnavailable) if the GPUs of neighbours cannot
// access each other's memory.
std::unique_ptr<Channel> make_peer_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape,
                                           PeerSlots slots = {});

}  // namespace lfm2
