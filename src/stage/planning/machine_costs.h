// What a model costs on a machine, as `lfm2_stage doctor --save` measured it, and the file of it that `weights-tools
// plan --machine` reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "stage/model/model_config.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// Seconds of a block of each kind (BlockKinds), over tokens of micro-batches with samples of one length. The block that
// prunes tokens was measured with pruning and, as `unpruned`, without; the latter is empty if no block prunes.
struct SampleCosts {
  int64_t length = 1;
  std::vector<CostCurve> blocks;  // [kinds]
  CostCurve unpruned;
};

// The same over sequences of a generation's step, which have this number of cached tokens and get one more.
struct StepCosts {
  int64_t cached = 0;
  std::vector<CostCurve> blocks;  // [kinds]
};

// The costs while `ranks` ranks of a host compute at a time. CPU ranks share processors and memory bandwidth, so their
// costs depend on that number. On GPUs there is one entry, for any number.
struct HostCosts {
  int64_t ranks = 1;
  std::vector<SampleCosts> samples;  // by length, ascending
  std::vector<StepCosts> steps;      // by cached tokens, ascending
  CostCurve head;                    // over rows
};
// Calls `each` with every curve, in a fixed order.
void for_each_curve(HostCosts& costs, const auto& each) {
  for (SampleCosts& one : costs.samples) {
    for (CostCurve& curve : one.blocks) each(curve);
    if (!one.unpruned.sizes.empty()) each(one.unpruned);
  }
  for (StepCosts& one : costs.steps)
    for (CostCurve& curve : one.blocks) each(curve);
  each(costs.head);
}

struct LinkCosts {
  std::string way;  // "same host", "NVLink", "other host"...
  double bytes_per_second = 0, round_trip_seconds = 0;
};
inline constexpr const char* kOtherHost = "other host";

struct MachineCosts {
  std::string program, device, transport;
  bool cuda = false;
  DType compute = DType::kF32;  // of activations
  bool products_in_fp8 = false;
  int64_t host_ranks = 1;        // on the first host
  int64_t processors = 1;        // of that host
  uint64_t memory_bytes = 0;     // free on a GPU, or on the host; 0: unknown
  std::vector<HostCosts> hosts;  // by ranks, ascending
  std::vector<LinkCosts> links;  // of each way between neighbouring ranks; empty if there was one rank
};

// The sizes of micro-batches, steps and rows that doctor --save measures.
std::vector<int64_t> saved_token_sizes(bool cuda);
std::vector<int64_t> saved_sequence_sizes(bool cuda);
std::vector<int64_t> saved_row_sizes();

std::string to_json(const MachineCosts& machine, const ModelConfig& config);
// Error(kNoInput) if there is no such file. Error(kData) naming it if it is of another form, version or model, or if a
// number in it is impossible.
MachineCosts read_machine_costs(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace lfm2
