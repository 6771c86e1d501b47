// Measures what a model costs on this machine, for doctor --save.
#pragma once

#include "comm/mpi_world.h"
#include "stage/doctor/doctor_findings.h"
#include "stage/job/backend_choice.h"
#include "stage/planning/machine_costs.h"
#include "stage/shards/shard_reader.h"

namespace lfm2 {

// Times a block of each kind as runs do, and the LM head, on the weights of --weights. `machine`: that of a run with
// all ranks. Sets the types of `shards` by the options. The links are those of `examination`, which only rank 0 has.
// Collective; the result is complete on rank 0. Error(kUnavailable) if ranks share a GPU.
MachineCosts measure_machine(const Options& options, const MpiWorld& world, const Machine& machine, ShardSet& shards,
                             const Examination& examination);

}  // namespace lfm2
