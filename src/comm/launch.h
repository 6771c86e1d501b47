// What the launcher and the system say of this rank before MPI does: its number, how many there are, its processors.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lfm2 {

// Set by every launcher that this program is started with (mpirun, srun with PMIx or PMI).
std::optional<int> launched_rank();
// 1 for a program that a batch script starts without a launcher.
int launched_ranks();

// Where the launcher started more ranks than MPI knows of, `size`: what is wrong, and what to do. Empty otherwise.
struct LaunchFault {
  std::string what, todo;
};
std::optional<LaunchFault> ranks_that_run_alone(int launched, int size, const std::string& mpi_version);

// How many processors a rank computes on, and what allows no more.
struct ProcessorLimits {
  int usable = 1;    // by the affinity mask of this process
  double quota = 0;  // of time, for all ranks of the host; 0: none
  // Of SLURM_CPUS_PER_TASK and OMP_NUM_THREADS the smaller, for each rank. They count where the mask allows all
  // processors: a launcher that binds ranks has said more. 0: none.
  int asked = 0;
  std::string asked_by;  // "OMP_NUM_THREADS=4"

  // Of a rank that shares its mask with `sharing` ranks, itself included, and the quota with `quota_sharing`.
  int share(int sharing, int quota_sharing) const;
  // What makes that share smaller than the mask does: "a CPU quota of 0.5", "SLURM_CPUS_PER_TASK=4". Often empty.
  std::vector<std::string> reasons(int sharing, int quota_sharing) const;
};
ProcessorLimits find_processor_limits();

}  // namespace lfm2
