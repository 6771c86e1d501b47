// The command plan: memory and work of each stage, for people and for programs.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/dspark/dspark_files.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/model/dequantized_source.h"
#include "weights-tools/model/synth.h"

namespace lfm2 {

namespace {

constexpr int64_t kUsualTokens = 2048;  // of a micro-batch, the default

// A plan needs only sizes, so a configuration is enough. Its weights count as bf16.
std::unique_ptr<ModelSource> open_for_plan(const PlanOptions& options) {
  if (builtin_model_config(options.model).empty() && !options.model.ends_with(".json"))
    return open_model(options.model, options.config, FolderForm::kShards);
  if (options.config)
    throw Error(ExitCode::kUsage,
                fmt::format("--config {}: {} is a configuration itself", *options.config, options.model));
  return std::make_unique<SynthSource>(named_config_text(options.model), options.model, 0, DType::kBf16);
}

// The type of activations: the requested one, else that of `lfm2_stage --dtype auto`, which is the type of the weights
// that are not fp8.
DType act_dtype(const ModelSource& model, std::optional<DType> wanted) {
  return wanted ? *wanted : dtype_of_most_bytes(model.tensors());
}

struct Plan {
  std::vector<StageNeeds> stages;
  NeedsInput input;
  uint64_t gpu_bytes = 0;      // memory of a GPU; 0: not given
  uint64_t drafter_cache = 0;  // bytes of a drafter's cache for each position; 0: no drafter
  bool fits(const StageNeeds& stage) const { return stage.total_bytes() <= gpu_bytes; }
};

void print_plan(const Plan& plan, const ModelConfig& config) {
  fmt::print("{} samples of {} tokens in a micro-batch, activations in {}\n\n", plan.input.samples, plan.input.length,
             name(plan.input.act));
  fmt::print("{:>5} {:>8} {:>9} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11}{}\n", "stage", "layers", "attention",
             "parameters", "weights", "buffers", "scratch", "logits", "total", "GFLOP/token",
             plan.gpu_bytes > 0 ? "  fits" : "");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StageNeeds& s = plan.stages[i];
    fmt::print("{:>5} {:>8} {:>9} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>11.4f}{}\n", i,
               fmt::format("{}-{}", s.layers.first, s.layers.end() - 1), s.attention_layers, s.parameters,
               bytes_text(s.weight_bytes), bytes_text(s.slot_bytes), bytes_text(s.workspace_bytes),
               bytes_text(s.logits_bytes), bytes_text(s.total_bytes()), s.gflop_per_token,
               plan.gpu_bytes == 0 ? ""
               : plan.fits(s)      ? "  yes"
                                   : "  NO");
  }
  fmt::print("\nLM head: {:.4f} GFLOP for each position with logits, in the last stage\n", head_gflop(config));
  if (plan.drafter_cache > 0)
    fmt::print("drafter: its weights count in the last stage, which also holds {} for each cached position\n",
               bytes_text(plan.drafter_cache));
  if (plan.gpu_bytes == 0) return;
  const bool all = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const auto& s) { return plan.fits(s); });
  fmt::print("{} in {} for each GPU\n", all ? "fits" : "does NOT fit", bytes_text(plan.gpu_bytes));
}

OrderedJson describe(const Plan& plan, const ModelConfig& config) {
  OrderedJson json = {{"samples", plan.input.samples},
                      {"length", plan.input.length},
                      {"activation_dtype", name(plan.input.act)},
                      {"head_gflop_per_position", head_gflop(config)},
                      {"stages", OrderedJson::array()}};
  if (plan.gpu_bytes > 0) json["gpu_memory_bytes"] = plan.gpu_bytes;
  if (plan.drafter_cache > 0) json["drafter_cache_bytes_for_each_position"] = plan.drafter_cache;
  for (const StageNeeds& s : plan.stages) {
    OrderedJson stage = {{"layer_first", s.layers.first},          {"layer_count", s.layers.count},
                         {"attention_layers", s.attention_layers}, {"parameters", s.parameters},
                         {"weight_bytes", s.weight_bytes},         {"slot_bytes", s.slot_bytes},
                         {"workspace_bytes", s.workspace_bytes},   {"logits_bytes", s.logits_bytes},
                         {"total_bytes", s.total_bytes()},         {"gflop_per_token", s.gflop_per_token}};
    if (plan.gpu_bytes > 0) stage["fits"] = plan.fits(s);
    json["stages"].push_back(std::move(stage));
  }
  return json;
}

// Adds a drafter to the last stage, and the hidden states that travel to it to the stages that send or receive them.
void add_drafter(Plan& plan, const ModelConfig& target, const std::string& folder) {
  const DsparkFiles files = DsparkFiles::open(folder);
  expect_target(files.config, target, files.config_path);
  StageNeeds& last = plan.stages.back();
  for (const auto& [name, raw] : files.tensors) last.parameters += numel(raw.dims);
  last.weight_bytes += held_bytes(files, plan.input.act);
  for (StageNeeds& stage : plan.stages) {
    const auto taps = std::ranges::count_if(files.config.taps, [&](int64_t tap) { return tap < stage.layers.end(); });
    stage.slot_bytes += stage.slot_bytes * static_cast<uint64_t>(taps);
  }
  plan.drafter_cache = cache_bytes(files.config, plan.input.act);
}

}  // namespace

void run_plan(const PlanOptions& options) {
  Plan plan;
  if (!options.gpu_memory.empty()) plan.gpu_bytes = parse_bytes(options.gpu_memory);
  plan.input.dtype = wanted_dtype(options.dtype);
  plan.input.length = options.length;
  plan.input.samples =
      options.micro_batch > 0 ? options.micro_batch : std::max<int64_t>(kUsualTokens / options.length, 1);
  auto model = open_for_plan(options);
  if (options.machine) return run_machine_plan(options, model->config());
  if (plan.input.dtype && holds_fp8(*model)) model = dequantize(std::move(model), *plan.input.dtype);
  plan.input.act = act_dtype(*model, plan.input.dtype);
  plan.stages = stage_needs(*model, choose_stages(model->config().layers, options.stages, options.layers), plan.input);
  if (options.draft) add_drafter(plan, model->config(), *options.draft);
  if (options.json)
    fmt::print("{}\n", json_text(describe(plan, model->config()), 2));
  else
    print_plan(plan, model->config());
}

}  // namespace lfm2
