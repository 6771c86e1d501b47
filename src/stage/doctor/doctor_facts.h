// What doctor learns on one rank: before any computation, about the host, its libraries, its GPU and its part of a
// model; then, from a trial transfer to the next rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/mpi_world.h"
#include "stage/io/output_place.h"
#include "stage/job/options.h"

namespace lfm2 {

struct RankFacts {
  int rank = 0;
  std::string host;
  int ranks_on_host = 1;
  int launched = 1;  // ranks that the launcher says it started; MPI may know of fewer

  std::string processors;                         // that this rank may use: "0-3,8"
  int usable_processors = 1, all_processors = 1;  // of them; of the host
  int share = 1;                                  // of this rank, where several may use the same ones
  std::vector<std::string> processor_limits;      // what makes the share smaller: a CPU quota, OMP_NUM_THREADS
  std::map<std::string, std::string> versions;    // of what must fit together, by name
  std::string mpi_staging_reason;                 // why MPI gets no GPU memory itself; empty: it does

  uint64_t free_memory_bytes = 0;  // on the host; 0: unknown
  uint64_t shm_bytes = 0, free_shm_bytes = 0;
  uint64_t lockable_bytes = 0, open_files = 0, address_bytes = 0;  // limits; the largest number: none

  int visible_gpus = 0;
  std::string gpu, gpu_uuid, gpu_bus;  // the one that this rank takes
  uint64_t free_gpu_bytes = 0, all_gpu_bytes = 0;
  std::map<std::string, std::string> peers;  // uuid of another visible GPU: how it is reached

  std::vector<std::string>
      problems;  // what it could not find out: weights that cannot be opened, a GPU that is not usable

  // With --weights: this rank's part.
  std::string split_id;
  int64_t model_layers = 0;
  std::string layers;                 // "0-5", or with several pieces "0-2,12-14"; empty: not planned
  int64_t tokens = 0, row_bytes = 0;  // of a slot
  std::string dtype;
  uint64_t weight_bytes = 0, activation_bytes = 0;
  bool writes_output = false;  // with --output: whether `output` is known, which this rank would write
  OutputPlace output;
  uint64_t needed_bytes() const { return weight_bytes + activation_bytes; }
};

// Of trying: the device, the transport, and the link to the next rank.
struct TrialFacts {
  std::string device, transport, problem;
  double bytes_per_second = 0, round_trip_seconds = 0;  // 0: not tried
};

inline constexpr const char* kNvlink = "NVLink";
inline constexpr const char* kPcie = "PCIe, direct";
inline constexpr const char* kThroughHost = "through the host";

// Not collective, so that one rank's trouble is no other's: an Error becomes one of `problems`.
RankFacts find_facts(const Options& options, const MpiWorld& world);

std::string processor_list(const std::vector<int>& processors);  // sorted ones: "0-3,8"

// Facts as JSON text, for messages to rank 0, and back.
std::string to_json(const RankFacts& facts);
std::string to_json(const TrialFacts& facts);
RankFacts rank_facts_from_json(const std::string& text);
TrialFacts trial_facts_from_json(const std::string& text);

}  // namespace lfm2
