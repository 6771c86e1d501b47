// Hidden states over NCCL between GPUs: one communicator and one stream for each edge and direction, so that neither a
// slow neighbour nor the other direction delays an edge. Free of CUDA headers, so that stage/job can include it.
#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// Connects this rank to its neighbours. Collective over all ranks. Error(kLost) if NCCL fails or the watchdog finds it
// stalled.
std::unique_ptr<Channel> make_nccl_channel(const MpiGroup& group, Backend& backend, const ChannelShape& shape);

std::string nccl_version();  // version of the library that is loaded: "2.28.9"

}  // namespace lfm2
