// The diagnoses: one function for each possible fault of a machine or a launch.
#include "stage/doctor/doctor_findings.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/bytes_text.h"
#include "comm/launch.h"

namespace lfm2 {

namespace {

// The space that a rank needs in /dev/shm: NCCL's buffers between GPUs without a direct link.
constexpr uint64_t kShmOfGpuRank = uint64_t{64} << 20;
// Open MPI's shared segment of a rank is 4 MiB; twice that leaves room.
constexpr uint64_t kShmOfCpuRank = uint64_t{8} << 20;
constexpr uint64_t kLeastLockable = uint64_t{64} << 20;
constexpr uint64_t kLeastFiles = 128;
constexpr uint64_t kLeastSpace = uint64_t{1} << 30;
constexpr uint64_t kFilesOfOutput = 3;  // the output, its journal, and the next state of one of them
constexpr double kNearlyFull = 0.9;
constexpr double kSlowLink = 1.0 / 3;      // share of the fastest link of the same kind
constexpr double kSlowNetwork = 1e9;       // bytes per second; a link of 10 Gbit/s reaches more
constexpr double kSlowAnswer = 1e-3;       // seconds for a round trip within one host
constexpr uint64_t kGpuContext = 1 << 30;  // bytes for CUDA itself, NCCL and the scratch of the operators

using Findings = std::vector<Finding>;

std::string ranks_text(const std::vector<size_t>& ranks) {
  const std::string list = processor_list({ranks.begin(), ranks.end()});
  return (ranks.size() == 1 ? "rank " : "ranks ") + list;
}

// If hosts differ in a value: "x on a; y on b, c". Empty if all hosts agree.
std::string differences(const Examination& e, const std::function<std::string(size_t)>& value_of) {
  std::map<std::string, std::vector<std::string>> hosts_of;
  for (size_t rank = 0; rank < e.ranks.size(); ++rank) {
    std::vector<std::string>& hosts = hosts_of[value_of(rank)];
    if (std::find(hosts.begin(), hosts.end(), e.ranks[rank].host) == hosts.end()) hosts.push_back(e.ranks[rank].host);
  }
  if (hosts_of.size() < 2) return "";
  std::vector<std::string> parts;
  for (const auto& [value, hosts] : hosts_of)
    parts.push_back(fmt::format("{} on {}", value.empty() ? "none" : value, fmt::join(hosts, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

void look_at_launch(const Examination& e, Findings& found) {
  const RankFacts& first = e.ranks.front();
  if (const auto fault =
          ranks_that_run_alone(first.launched, static_cast<int>(e.ranks.size()), first.versions.at("MPI")))
    found.push_back({true, fault->what, fault->todo});
  if (e.ranks.size() % static_cast<size_t>(e.options.replicas) != 0)
    found.push_back({true, fmt::format("{} ranks for --replicas {}", e.ranks.size(), e.options.replicas),
                     "the same number of ranks for each replica"});
  if (const int64_t layers = first.model_layers; layers > 0 && e.stages() > static_cast<size_t>(layers))
    found.push_back({true, fmt::format("{} ranks for the {} layers of the model", e.stages(), layers),
                     "at most a rank a layer; --replicas uses more"});
}

void look_at_problems(const Examination& e, Findings& found) {
  // Keyed by the text, so that a problem of many ranks is one finding.
  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < e.ranks.size(); ++rank)
    for (const std::string& problem : e.ranks[rank].problems) ranks_of[problem].push_back(rank);
  for (size_t rank = 0; rank < e.trials.size(); ++rank)
    if (!e.trials[rank].problem.empty()) ranks_of[e.trials[rank].problem].push_back(rank);
  for (const auto& [problem, ranks] : ranks_of) {
    const bool nccl = problem.find("NCCL") != std::string::npos || problem.find("nccl") != std::string::npos;
    found.push_back({true, ranks_text(ranks) + ": " + problem,
                     nccl ? "NCCL_DEBUG=WARN says more; --transport mpi does without NCCL" : ""});
  }
}

void look_at_shards(const Examination& e, Findings& found) {
  // The placeholder of ranks without shards, whose missing shards are reported as a separate problem.
  std::string any;
  for (const RankFacts& rank : e.ranks)
    if (any.empty()) any = rank.split_id;
  const std::string splits =
      differences(e, [&](size_t rank) { return e.ranks[rank].split_id.empty() ? any : e.ranks[rank].split_id; });
  if (!splits.empty())
    found.push_back({true, "other shards from host to host: split " + splits, "the same folder on all hosts"});
}

void look_at_versions(const Examination& e, Findings& found) {
  std::set<std::string> names;
  for (const RankFacts& rank : e.ranks)
    for (const auto& [name, version] : rank.versions) names.insert(name);
  for (const std::string& name : names) {
    const std::string versions = differences(e, [&](size_t rank) {
      const auto found_version = e.ranks[rank].versions.find(name);
      return found_version == e.ranks[rank].versions.end() ? "" : found_version->second;
    });
    const bool must_match = name == "lfm2_stage" || name == "MPI" || name == "NCCL";
    if (!versions.empty()) found.push_back({must_match, fmt::format("{}: {}", name, versions), "the same everywhere"});
  }
}

void look_at_devices(const Examination& e, Findings& found) {
  const std::string kinds = differences(e, [&](size_t rank) {
    if (e.trials.empty()) return std::string();
    // The last part is the instruction set of a CPU or the name of a GPU.
    const std::string& device = e.trials[rank].device;
    return device.substr(device.find_last_of(',') + 1);
  });
  const bool all_tried =
      std::none_of(e.trials.begin(), e.trials.end(), [](const TrialFacts& trial) { return trial.device.empty(); });
  if (!kinds.empty() && all_tried)
    found.push_back({false, "unequal devices:" + kinds + ": the bits of results depend on which stage runs where",
                     e.on_gpus() ? "GPUs of one kind" : "--simd avx2 on all"});
}

void look_at_order(const Examination& e, Findings& found) {
  for (size_t first = 0; first < e.ranks.size(); first += e.stages()) {
    std::set<std::string> hosts{e.ranks[first].host};
    size_t crossings = 0;
    for (size_t rank = first; rank < e.ranks.size() && e.has_next(rank); ++rank) {
      hosts.insert(e.ranks[rank + 1].host);
      if (e.ranks[rank].host != e.ranks[rank + 1].host) ++crossings;
    }
    if (crossings < hosts.size()) continue;
    found.push_back(
        {false,
         fmt::format("{} of the pipeline's links go from host to host, {} would do", crossings, hosts.size() - 1),
         "fill one host after the other: mpirun --map-by slot, srun --distribution=block"});
    break;  // replicas have the same order of hosts, so one finding is enough
  }
}

void look_at_memory(const Examination& e, Findings& found) {
  std::map<std::string, std::vector<size_t>> users;
  for (size_t rank = 0; rank < e.ranks.size(); ++rank)
    users[e.on_gpus() ? e.ranks[rank].gpu_uuid : e.ranks[rank].host].push_back(rank);
  for (const auto& [place, ranks] : users) {
    const RankFacts& first = e.ranks[ranks.front()];
    const uint64_t free = e.on_gpus() ? first.free_gpu_bytes : first.free_memory_bytes;
    uint64_t needed = 0;
    for (const size_t rank : ranks)
      if (const uint64_t bytes = e.ranks[rank].needed_bytes(); bytes > 0)
        needed += bytes + (e.on_gpus() ? kGpuContext : 0);
    const double share = free > 0 ? static_cast<double>(needed) / static_cast<double>(free) : 0;
    if (share <= kNearlyFull) continue;
    found.push_back({share > 1,
                     fmt::format("{} on {}{}: {} of memory needed, {} free", ranks_text(ranks), first.host,
                                 e.on_gpus() ? ", " + first.gpu : "", bytes_text(needed), bytes_text(free)),
                     e.on_gpus()
                         ? "end what else uses the GPU (nvidia-smi), more GPUs, or --dtype bf16"
                         : "more hosts, a smaller --micro-batch, or --dtype bf16; in a container or a batch job, "
                           "ask for more memory"});
  }
}

void look_at_processors(const Examination& e, Findings& found) {
  for (const std::string& host : e.hosts()) {
    const std::vector<size_t> ranks = e.ranks_of(host);
    const int count = static_cast<int>(ranks.size()), all = e.ranks[ranks.front()].all_processors;
    const int used =
        std::accumulate(ranks.begin(), ranks.end(), 0, [&](int sum, size_t rank) { return sum + e.ranks[rank].share; });
    const std::vector<std::string>& limits = e.ranks[ranks.front()].processor_limits;
    if (!e.on_gpus() && !limits.empty())
      found.push_back({false,
                       fmt::format("{} on {} may use {} of {} processors: {}", ranks_text(ranks), host, used, all,
                                   fmt::join(limits, ", ")),
                       "a larger quota (docker --cpus, the limit of a pod or job), and all CPUs for the tasks"});
    else if (count > all)
      found.push_back({false, fmt::format("{} ranks take turns on the {} processors of {}", count, all, host),
                       "at most a rank a processor; fewer ranks with more threads are no slower"});
    else if (!e.on_gpus() && 2 * used <= all)
      found.push_back({false, fmt::format("{} on {} may use {} of {} processors", ranks_text(ranks), host, used, all),
                       "mpirun --bind-to none, srun --cpus-per-task, or fewer restrictions on the container"});
  }
}

void look_at_gpus(const Examination& e, Findings& found) {
  std::vector<size_t> without;
  std::map<std::string, std::vector<size_t>> users;
  for (size_t rank = 0; rank < e.ranks.size(); ++rank) {
    if (e.ranks[rank].visible_gpus == 0) without.push_back(rank);
    if (!e.ranks[rank].gpu_uuid.empty()) users[e.ranks[rank].gpu_uuid].push_back(rank);
  }
  if (!without.empty() && !users.empty())
    found.push_back({false, "no GPU for " + ranks_text(without) + ", others have one: all would compute on the CPU",
                     "GPUs for every rank: --gres=gpu:N, CUDA_VISIBLE_DEVICES, nvidia-smi"});
  if (!e.on_gpus()) return;
  for (const auto& [uuid, ranks] : users) {
    if (ranks.size() == 1) continue;
    const RankFacts& first = e.ranks[ranks.front()];
    const std::string& reason = first.mpi_staging_reason;
    if (e.options.transport == TransportChoice::kPeer) {
      found.push_back(
          {false,
           fmt::format("{} share {} on {}: peer copies wait for its turns", ranks_text(ranks), first.gpu, first.host),
           "a GPU for each rank of a host, or --transport mpi"});
      continue;
    }
    found.push_back(
        {false,
         fmt::format("{} share {} on {}: NCCL cannot join them, hidden states go over MPI{}", ranks_text(ranks),
                     first.gpu, first.host, reason.empty() ? "" : fmt::format(" and through the host ({})", reason)),
         fmt::format("a GPU for each rank of a host{}",
                     reason.empty() ? "" : ", or a CUDA-aware Open MPI (packaging/openmpi-cuda.sh)")});
  }
  std::vector<size_t> hidden, slow;
  for (size_t rank = 0; rank < e.ranks.size(); ++rank) {
    if (!e.has_next(rank) || e.ranks[rank].host != e.ranks[rank + 1].host) continue;
    const RankFacts &mine = e.ranks[rank], &next = e.ranks[rank + 1];
    if (mine.gpu_uuid == next.gpu_uuid) continue;
    const auto peer = mine.peers.find(next.gpu_uuid);
    if (peer == mine.peers.end())
      hidden.push_back(rank);
    else if (peer->second == kThroughHost)
      slow.push_back(rank);
  }
  if (!hidden.empty() && e.options.transport != TransportChoice::kPeer)
    found.push_back({false, ranks_text(hidden) + " cannot see the GPU of the next rank: NCCL may lose its direct way",
                     "all GPUs visible to all ranks: --gres=gpu:N without --gpus-per-task and --gpu-bind"});
  if (!slow.empty())
    found.push_back({false, ranks_text(slow) + " cannot reach the next rank's GPU directly (no peer access)",
                     "GPUs that nvidia-smi topo -m joins; IOMMU and ACS off where the host is ours"});
}

void look_at_limits(const Examination& e, Findings& found) {
  for (const std::string& host : e.hosts()) {
    const std::vector<size_t> ranks = e.ranks_of(host);
    const RankFacts& first = e.ranks[ranks.front()];
    const uint64_t shm = ranks.size() * (e.on_gpus() ? kShmOfGpuRank : kShmOfCpuRank);
    if (ranks.size() > 1 && first.free_shm_bytes < shm)
      found.push_back({false,
                       fmt::format("/dev/shm on {}: {} free, {} ranks may want {}", host,
                                   bytes_text(first.free_shm_bytes), ranks.size(), bytes_text(shm)),
                       "docker --shm-size=1g, or remount it larger; remove what ended jobs left there"});
    if (e.hosts().size() > 1 && first.lockable_bytes < kLeastLockable)
      found.push_back({false,
                       fmt::format("locked memory on {}: {} a process; InfiniBand wants more", host,
                                   bytes_text(first.lockable_bytes)),
                       "ulimit -l unlimited, docker --ulimit memlock=-1"});
    if (first.open_files < kLeastFiles)
      found.push_back(
          {false, fmt::format("open files on {}: at most {} a process", host, first.open_files), "ulimit -n 1024"});
    if (first.address_bytes != std::numeric_limits<uint64_t>::max())
      found.push_back({false,
                       fmt::format("addresses on {}: at most {} a process, for libraries, weights, caches and samples",
                                   host, bytes_text(first.address_bytes)),
                       "ulimit -v unlimited; a batch system sets it by h_vmem or vmem"});
  }
}

void look_at_output(const Examination& e, Findings& found) {
  const RankFacts* writer = e.writer();
  if (writer == nullptr) return;
  const OutputPlace& place = writer->output;
  const std::string where = fmt::format("{} on {}", e.options.output.string(), writer->host);
  if (!place.has_locks)
    found.push_back({false, where + ": the file system has no locks, so two runs that write one output are not noticed",
                     "one run at a time for each output; mount NFS with a lock daemon, Lustre with -o flock"});
  if (place.free_bytes < kLeastSpace)
    found.push_back({place.free_bytes == 0, fmt::format("{}: {} free", where, bytes_text(place.free_bytes)),
                     "another folder, or room there; a run that finds none ends with 74 and keeps what is finished"});
  if (place.files > 0 && place.free_files < kFilesOfOutput)
    found.push_back(
        {true, fmt::format("{}: {} files may be made, a run makes up to {}", where, place.free_files, kFilesOfOutput),
         "files removed there, or a larger quota of inodes"});
  if (place.largest_file_bytes != std::numeric_limits<uint64_t>::max())
    found.push_back({false, fmt::format("{}: a file may have at most {}", where, bytes_text(place.largest_file_bytes)),
                     "ulimit -f unlimited"});
}

void look_at_links(const Examination& e, Findings& found) {
  std::map<std::string, double> fastest;
  const auto speed = [&](size_t rank) { return e.trials[rank].bytes_per_second; };
  for (size_t rank = 0; rank < e.trials.size(); ++rank)
    if (speed(rank) > 0) fastest[e.way_to_next(rank)] = std::max(fastest[e.way_to_next(rank)], speed(rank));
  for (size_t rank = 0; rank < e.trials.size(); ++rank) {
    if (speed(rank) == 0) continue;
    const RankFacts &mine = e.ranks[rank], &next = e.ranks[rank + 1];
    const bool crosses = mine.host != next.host;
    if (mine.ranks_on_host > mine.all_processors || next.ranks_on_host > next.all_processors)
      continue;  // ranks that share a processor take turns, which slows the link; another finding says so
    const std::string link = fmt::format("rank {} to {}: {:.2f} GB/s", rank, rank + 1, speed(rank) / 1e9);
    if (crosses && speed(rank) < kSlowNetwork)
      found.push_back({false, link + " between hosts",
                       "NCCL_SOCKET_IFNAME, or mpirun --mca btl_tcp_if_include, names the fast network"});
    else if (!crosses && e.trials[rank].round_trip_seconds > kSlowAnswer)
      found.push_back({false,
                       fmt::format("rank {} to {}: {:.1f} ms there and back on one host", rank, rank + 1,
                                   e.trials[rank].round_trip_seconds * 1e3),
                       "other programs use the ranks' processors (top)"});
    else if (speed(rank) < kSlowLink * fastest[e.way_to_next(rank)])
      found.push_back({false, fmt::format("{}, others of this kind {:.2f}", link, fastest[e.way_to_next(rank)] / 1e9),
                       "other load on this host, or a damaged link"});
  }
}

}  // namespace

size_t Examination::stages() const {
  const auto replicas = static_cast<size_t>(options.replicas);
  return ranks.size() % replicas == 0 ? ranks.size() / replicas : ranks.size();
}

bool Examination::on_gpus() const {
  return options.device != DeviceChoice::kCpu &&
         std::all_of(ranks.begin(), ranks.end(), [](const RankFacts& rank) { return rank.visible_gpus > 0; });
}

std::vector<std::string> Examination::hosts() const {
  std::vector<std::string> names;
  for (const RankFacts& rank : ranks)
    if (std::find(names.begin(), names.end(), rank.host) == names.end()) names.push_back(rank.host);
  return names;
}

std::vector<size_t> Examination::ranks_of(const std::string& host) const {
  std::vector<size_t> found;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].host == host) found.push_back(rank);
  return found;
}

const RankFacts* Examination::writer() const {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [](const RankFacts& rank) { return rank.writes_output; });
  return found == ranks.end() ? nullptr : &*found;
}

std::string Examination::way_to_next(size_t rank) const {
  const RankFacts &mine = ranks[rank], &next = ranks[rank + 1];
  if (mine.host != next.host) return "other host";
  if (!on_gpus()) return "same host";
  if (mine.gpu_uuid == next.gpu_uuid) return "same GPU";
  const auto peer = mine.peers.find(next.gpu_uuid);
  return peer == mine.peers.end() ? "not visible" : peer->second;
}

std::vector<Finding> diagnose(const Examination& examination) {
  Findings found;
  for (const auto look :
       {look_at_launch, look_at_problems, look_at_shards, look_at_versions, look_at_devices, look_at_order,
        look_at_memory, look_at_processors, look_at_gpus, look_at_limits, look_at_output, look_at_links})
    look(examination, found);
  std::stable_partition(found.begin(), found.end(), [](const Finding& finding) { return finding.stops; });
  return found;
}

}  // namespace lfm2
