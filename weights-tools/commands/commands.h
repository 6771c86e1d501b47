// The options and entry points of the commands of weights-tools. main.cpp fills in the options and calls one command.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"

namespace lfm2 {

struct ModelConfig;

struct SplitOptions {
  std::string model, out, dtype = "keep";
  std::vector<std::string> adapters = {};  // folders, in the order in which they are merged
  std::optional<std::string> config;
  std::optional<int64_t> stages;
  std::vector<int64_t> layers;
  bool force = false;
};

struct SynthOptions {
  std::string config, out, dtype = "bf16", scheme = "channel", modules = "experts";  // scheme and modules: of fp8
  uint64_t seed = 0;
  bool force = false;
};

struct QuantizeOptions {
  std::string model, out, to, scheme = "channel", modules = "experts";
  std::optional<std::string> config;
  bool force = false;
};

struct MergeOptions {
  std::string shards, out;
  bool force = false;
};

struct VerifyOptions {
  std::string model;  // a folder of shards; with `untrusted`, any model
  std::optional<std::string> against, config;
  std::vector<std::string> adapters = {};  // of the model of `against`
  bool untrusted = false;                  // reads in a child process with limits
};

struct InspectOptions {
  std::string model;
  std::optional<std::string> config;
  bool json = false;
};

struct PlanOptions {
  std::string model, dtype = "keep", gpu_memory;
  std::optional<std::string> config, draft;  // draft: the folder of a drafter
  std::optional<int64_t> stages;
  std::vector<int64_t> layers;
  int64_t micro_batch = 0, length = 32;  // micro_batch 0: enough samples for 2048 tokens
  bool json = false;
  // A job on a machine: --machine, and the job's options, named as those of lfm2_stage.
  std::optional<std::string> machine;
  std::vector<int64_t> ranks;
  int64_t samples = 1024, replicas = 1, virtual_stages = 1;
  bool balance = false, score = false;
  std::string logits = "last";
  int64_t max_tokens = 0, max_sequences = 0, prompt_tokens = 0, page_size = 256;  // max_tokens 0: scoring
};

struct TokenizeOptions {
  std::string tokenizer;  // a tokenizer.json, or a folder with one
  bool decode = false, no_special = false, json = false;
  bool chat = false, render = false;  // lines are messages; prints text instead of ids
  int64_t threads = 0;                // 0: all cores
};

// The output of a command: results to stdout, messages (unless `quiet`) and progress to stderr. Errors are thrown.
struct Console {
  ProgressMode progress = ProgressMode::kAuto;
  bool quiet = false;
};

void run_split(const SplitOptions& options, const Console& console);
void run_synth(const SynthOptions& options, const Console& console);
void run_quantize(const QuantizeOptions& options, const Console& console);
void run_merge(const MergeOptions& options, const Console& console);
void run_verify(const VerifyOptions& options, const Console& console);
void run_inspect(const InspectOptions& options);
void run_inspect_drafter(const InspectOptions& options);  // of the folder of a drafter
void run_plan(const PlanOptions& options);
void run_machine_plan(const PlanOptions& options, const ModelConfig& config);  // with --machine
void run_tokenize(const TokenizeOptions& options);

}  // namespace lfm2
