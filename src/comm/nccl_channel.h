// Hidden states over NCCL send/recv between GPUs: one communicator and one stream for each edge and direction, so that
// neither a slow neighbour nor the other direction holds an edge up. Without CUDA headers, for main's sake.
#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// The edges of this rank to the ranks before and after it. Collective over all ranks. Error(kLost) where the
// communicators are not up after `timeout_seconds`; Error(kUnavailable) where NCCL refuses them.
std::unique_ptr<Channel> make_nccl_channel(const MpiGroup& group, Backend& backend, double timeout_seconds);

std::string nccl_version();  // of the library that is loaded: "2.28.9"

}  // namespace lfm2
