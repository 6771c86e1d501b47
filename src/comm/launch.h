// What the launcher and the system report about this rank before MPI starts: its number, the number of ranks, its
// processors.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lfm2 {

// Set by every launcher that this program is started with (mpirun, srun with PMIx or PMI).
std::optional<int> launched_rank();
// 1 for a program that a batch script starts without a launcher.
int launched_ranks();

// The fault that the launcher started more ranks than MPI counts, with its remedy.
struct LaunchFault {
  std::string what, todo;
};
std::optional<LaunchFault> ranks_that_run_alone(int launched, int size, const std::string& mpi_version);

// How many processors a rank computes on, and what limits them.
struct ProcessorLimits {
  int usable = 1;    // by the affinity mask of this process
  double quota = 0;  // CPU time in processors, for all ranks of the host; 0: none
  // The smaller of SLURM_CPUS_PER_TASK and OMP_NUM_THREADS, for each rank; 0: none. They count only if the mask allows
  // all processors, because a launcher that binds ranks is more specific.
  int asked = 0;
  std::string asked_by;  // "OMP_NUM_THREADS=4"

  // The processors of a rank that shares its mask with `sharing` ranks, itself included, and its quota with
  // `quota_sharing`.
  int share(int sharing, int quota_sharing) const;
  // What makes that share smaller than the mask alone would: "a CPU quota of 0.5", "SLURM_CPUS_PER_TASK=4". Often
  // empty.
  std::vector<std::string> reasons(int sharing, int quota_sharing) const;
};
ProcessorLimits find_processor_limits();

}  // namespace lfm2
