// Gathers facts from the system, the libraries and the shards.
#include "stage/doctor/doctor_facts.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/host_memory.h"
#include "base/json/json.h"
#include "comm/launch.h"
#include "comm/mpi_channel.h"
#include "stage/hdf5/h5.h"
#include "stage/io/partial_file.h"
#include "stage/job/backend_choice.h"
#include "stage/job/session.h"
#include "stage/scoring/plan.h"
#include "stage/shards/fp8_weights.h"
#include "stage/version.h"
#if LFM2_HAS_CUDA
#include "comm/gpu/nccl_channel.h"
#include "kernels/cuda/cuda_backend.h"
#endif

namespace lfm2 {

namespace {

std::vector<int> usable_processors() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(static_cast<size_t>(i), &mine)) processors.push_back(i);
  return processors;
}

uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

void find_host(RankFacts& facts, const MpiWorld& world) {
  facts.rank = world.rank();
  facts.host = world.host();
  facts.ranks_on_host = world.local_size();
  facts.launched = launched_ranks();
  const std::vector<int> processors = usable_processors();
  facts.processors = processor_list(processors);
  facts.usable_processors = static_cast<int>(processors.size());
  facts.all_processors = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.share = world.fair_share_of_processors();
  facts.processor_limits = world.processor_limits();
  facts.versions = {{"lfm2_stage", kVersionText}, {"MPI", mpi_library_version()}, {"HDF5", h5::library_version()}};
  facts.mpi_staging_reason = mpi_staging_reason();
  facts.free_memory_bytes = available_host_memory();
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    facts.shm_bytes = shm.f_blocks * shm.f_frsize;
    facts.free_shm_bytes = shm.f_bavail * shm.f_frsize;
  }
  facts.lockable_bytes = soft_limit(RLIMIT_MEMLOCK);
  facts.open_files = soft_limit(RLIMIT_NOFILE);
  facts.address_bytes = soft_limit(RLIMIT_AS);
}

void find_gpu([[maybe_unused]] RankFacts& facts, [[maybe_unused]] const MpiWorld& world) {
#if LFM2_HAS_CUDA
  facts.versions["NCCL"] = nccl_version();
  facts.visible_gpus = cuda_device_count();
  if (facts.visible_gpus == 0) return;
  facts.versions["CUDA"] = cuda_versions();
  const int device = device_of(world, facts.visible_gpus);
  const CudaDeviceFacts found = cuda_device_facts(device);
  facts.gpu = fmt::format("GPU {}, {}", device, found.name);
  facts.gpu_uuid = found.uuid;
  facts.gpu_bus = found.bus_id;
  facts.free_gpu_bytes = found.free_bytes;
  facts.all_gpu_bytes = found.total_bytes;
  for (const CudaPeer& peer : cuda_peers(device))
    facts.peers[peer.uuid] = peer.atomics ? kNvlink : peer.direct ? kPcie : kThroughHost;
#endif
}

// As in the built-in job.
void plan_memory(RankFacts& facts, const Options& options, const MpiWorld& world) {
  ShardSet shards = ShardSet::open(options.weights);
  leave_out_unneeded(shards, options.results);
  const ModelConfig& config = shards.config();
  facts.split_id = shards.split_id();
  facts.model_layers = config.layers;
  if (facts.visible_gpus > 0 && options.device != DeviceChoice::kCpu)
    if (const std::string refusal = gpu_refusal(config); !refusal.empty()) facts.problems.push_back(refusal);
  if (world.size() % options.replicas != 0) return;
  const int stages = world.size() / options.replicas, stage = world.rank() % stages;
  const PipelineShape shape{.stages = stages, .pieces = std::max<int64_t>(1, options.virtual_stages)};
  if (stages > config.layers) return;
  const std::vector<LayerRange> pieces =
      pieces_of(given_partition(config.layers, stages, options.layer_counts, shape.pieces), stages, stage);
  const SampleOffsets offsets = SampleOffsets::equally_long(options.samples, options.length);
  const int64_t target = choose_target_tokens(offsets.back() / options.replicas, shape,
                                              facts.visible_gpus > 0 ? kMaxCudaTarget : kMaxCpuTarget);
  const BatchPlan plan =
      MicroBatches(offsets, {}, {.samples = options.micro_batch, .tokens = target, .replicas = options.replicas})
          .plan();
  const DType compute = shards.choose_dtype(options.dtype);
  shards.choose_cache_dtype(options.cache_dtype, compute);
  // Of the kinds of results, doctor knows only --score, where nearly every position is a row, and --hidden.
  const int64_t rows = options.results.score ? plan.max_tokens : plan.max_rows(options.results);
  const StageMemory cost = stage_memory(shards, pieces, compute, plan.max_tokens, rows);
  const auto buffers = static_cast<uint64_t>(Schedule(shape, stage, plan.micro_batches).buffers());
  facts.layers = layers_text(pieces);
  facts.tokens = plan.max_tokens;
  facts.row_bytes = config.hidden * static_cast<int64_t>(size_bytes(compute));
  facts.dtype = dtype_text(name(shards.products_in_fp8() ? DType::kF8 : compute), fp8_kind(shards));
  if (config.fp8_cache) facts.dtype += ", keys and values in fp8";
  facts.weight_bytes = cost.weight_bytes;
  facts.activation_bytes = cost.total_bytes(buffers) - cost.weight_bytes;
}

void find_output(RankFacts& facts, const Options& options) {
  facts.output = find_output_place(options.output);
  facts.writes_output = true;
  expect_names_are_ours(options.output);
}

}  // namespace

std::string processor_list(const std::vector<int>& processors) {
  std::string text;
  for (size_t i = 0; i < processors.size();) {
    size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", processors[i]) : fmt::format("{}-{}", processors[i], processors[last]);
    i = last + 1;
  }
  return text;
}

RankFacts find_facts(const Options& options, const MpiWorld& world) {
  RankFacts facts;
  find_host(facts, world);
  const auto note = [&](auto&& find) {
    try {
      find();
    } catch (const Error& error) {
      facts.problems.push_back(error.what());
    }
  };
  note([&] {
    if (options.device != DeviceChoice::kCpu) find_gpu(facts, world);
  });
  note([&] {
    if (!options.weights.empty()) plan_memory(facts, options, world);
  });
  note([&] {
    if (!options.output.empty() && (world.rank() + 1) * options.replicas == world.size()) find_output(facts, options);
  });
  return facts;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OutputPlace, has_locks, free_bytes, files, free_files, largest_file_bytes)

// These are for nlohmann_json, which looks for them in the namespace of the types.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, host, ranks_on_host, launched, processors, usable_processors,
                                   all_processors, share, processor_limits, versions, mpi_staging_reason,
                                   free_memory_bytes, shm_bytes, free_shm_bytes, lockable_bytes, open_files,
                                   address_bytes, visible_gpus, gpu, gpu_uuid, gpu_bus, free_gpu_bytes, all_gpu_bytes,
                                   peers, problems, split_id, model_layers, layers, tokens, row_bytes, dtype,
                                   weight_bytes, activation_bytes, writes_output, output)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrialFacts, device, transport, problem, bytes_per_second, round_trip_seconds)

std::string to_json(const RankFacts& facts) { return json_text(Json(facts)); }
std::string to_json(const TrialFacts& facts) { return json_text(Json(facts)); }
RankFacts rank_facts_from_json(const std::string& text) { return parse_json(text, "facts of a rank"); }
TrialFacts trial_facts_from_json(const std::string& text) { return parse_json(text, "facts of a trial"); }

}  // namespace lfm2
