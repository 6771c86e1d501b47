// Hidden states over NCCL send/recv between GPUs: one communicator and one stream for each edge and direction, so that
// neither a slow neighbour nor the other direction holds an edge up. Without CUDA headers, for main's sake.
#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// The edges of this rank to the ranks before and after it, connected. Collective over all ranks. Error(kLost) where
// NCCL fails, or where the watchdog sees it stall.
std::unique_ptr<Channel> make_nccl_channel(const MpiGroup& group, Backend& backend);

std::string nccl_version();  // of the library that is loaded: "2.28.9"

}  // namespace lfm2
