// The command inspect for the folder of a DSpark drafter.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/dspark/dspark_files.h"
#include "stage/model/tensor_table.h"
#include "weights-tools/commands/commands.h"

namespace lfm2 {

namespace {

struct DrafterSum {
  uint64_t parameters = 0, bytes = 0;
};

DrafterSum sum_of(const RawTensors& tensors) {
  DrafterSum sum;
  for (const auto& [name, raw] : tensors) {
    sum.parameters += numel(raw.dims);
    sum.bytes += raw.bytes;
  }
  return sum;
}

void print_drafter(const DsparkFiles& files) {
  const DsparkConfig& config = files.config;
  const ModelConfig& blocks = config.blocks;
  const DrafterSum sum = sum_of(files.tensors);
  fmt::print("drafter    DSpark: {} layers, hidden {}, vocab {}, blocks of {} drafts\n", blocks.layers, blocks.hidden,
             blocks.vocab, config.block_size);
  fmt::print("target     {} layers; the drafter reads what leaves its layers {}\n", config.target_layers,
             fmt::join(config.taps, ", "));
  fmt::print("attention  {} heads of {}, {} key-value heads, rope base {}, up to {} positions\n", blocks.heads,
             blocks.head_dim, blocks.kv_heads, blocks.rope.theta, blocks.max_positions);
  fmt::print("dense      ffn {}\n", blocks.ffn);
  fmt::print("markov     rank {}\n", config.markov_rank);
  fmt::print("tensors    {} of {} parameters, {}\n", files.tensors.size(), sum.parameters, bytes_text(sum.bytes));
  if (!files.left_out.empty())
    fmt::print("left out   {} tensors, {}: not computed\n", files.left_out.size(),
               bytes_text(sum_of(files.left_out).bytes));
  fmt::print("cache      {} for each position in bf16\n", bytes_text(cache_bytes(config, DType::kBf16)));
}

OrderedJson describe_drafter(const DsparkFiles& files, const std::string& path) {
  const DrafterSum sum = sum_of(files.tensors);
  OrderedJson json = {{"path", path},
                      {"form", "dspark"},
                      {"parameters", sum.parameters},
                      {"bytes", sum.bytes},
                      {"block_size", files.config.block_size},
                      {"target_layers", files.config.target_layers},
                      {"taps", files.config.taps},
                      {"cache_bytes_for_each_position", {{"bf16", cache_bytes(files.config, DType::kBf16)}}},
                      {"config", parse_ordered_json(files.config_text, files.config_path)},
                      {"left_out", OrderedJson::array()},
                      {"tensors", OrderedJson::array()}};
  for (const auto& [name, raw] : files.left_out) json["left_out"].push_back(name);
  for (const auto& [own, raw] : files.tensors)
    json["tensors"].push_back({{"name", own}, {"dtype", name(raw.dtype)}, {"shape", raw.dims}, {"bytes", raw.bytes}});
  return json;
}

}  // namespace

void run_inspect_drafter(const InspectOptions& options) {
  if (options.config)
    throw Error(ExitCode::kUsage, fmt::format("--config {}: {} is a drafter, whose configuration is beside it",
                                              *options.config, options.model));
  const DsparkFiles files = DsparkFiles::open(options.model);
  if (options.json)
    fmt::print("{}\n", json_text(describe_drafter(files, options.model), 2));
  else
    print_drafter(files);
}

}  // namespace lfm2
