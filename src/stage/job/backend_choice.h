// Chooses the device that this rank computes on and the transport between the ranks, once, from the options and from
// what every rank finds.
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
  bool nccl = false;                // whether the transport is NCCL; else it is MPI
  std::string staging_reason = {};  // why GPU memory goes over MPI by way of the host, on all ranks; else empty
  int sharing = 1;                  // how many ranks share the device's memory, at most
  // "NCCL" or "MPI"; over MPI on GPUs also which way their memory takes.
  std::string transport_name() const;
};

// Seconds that CUDA and NCCL may take to start. On a busy machine they take tens of seconds at most.
inline constexpr double kStartTimeout = 120;

// The number of the GPU that this rank takes among the `devices` that it sees. Where the launcher gives each rank a GPU
// of its own, a rank sees just that one. Where there are more ranks than devices, they share them.
inline int device_of(const MpiWorld& world, int devices) { return world.local_rank() % devices; }

// Collective. Error(kUnavailable) where the device or transport that the options ask for is not there.
Machine choose_machine(const Options& options, const MpiWorld& world);

// The name of MPI as the transport of GPU memory: over device buffers, or staged and why (mpi_staging_reason()).
std::string mpi_transport_name(const std::string& staging_reason);

// Makes the channel of this rank; null for a single stage.
std::unique_ptr<Channel> make_channel(const MpiGroup& pipeline, const Machine& machine, const ChannelShape& shape);

}  // namespace lfm2
