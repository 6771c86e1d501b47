// The file is JSON. Curves of one measurement share their sizes, and each names an example of its kind of block.
#include "stage/planning/machine_costs.h"

#include <algorithm>
#include <cmath>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/model/memory_plan.h"
#include "stage/scoring/plan.h"

namespace lfm2 {

namespace {

constexpr const char* kForm = "lfm2 machine costs";
constexpr uint64_t kVersion = 1, kMaxFileBytes = 16 << 20, kMaxSize = uint64_t{1} << 31, kMaxRanks = 65536;
constexpr size_t kMaxEntries = 64;  // of each list
constexpr double kMaxSeconds = 1e4, kMinBytesPerSecond = 1e3, kMaxBytesPerSecond = 1e15;

// What costs depend on.
OrderedJson model_keys(const ModelConfig& config) {
  std::string types;
  for (const LayerType type : config.layer_types)
    types += type == LayerType::kConv ? "c" : type == LayerType::kAttention ? "a" : fmt::format("s{}", config.window);
  return {{"model_type", config.type_name()},
          {"vocab_size", config.vocab},
          {"hidden_size", config.hidden},
          {"layer_types", types},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"intermediate_size", config.ffn},
          {"num_dense_layers", config.dense_layers},
          {"num_experts", config.experts},
          {"num_experts_per_tok", config.top_k},
          {"moe_intermediate_size", config.moe_ffn},
          {"conv_L_cache", config.conv_length}};
}

std::string name_of_block(int64_t block) {
  return fmt::format("{} of layer {}", block % kBlocksOfLayer == 0 ? "token mixer" : "feed-forward",
                     block / kBlocksOfLayer);
}

OrderedJson blocks_json(const std::vector<CostCurve>& blocks, const BlockKinds& kinds) {
  OrderedJson seconds;
  for (size_t kind = 0; kind < blocks.size(); ++kind)
    seconds[name_of_block(kinds.examples[kind])] = blocks[kind].seconds;
  return seconds;
}

OrderedJson host_json(const HostCosts& host, const BlockKinds& kinds) {
  OrderedJson samples = OrderedJson::array(), steps = OrderedJson::array();
  for (const SampleCosts& one : host.samples) {
    OrderedJson& json = samples.emplace_back(OrderedJson{
        {"length", one.length}, {"tokens", one.blocks.front().sizes}, {"seconds", blocks_json(one.blocks, kinds)}});
    if (!one.unpruned.sizes.empty()) json["seconds_without_pruning"] = one.unpruned.seconds;
  }
  for (const StepCosts& one : host.steps)
    steps.push_back(
        {{"cached", one.cached}, {"sequences", one.blocks.front().sizes}, {"seconds", blocks_json(one.blocks, kinds)}});
  return {{"ranks", host.ranks},
          {"samples", std::move(samples)},
          {"steps", std::move(steps)},
          {"head", {{"rows", host.head.sizes}, {"seconds", host.head.seconds}}}};
}

// Reads values of the file, and refuses what is impossible.
class Reader {
 public:
  Reader(std::string path, const ModelConfig& config) : path_(std::move(path)), kinds_(block_kinds(config)) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::kData, fmt::format("{}: {}: write it again with lfm2_stage doctor --save", path_, why));
  }
  const Json& at(const Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) refuse(fmt::format("no \"{}\"", key));
    return object.at(key);
  }
  std::string text(const Json& object, const char* key) const {
    const Json& value = at(object, key);
    if (!value.is_string()) refuse(fmt::format("\"{}\" is {}, expected a text", key, json_excerpt(value)));
    return value.get<std::string>();
  }
  bool flag(const Json& object, const char* key) const {
    const Json& value = at(object, key);
    if (!value.is_boolean()) refuse(fmt::format("\"{}\" is {}, expected true or false", key, json_excerpt(value)));
    return value.get<bool>();
  }
  int64_t whole(const Json& object, const char* key, uint64_t least = 1, uint64_t most = kMaxSize) const {
    const Json& value = at(object, key);
    const uint64_t found = json_unsigned(value, most, path_, key);
    if (found < least) refuse(fmt::format("\"{}\" is {}, expected at least {}", key, found, least));
    return static_cast<int64_t>(found);
  }
  double number(const Json& value, const std::string& what, double least, double most) const {
    const double found = value.is_number() ? value.get<double>() : NAN;
    if (!(found >= least && found <= most))
      refuse(fmt::format("\"{}\" is {}, expected a number from {:g} to {:g}", what, json_excerpt(value), least, most));
    return found;
  }
  const Json& list(const Json& object, const char* key, size_t least) const {
    const Json& value = at(object, key);
    if (!value.is_array() || value.size() < least || value.size() > kMaxEntries)
      refuse(fmt::format("\"{}\" is {}, expected a list of {} to {} values", key, json_excerpt(value), least,
                         kMaxEntries));
    return value;
  }

  std::vector<int64_t> sizes(const Json& object, const char* key) const {
    std::vector<int64_t> found;
    for (const Json& value : list(object, key, 1)) {
      const auto size = static_cast<int64_t>(json_unsigned(value, kMaxSize, path_, key));
      if (size <= (found.empty() ? 0 : found.back()))
        refuse(fmt::format("\"{}\": {} follows {}, expected ascending sizes", key, size,
                           found.empty() ? 0 : found.back()));
      found.push_back(size);
    }
    return found;
  }
  CostCurve curve(const Json& seconds, const std::string& what, const std::vector<int64_t>& of_sizes) const {
    CostCurve found{.sizes = of_sizes, .seconds = {}};
    if (!seconds.is_array() || seconds.size() != of_sizes.size())
      refuse(fmt::format("\"{}\": expected {} times, one of each size", what, of_sizes.size()));
    for (const Json& value : seconds) found.seconds.push_back(number(value, what, 0, kMaxSeconds));
    return found;
  }
  std::vector<CostCurve> blocks(const Json& object, const char* sizes_key) const {
    const std::vector<int64_t> of_sizes = sizes(object, sizes_key);
    std::vector<CostCurve> found;
    for (const int64_t block : kinds_.examples) {
      const std::string name = name_of_block(block);
      found.push_back(curve(at(at(object, "seconds"), name.c_str()), name, of_sizes));
    }
    return found;
  }
  HostCosts host(const Json& json) const {
    HostCosts found{.ranks = whole(json, "ranks", 1, kMaxRanks), .samples = {}, .steps = {}, .head = {}};
    for (const Json& one : list(json, "samples", 1)) {
      SampleCosts& samples = found.samples.emplace_back(
          SampleCosts{.length = whole(one, "length"), .blocks = blocks(one, "tokens"), .unpruned = {}});
      if (one.contains("seconds_without_pruning"))
        samples.unpruned =
            curve(one.at("seconds_without_pruning"), "seconds_without_pruning", samples.blocks.front().sizes);
    }
    for (const Json& one : list(json, "steps", 1))
      found.steps.push_back({.cached = whole(one, "cached", 0), .blocks = blocks(one, "sequences")});
    const Json& head = at(json, "head");
    found.head = curve(at(head, "seconds"), "head", sizes(head, "rows"));
    return found;
  }

 private:
  std::string path_;
  BlockKinds kinds_;
};

void expect_same_model(const Reader& reader, const Json& saved, const ModelConfig& config) {
  const Json expected = model_keys(config);
  for (const auto& [key, value] : expected.items())
    if (const Json& found = reader.at(saved, key.c_str()); found != value)
      reader.refuse(
          fmt::format("of another model: {} is {}, the model has {}", key, json_excerpt(found), json_excerpt(value)));
}

}  // namespace

std::vector<int64_t> saved_token_sizes(bool cuda) {
  if (cuda) return {64, 256, 1024, 4096, 16384, 65536};
  return {8, 32, kMinCpuPart, 128, 256, kMaxCpuTarget};
}
std::vector<int64_t> saved_sequence_sizes(bool cuda) {
  std::vector<int64_t> sizes{1, 2, 4, 8, 16, 32, 64, 128};
  if (cuda) sizes.insert(sizes.end(), {256, 512, 1024});
  return sizes;
}
std::vector<int64_t> saved_row_sizes() { return {1, 4, 32, 128, kHeadRows}; }

std::string to_json(const MachineCosts& machine, const ModelConfig& config) {
  const BlockKinds kinds = block_kinds(config);
  OrderedJson json = {{"form", kForm},
                      {"version", kVersion},
                      {"program", machine.program},
                      {"model", model_keys(config)},
                      {"device", machine.device},
                      {"cuda", machine.cuda},
                      {"dtype", name(machine.compute)},
                      {"products_in_fp8", machine.products_in_fp8},
                      {"transport", machine.transport},
                      {"ranks_on_host", machine.host_ranks},
                      {"processors", machine.processors},
                      {"memory_bytes", machine.memory_bytes},
                      {"costs", OrderedJson::array()},
                      {"links", OrderedJson::array()}};
  for (const HostCosts& host : machine.hosts) json["costs"].push_back(host_json(host, kinds));
  for (const LinkCosts& link : machine.links)
    json["links"].push_back({{"way", link.way},
                             {"bytes_per_second", link.bytes_per_second},
                             {"round_trip_seconds", link.round_trip_seconds}});
  return json_text(json, 1) + "\n";
}

MachineCosts read_machine_costs(const std::filesystem::path& path, const ModelConfig& config) {
  const Json json = parse_json(read_text_file(path, kMaxFileBytes), path.string());
  const Reader reader(path.string(), config);
  if (!json.is_object() || !json.contains("form") || json.at("form") != kForm)
    reader.refuse(fmt::format("not a file of a machine's costs, expected \"form\": \"{}\"", kForm));
  if (const Json& version = reader.at(json, "version"); version != kVersion)
    reader.refuse(fmt::format("of version {}, expected {}", json_excerpt(version), kVersion));
  expect_same_model(reader, reader.at(json, "model"), config);
  MachineCosts machine{.program = reader.text(json, "program"),
                       .device = reader.text(json, "device"),
                       .transport = reader.text(json, "transport"),
                       .cuda = reader.flag(json, "cuda"),
                       .products_in_fp8 = reader.flag(json, "products_in_fp8"),
                       .host_ranks = reader.whole(json, "ranks_on_host", 1, kMaxRanks),
                       .processors = reader.whole(json, "processors", 1, kMaxRanks),
                       .memory_bytes = static_cast<uint64_t>(reader.whole(json, "memory_bytes", 0, uint64_t{1} << 60)),
                       .hosts = {},
                       .links = {}};
  const std::optional<DType> compute = parse_dtype(reader.text(json, "dtype"));
  if (!compute) reader.refuse(fmt::format("\"dtype\" is {}", json_excerpt(reader.at(json, "dtype"))));
  machine.compute = *compute;
  for (const Json& host : reader.list(json, "costs", 1)) {
    machine.hosts.push_back(reader.host(host));
    if (const size_t count = machine.hosts.size();
        count > 1 && machine.hosts[count - 2].ranks >= machine.hosts[count - 1].ranks)
      reader.refuse("\"ranks\" of \"costs\" do not ascend");
  }
  for (const Json& link : reader.list(json, "links", 0))
    machine.links.push_back({.way = reader.text(link, "way"),
                             .bytes_per_second = reader.number(reader.at(link, "bytes_per_second"), "bytes_per_second",
                                                               kMinBytesPerSecond, kMaxBytesPerSecond),
                             .round_trip_seconds = reader.number(reader.at(link, "round_trip_seconds"),
                                                                 "round_trip_seconds", 0, kMaxSeconds)});
  return machine;
}

}  // namespace lfm2
