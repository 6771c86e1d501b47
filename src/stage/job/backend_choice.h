// Chooses this rank's device and the transport between the ranks, once, from the options and the facts of every rank.
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

// Which ranks share a device. Such ranks compute in turn, so more micro-batches make their pipeline no faster.
struct DeviceLayout {
  std::vector<int> device_of = {};  // [ranks of the job]: the number of each rank's device; empty if no ranks share one

  // The devices of the `count` ranks from `first` on; empty if none of them share one.
  std::vector<int> of_ranks(int first, int count) const;
  int turn(int rank) const;  // number of lower ranks that share its device
  int turns() const;         // the most ranks that share a device
};

// How hidden states go from rank to rank.
enum class Transport : uint8_t { kMpi, kNccl, kPeer };

struct Machine {
  std::unique_ptr<Backend> backend = {};
  bool cuda = false;
  Transport transport = Transport::kMpi;
  std::string staging_reason = {};  // why GPU memory is staged in host memory for MPI, on all ranks; else empty
  int sharing = 1;                  // the most ranks that share a device's memory
  DeviceLayout devices = {};        // on CPUs ranks share none, except if they compute in turn
  // "peer copies", "NCCL" or "MPI"; for MPI on GPUs also whether their memory is staged.
  std::string transport_name() const;
};

// Seconds that CUDA and NCCL may take to start. On a busy machine they take tens of seconds at most.
inline constexpr double kStartTimeout = 120;

// The number of this rank's GPU among the visible `devices`. If the launcher assigns a GPU to each rank, the rank sees
// only that one. If there are more ranks than devices, ranks share them.
inline int device_of(const MpiWorld& world, int devices) { return world.local_rank() % devices; }

// Collective. Error(kUnavailable) if the requested device or transport is not available. On CPUs, if at most `at_once`
// ranks compute at a time, they use the processors of all ranks, unless --threads is given.
Machine choose_machine(const Options& options, const MpiWorld& world, int64_t at_once);

// Derives the layout from the name of each rank's device.
DeviceLayout device_layout(const std::vector<std::string>& names);

// Calls `work` on every rank. Ranks that share a device call it one after another, so that timings are made on an idle
// device. Collective.
void in_turns(const MpiWorld& world, const DeviceLayout& layout, double timeout_seconds,
              const std::function<void()>& work);

// The name of MPI as the transport of GPU memory: over device buffers, or staged, with the reason
// (mpi_staging_reason()).
std::string mpi_transport_name(const std::string& staging_reason);

// A text that names the first key beyond the limits of the kernels, its value and the limit. Empty if the GPU backend
// can compute the model.
std::string gpu_refusal(const ModelConfig& config);
// Error(kUnavailable) with that text if it is not empty. `what` names the model.
void expect_gpu_computes(const ModelConfig& config, const std::string& what);

// Makes the channel of this rank; null for a single stage.
std::unique_ptr<Channel> make_channel(const MpiGroup& pipeline, const Machine& machine, const ChannelShape& shape);

}  // namespace lfm2
