// Chooses the device that this rank computes on and the transport between the ranks, once, from the options and from
// what every rank finds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "kernels/backend.h"
#include "stage/job/options.h"
#include "stage/model/model_config.h"

namespace lfm2 {

// Which ranks share a device: they compute in turn, so a pipeline of them is no faster for more micro-batches.
struct DeviceLayout {
  std::vector<int> device_of = {};  // [ranks of the job]: a number for each device; empty where every rank has its own

  // Those of the `count` ranks from `first` on; empty where none of them share one.
  std::vector<int> of_ranks(int first, int count) const;
  int turn(int rank) const;  // how many ranks before it share its device
  int turns() const;         // how many ranks share a device, at most
};

// How hidden states go from rank to rank.
enum class Transport : uint8_t { kMpi, kNccl, kPeer };

struct Machine {
  std::unique_ptr<Backend> backend = {};
  bool cuda = false;
  Transport transport = Transport::kMpi;
  std::string staging_reason = {};  // why GPU memory goes over MPI by way of the host, on all ranks; else empty
  int sharing = 1;                  // how many ranks share the device's memory, at most
  DeviceLayout devices = {};        // on CPUs every rank has processors of its own, but where ranks take turns
  // "peer copies", "NCCL" or "MPI"; over MPI on GPUs also which way their memory takes.
  std::string transport_name() const;
};

// Seconds that CUDA and NCCL may take to start. On a busy machine they take tens of seconds at most.
inline constexpr double kStartTimeout = 120;

// The number of the GPU that this rank takes among the `devices` that it sees. Where the launcher gives each rank a GPU
// of its own, a rank sees just that one. Where there are more ranks than devices, they share them.
inline int device_of(const MpiWorld& world, int devices) { return world.local_rank() % devices; }

// Collective. Error(kUnavailable) where the device or transport that the options ask for is not there. On CPUs, where
// no more ranks than `at_once` compute at a time, these have the processors of all, if --threads says nothing else.
Machine choose_machine(const Options& options, const MpiWorld& world, int64_t at_once);

// From the name of each rank's device.
DeviceLayout device_layout(const std::vector<std::string>& names);

// Calls `work` on every rank, on those that share a device one after the other: what is timed in it, is timed on an
// idle device. Collective.
void in_turns(const MpiWorld& world, const DeviceLayout& layout, double timeout_seconds,
              const std::function<void()>& work);

// The name of MPI as the transport of GPU memory: over device buffers, or staged and why (mpi_staging_reason()).
std::string mpi_transport_name(const std::string& staging_reason);

// A text that names the first key that is beyond the limits of the kernels, its value and the limit. Empty where the
// GPU backend can compute the model.
std::string gpu_refusal(const ModelConfig& config);
// Error(kUnavailable) with that text where it is not empty. `what` names the model.
void expect_gpu_computes(const ModelConfig& config, const std::string& what);

// Makes the channel of this rank; null for a single stage.
std::unique_ptr<Channel> make_channel(const MpiGroup& pipeline, const Machine& machine, const ChannelShape& shape);

}  // namespace lfm2
