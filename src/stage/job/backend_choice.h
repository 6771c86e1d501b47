// Which device this rank computes on and which transport joins the ranks: decided once, from the options and what every
// rank finds.
#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "kernels/backend.h"
#include "stage/job/options.h"

namespace lfm2 {

struct Machine {
  std::unique_ptr<Backend> backend;
  bool cuda = false;
  bool nccl = false;  // else MPI
  int sharing = 1;    // ranks that share the device's memory, or may
  std::string transport_name() const;
};

// CUDA and NCCL on a busy machine take tens of seconds at most to start.
inline constexpr double kStartTimeout = 120;

// The GPU of this rank among the `devices` that it sees. One visible device may be a launcher's choice for this rank;
// more ranks than devices share them.
inline int device_of(const MpiWorld& world, int devices) { return world.local_rank() % devices; }

// Collective. Error(kUnavailable) where the wanted device or transport is not there.
Machine choose_machine(const Options& options, const MpiWorld& world);

// Null for a single stage. `buffer_bytes` of the largest micro-batch.
std::unique_ptr<Channel> make_channel(const MpiGroup& pipeline, const Machine& machine, size_t buffer_bytes);

}  // namespace lfm2
