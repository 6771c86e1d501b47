// Environment variables of launchers, the affinity mask, and control groups.
#include "comm/launch.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/control_groups.h"

namespace lfm2 {

namespace {

// The first number of a variable such as "8", or "4,2" (OMP_NUM_THREADS, by depth of nesting); 0 if there is none.
int positive_number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

int mask_share(const ProcessorLimits& limits, int sharing) { return std::max(1, limits.usable / sharing); }
int quota_share(const ProcessorLimits& limits, int sharing) {
  return std::max(1, static_cast<int>(limits.quota / sharing));
}

}  // namespace

std::optional<int> launched_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(variable); rank != nullptr) return std::atoi(rank);
  return {};
}

int launched_ranks() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* size = std::getenv(variable); size != nullptr) return std::max(1, std::atoi(size));
  return 1;
}

std::optional<LaunchFault> ranks_that_run_alone(int launched, int size, const std::string& mpi_version) {
  if (launched <= size) return std::nullopt;
  return LaunchFault{fmt::format("the launcher started {} ranks, MPI ({}) knows of {}: each would run alone", launched,
                                 mpi_version, size),
                     "srun --mpi=pmix (srun --mpi=list shows what there is), or the mpirun of that MPI library"};
}

int ProcessorLimits::share(int sharing, int quota_sharing) const {
  int least = mask_share(*this, sharing);
  if (quota > 0) least = std::min(least, quota_share(*this, quota_sharing));
  return asked > 0 ? std::min(least, asked) : least;
}

std::vector<std::string> ProcessorLimits::reasons(int sharing, int quota_sharing) const {
  const int most = mask_share(*this, sharing);
  std::vector<std::string> reasons;
  // A quota below the number of ranks makes them slow, however few threads they have.
  if (quota > 0 && (quota < quota_sharing || quota_share(*this, quota_sharing) < most))
    reasons.push_back(fmt::format("a CPU quota of {:.3g}", quota));
  if (asked > 0 && asked < most) reasons.push_back(asked_by);
  return reasons;
}

ProcessorLimits find_processor_limits() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  ProcessorLimits limits{.usable = std::max(1, CPU_COUNT(&mine)),
                         .quota = processor_quota("/proc/self/cgroup", "/sys/fs/cgroup").value_or(0),
                         .asked_by = ""};
  if (limits.usable < sysconf(_SC_NPROCESSORS_ONLN)) return limits;
  for (const char* variable : {"SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"})
    if (const int number = positive_number(variable); number > 0 && (limits.asked == 0 || number < limits.asked)) {
      limits.asked = number;
      limits.asked_by = fmt::format("{}={}", variable, number);
    }
  return limits;
}

}  // namespace lfm2
