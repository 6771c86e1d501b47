// Hidden states by the copy engines of GPUs of one host, into the other GPU's memory (CUDA IPC). No SM waits or takes
// part in the transfer, and a copy runs at the speed of the link. Free of CUDA headers, so that stage/job
// can include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// Why ranks cannot copy into the memory of the next ranks' GPUs, round each of the pipelines that the job consists of;
// empty where they can, which is tried. The same on all ranks of the job. Collective.
std::string peer_copies_obstacle(const MpiGroup& job, const MpiGroup& pipeline, Backend& backend,
                                 double timeout_seconds);

// The room for pieces of micro-batches in the memory of a receiver's GPU. Each piece has a fixed cost besides its copy,
// so larger slots reach a higher bandwidth.
struct PeerSlots {
  size_t bytes = size_t{16} << 20;
  uint32_t count = 2;  // a power of two
};

// Connects the edges of this rank to its neighbours. Collective over all ranks. Error(kUnavailable) where the GPUs
// of neighbours do not reach each other's memory.
std::unique_ptr<Channel> make_peer_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape,
                                           PeerSlots slots = {});

}  // namespace lfm2
