// Hidden states of a GPU over an MPI that accepts only host memory. Each micro-batch goes through pinned host memory in
// pieces. MPI transfers some pieces while others are copied from or to the GPU.
#pragma once

#include <memory>

#include "comm/channel.h"
#include "comm/mpi_world.h"

namespace lfm2 {

// The host memory of one direction: `count` pieces of `bytes`, used in turn.
struct StagingPieces {
  size_t bytes = size_t{256} << 10;
  int count = 32;
};

// Connects each rank of `pipeline` to the next, in a ring also the last to the first. Transfers advance while a wait
// polls progress(). Collective.
std::unique_ptr<Channel> make_staged_channel(const MpiGroup& pipeline, Backend& backend, const ChannelShape& shape,
                                             StagingPieces pieces = {});

}  // namespace lfm2
