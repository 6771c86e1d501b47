// The command line of lfm2_stage, parsed before MPI starts so that --help and mistakes need none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/ops.h"
#include "stage/io/results.h"
#include "stage/support/progress.h"

namespace lfm2 {

enum class DeviceChoice : uint8_t { kAuto, kCuda, kCpu };
enum class TransportChoice : uint8_t { kAuto, kNccl, kMpi };

// --generate and what goes with it.
struct GenerationOptions {
  int64_t max_new = 0;  // tokens of each sample; 0: the job scores
  SamplingRule rule;
  std::vector<int32_t> eos_tokens;  // empty: the model's own
  bool ignore_eos = false;
  int64_t prompt_tokens = 0;  // of prompts in one step; 0: chosen
  int64_t max_sequences = 0;  // at a time; 0: chosen
  int64_t page = 256;         // positions in a page of the cache
};

struct Options {
  std::filesystem::path weights;
  std::filesystem::path input;   // empty: the built-in random job
  std::filesystem::path output;  // empty: results are only counted
  std::filesystem::path answers;
  std::filesystem::path report, trace;
  double tolerance = 1e-3;
  int64_t samples = 0;  // 0: 1024 random ones, or the whole input
  int64_t length = 32;
  uint64_t seed = 0;
  ResultKind results;
  GenerationOptions generation;
  std::optional<DType> dtype;  // nothing: the shards' own
  bool plain_fp32 = false;     // --fp32 simt
  DeviceChoice device = DeviceChoice::kAuto;
  TransportChoice transport = TransportChoice::kAuto;
  int64_t micro_batch = 0;            // samples; 0: chosen
  std::vector<int64_t> layer_counts;  // empty: equal, or balanced
  bool balance = false;
  int replicas = 1;
  std::string simd = "auto";  // of the CPU backend
  int threads = 0;            // of the CPU backend, per rank; 0: this rank's share of the processors
  bool resume = false;
  bool benchmark = false;
  int warmup = 1, repeat = 5;
  double timeout_seconds = 300;
  ProgressMode progress = ProgressMode::kAuto;
  bool quiet = false, verbose = false;
};

// What main does next: run with `options`, or print `text` and end with `exit_code`.
struct ParsedCommandLine {
  Options options;
  bool run = false;
  bool doctor = false;  // look at the machine instead of doing the job
  int exit_code = 0;
  std::string text;  // help or version for stdout (exit code 0), or one line for stderr
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace lfm2
