// The facts that doctor gathers on one rank: first about the host, its libraries, its GPU and its part of a model, then
// from a trial transfer to the next rank.
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
  int launched = 1;  // number of ranks according to the launcher; MPI may count fewer

  std::string processors;                         // that this rank may use: "0-3,8"
  int usable_processors = 1, all_processors = 1;  // number of them; number on the host
  int share = 1;                                  // of this rank, if ranks share processors
  std::vector<std::string> processor_limits;      // what makes the share smaller: a CPU quota, OMP_NUM_THREADS
  std::map<std::string, std::string> versions;    // by name of the library; they must match on all ranks
  std::string mpi_staging_reason;                 // why MPI does not accept GPU memory; empty: it does

  uint64_t free_memory_bytes = 0;  // on the host; 0: unknown
  uint64_t shm_bytes = 0, free_shm_bytes = 0;
  uint64_t lockable_bytes = 0, open_files = 0, address_bytes = 0;  // limits; the largest number: none

  int visible_gpus = 0;
  std::string gpu, gpu_uuid, gpu_bus;  // of this rank
  uint64_t free_gpu_bytes = 0, all_gpu_bytes = 0;
  std::map<std::string, std::string> peers;  // uuid of another visible GPU -> kind of link

  std::vector<std::string> problems;  // failures: weights that cannot be opened, an unusable GPU

  // With --weights: the part of the model on this rank.
  std::string split_id;
  int64_t model_layers = 0;
  std::string layers;                 // "0-5", or with several pieces "0-2,12-14"; empty: not planned
  int64_t tokens = 0, row_bytes = 0;  // of a buffer of hidden states
  std::string dtype;
  uint64_t weight_bytes = 0, activation_bytes = 0;
  bool writes_output = false;  // with --output: whether this rank would write it, so that `output` is known
  OutputPlace output;
  uint64_t needed_bytes() const { return weight_bytes + activation_bytes; }
};

// Results of a trial of the device, the transport, and the link to the next rank.
struct TrialFacts {
  std::string device, transport, problem;
  double bytes_per_second = 0, round_trip_seconds = 0;  // 0: not tried
};

inline constexpr const char* kNvlink = "NVLink";
inline constexpr const char* kPcie = "PCIe, direct";
inline constexpr const char* kThroughHost = "through the host";

// Not collective, so that a rank's failure affects no other rank. An Error becomes an entry of `problems`.
RankFacts find_facts(const Options& options, const MpiWorld& world);

std::string processor_list(const std::vector<int>& processors);  // of sorted numbers: "0-3,8"

// Facts as JSON text, for messages to rank 0, and back.
std::string to_json(const RankFacts& facts);
std::string to_json(const TrialFacts& facts);
RankFacts rank_facts_from_json(const std::string& text);
TrialFacts trial_facts_from_json(const std::string& text);

}  // namespace lfm2
