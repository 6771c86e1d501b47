// Every build has the CPU backend over MPI. A build with CUDA also has GPUs, over copies between peers, NCCL or MPI.
#include "stage/job/backend_choice.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "comm/mpi_channel.h"
#include "comm/staged_channel.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/common/limits.h"
#if LFM2_HAS_CUDA
#include "comm/gpu/nccl_channel.h"
#include "comm/gpu/peer_channel.h"
#include "kernels/cuda/cuda_backend.h"
#endif

namespace lfm2 {

namespace {

// Which ranks share a device, from the names of their devices. Collective.
DeviceLayout shared_layout(const MpiWorld& world, const std::string& name) {
  const std::vector<std::string> names = world.gather(name, 0, kStartTimeout, "devices");
  return device_layout(world.broadcast_value(names, 0, kStartTimeout, "devices"));
}

Machine cpu_machine(const Options& options, const MpiWorld& world, int64_t at_once) {
  if (moves_gpu_memory(options.transport))
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("--transport {}: the ranks compute on the CPU, and it moves GPU memory: expected --transport "
                    "mpi or auto",
                    transport_option(options.transport)));
  const int share = world.fair_share_of_processors(at_once), threads = options.threads > 0 ? options.threads : share;
  const bool in_turns = at_once < world.size() && options.threads == 0;
  return {.backend = std::make_unique<CpuBackend>(threads, options.simd, threads <= share),
          .sharing = world.local_size(),
          .devices = in_turns ? shared_layout(world, world.host()) : DeviceLayout()};
}

#if LFM2_HAS_CUDA
// Collective.
void expect_peer_copies(const MpiWorld& world, int replicas, Backend& backend) {
  const MpiGroup pipeline(world, world.rank() / (world.size() / replicas));
  const std::string obstacle = peer_copies_obstacle(world, pipeline, backend, kStartTimeout);
  if (!obstacle.empty())
    throw Error(ExitCode::kUnavailable,
                fmt::format("--transport peer: {}: expected --transport auto or mpi", obstacle));
}

Machine cuda_machine(const Options& options, const MpiWorld& world, int devices) {
  const int device = device_of(world, devices);
  DeviceLayout layout = shared_layout(world, cuda_device_facts(device).uuid);
  const bool distinct = layout.device_of.empty();  // NCCL cannot join ranks that share a GPU
  if (options.transport == TransportChoice::kNccl && !distinct)
    throw Error(ExitCode::kUnavailable,
                fmt::format("--transport nccl: {} ranks on {} see {} GPU{}, NCCL needs one for each rank: expected "
                            "--transport mpi or auto",
                            world.local_size(), world.host(), devices, devices == 1 ? "" : "s"));
  Machine machine{.cuda = true,
                  .staging_reason = mpi_staging_reason(world),
                  .sharing = (world.local_size() + devices - 1) / devices,
                  .devices = std::move(layout)};
  // If CUDA does not start on a rank, other ranks do not wait for it in the following collectives.
  std::exception_ptr failed;
  try {
    machine.backend = make_cuda_backend(device, {.plain_fp32 = options.plain_fp32});
  } catch (const Error&) {
    failed = std::current_exception();
  }
  const bool all_started = world.all_ranks(failed == nullptr, kStartTimeout);
  if (failed) std::rethrow_exception(failed);
  const bool pipelines = world.size() > options.replicas && world.size() % options.replicas == 0;
  if (!all_started || !pipelines) return machine;
  if (options.transport == TransportChoice::kPeer) {
    expect_peer_copies(world, options.replicas, *machine.backend);
    machine.transport = Transport::kPeer;
  } else if (options.transport != TransportChoice::kMpi && distinct) {
    machine.transport = Transport::kNccl;
  }
  return machine;
}
#endif

}  // namespace

std::vector<int> DeviceLayout::of_ranks(int first, int count) const {
  if (device_of.empty()) return {};
  const std::vector<int> devices(device_of.begin() + first, device_of.begin() + first + count);
  const bool shared = std::set<int>(devices.begin(), devices.end()).size() < devices.size();
  return shared ? devices : std::vector<int>();
}

int DeviceLayout::turn(int rank) const {
  if (device_of.empty()) return 0;
  const auto own = device_of.begin() + rank;
  return static_cast<int>(std::count(device_of.begin(), own, *own));
}

int DeviceLayout::turns() const {
  int most = 1;
  for (int rank = 0; rank < static_cast<int>(device_of.size()); ++rank) most = std::max(most, turn(rank) + 1);
  return most;
}

DeviceLayout device_layout(const std::vector<std::string>& names) {
  DeviceLayout layout;
  std::vector<std::string> known;
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    layout.device_of.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(name);
  }
  if (known.size() == names.size()) layout.device_of.clear();
  return layout;
}

void in_turns(const MpiWorld& world, const DeviceLayout& layout, double timeout_seconds,
              const std::function<void()>& work) {
  for (int turn = 0; turn < layout.turns(); ++turn) {
    if (layout.turn(world.rank()) == turn) work();
    if (layout.turns() > 1) world.barrier(timeout_seconds, "turn on a shared device");
  }
}

std::string Machine::transport_name() const {
  if (transport == Transport::kPeer) return "peer copies";
  if (transport == Transport::kNccl) return "NCCL";
  return backend->memory_is_host_memory() ? "MPI" : mpi_transport_name(staging_reason);
}

std::string mpi_transport_name(const std::string& staging_reason) {
  return staging_reason.empty() ? "MPI, device buffers" : "MPI, staged: " + staging_reason;
}

Machine choose_machine(const Options& options, const MpiWorld& world, int64_t at_once) {
#if LFM2_HAS_CUDA
  if (options.device != DeviceChoice::kCpu) {
    const int devices = cuda_device_count();
    if (world.all_ranks(devices > 0)) return cuda_machine(options, world, devices);
    if (options.device == DeviceChoice::kCuda)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("--device cuda: {} GPUs here and none for at least one rank, expected one for each rank",
                              devices));
  }
#else
  if (options.device == DeviceChoice::kCuda)
    throw Error(ExitCode::kUnavailable,
                "--device cuda: this program was built without CUDA, expected --device cpu or auto");
#endif
  return cpu_machine(options, world, at_once);
}

std::string gpu_refusal(const ModelConfig& config) {
  struct Limit {
    bool applies;  // whether the model has layers to which the limit applies
    std::string_view key;
    int64_t found, max;
  };
  const auto any = [&](bool attention) {
    return std::any_of(config.layer_types.begin(), config.layer_types.end(),
                       [=](LayerType type) { return is_attention(type) == attention; });
  };
  const bool attends = any(true), convolves = any(false), has_key = config.type == ModelType::kLfm3;
  const Limit limits[] = {
      {attends, has_key ? "head_dim" : "hidden_size / num_attention_heads", config.head_dim, kMaxHeadDim},
      {attends, "num_attention_heads / num_key_value_heads", config.heads / config.kv_heads, kMaxQueriesPerKey},
      {attends, "num_key_value_heads", config.kv_heads, kMaxKeyHeads},
      {convolves, "hidden_size", config.hidden, kMaxConvChannels},
      {config.dense_layers < config.layers, "num_experts", config.experts, kMaxExperts}};
  for (const Limit& limit : limits)
    if (limit.applies && limit.found > limit.max)
      return fmt::format("{} is {}, expected at most {} on GPUs: --device cpu computes this model", limit.key,
                         limit.found, limit.max);
  return "";
}

void expect_gpu_computes(const ModelConfig& config, const std::string& what) {
  const std::string refusal = gpu_refusal(config);
  if (!refusal.empty()) throw Error(ExitCode::kUnavailable, what + ": " + refusal);
}

std::unique_ptr<Channel> make_channel(const MpiGroup& pipeline, const Machine& machine, const ChannelShape& shape) {
  if (pipeline.size() == 1) return nullptr;
#if LFM2_HAS_CUDA
  if (machine.transport == Transport::kPeer) return make_peer_channel(pipeline, *machine.backend, shape);
  if (machine.transport == Transport::kNccl) return make_nccl_channel(pipeline, *machine.backend, shape);
#endif
  if (!machine.staging_reason.empty()) return make_staged_channel(pipeline, *machine.backend, shape);
  return std::make_unique<MpiChannel>(pipeline, *machine.backend, shape);
}

}  // namespace lfm2
