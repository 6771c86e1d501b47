// The keys of PEFT's LoraConfig: those that are computed, those that change no merged weight, and all others.
#include "weights-tools/formats/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/json/json.h"
#include "grammar/expression/pattern.h"
#include "grammar/expression/refusal.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxAdapterRank = uint64_t{1} << 16;

// What AdapterConfig reads.
constexpr auto kReadKeys = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "target_parameters",
     "modules_to_save", "bias", "init_lora_weights", "peft_version", "trainable_token_indices"});

// What concerns training, or is told by the tensors as well: which modules have factors.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>(
    {"task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "lora_dropout",
     "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size",
     "runtime_config", "ensure_weight_tying"});

// Other values mean that training changed the base, too.
constexpr auto kHarmlessInits = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});

[[noreturn]] void refuse(const std::string& what, std::string_view key, const OrderedJson& value,
                         std::string_view expected) {
  throw Error(ExitCode::kData, fmt::format("{}: {} is {}, expected {}", what, key, json_excerpt(value), expected));
}

bool is_off(const OrderedJson& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

double positive(const OrderedJson& value, const std::string& what, std::string_view key) {
  constexpr double kMax = std::numeric_limits<float>::max();
  if (!value.is_number() || value.get<double>() <= 0 || value.get<double>() > kMax)
    refuse(what, key, value, "a positive number");
  return value.get<double>();
}

double rank_in(const OrderedJson& value, const std::string& what, std::string_view key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 || value.get<uint64_t>() > kMaxAdapterRank)
    refuse(what, key, value, fmt::format("an integer from 1 to {}", kMaxAdapterRank));
  return value.get<double>();
}

const OrderedJson& required(const OrderedJson& json, const char* key, const std::string& what) {
  if (!json.contains(key)) throw Error(ExitCode::kData, fmt::format("{}: {} is missing", what, key));
  return json[key];
}

std::vector<std::string> texts(const OrderedJson& json, const char* key, const std::string& what) {
  if (!json.contains(key) || json[key].is_null()) return {};
  std::vector<std::string> texts;
  if (!json[key].is_array()) refuse(what, key, json[key], "a list of names, or null");
  for (const OrderedJson& text : json[key]) {
    if (!text.is_string()) refuse(what, key, json[key], "a list of names, or null");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// "0.21.2" or "0.18.0.dev0" as 21 or 18 in PEFT 0, and more than those in later ones.
std::optional<int> version_of(const OrderedJson& json) {
  if (!json.contains("peft_version") || !json["peft_version"].is_string()) return std::nullopt;
  const std::string text = json["peft_version"].get<std::string>();
  int major = 0, minor = 0;
  const char* end = text.data() + text.size();
  const auto [point, error] = std::from_chars(text.data(), end, major);
  if (error != std::errc() || point == end || *point != '.') return std::nullopt;
  if (std::from_chars(point + 1, end, minor).ec != std::errc()) return std::nullopt;
  return major * 1000 + minor;
}

std::vector<uint64_t> token_ids(const OrderedJson& list, const std::string& what) {
  constexpr std::string_view kKey = "trainable_token_indices", kExpected = "a list of different token ids";
  if (!list.is_array()) refuse(what, kKey, list, kExpected);
  std::vector<uint64_t> ids;
  for (const OrderedJson& id : list) {
    if (!id.is_number_unsigned()) refuse(what, kKey, list, kExpected);
    ids.push_back(id.get<uint64_t>());
  }
  if (std::set<uint64_t>(ids.begin(), ids.end()).size() != ids.size()) refuse(what, kKey, list, kExpected);
  return ids;
}

// By module.
std::map<std::string, std::vector<uint64_t>> read_trained_tokens(const OrderedJson& json, const std::string& what) {
  const OrderedJson value = json.value("trainable_token_indices", OrderedJson());
  if (value.is_null()) return {};
  if (!value.is_object()) return {{"embed_tokens", token_ids(value, what)}};
  std::map<std::string, std::vector<uint64_t>> by_module;
  for (const auto& [module, list] : value.items()) by_module.emplace(module, token_ids(list, what));
  return by_module;
}

void check_keys(const OrderedJson& json, const std::string& what) {
  const auto has = [](const auto& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  if (const OrderedJson& type = required(json, "peft_type", what); type != "LORA")
    refuse(what, "peft_type", type, "\"LORA\"");
  const OrderedJson init = json.value("init_lora_weights", OrderedJson(true));
  if (!init.is_boolean() && !(init.is_string() && has(kHarmlessInits, init.get<std::string>())))
    refuse(what, "init_lora_weights", init,
           "true, false, \"gaussian\", \"eva\" or \"orthogonal\": others change the base");
  for (const auto& [key, value] : json.items()) {
    const bool of_init = key == "eva_config" && init == "eva";
    if (has(kReadKeys, key) || has(kHarmlessKeys, key) || of_init || is_off(value)) continue;
    refuse(what, key, value, "null, false or no such key: it is not computed");
  }
  if (const OrderedJson bias = json.value("bias", OrderedJson("none"));
      bias != "none" && bias != "all" && bias != "lora_only")
    refuse(what, "bias", bias, "\"none\", \"all\" or \"lora_only\"");
}

}  // namespace

// PEFT searches a key in its dictionaries as the regular expression (.*\.)?(KEY)$, from the start of the name.
AdapterConfig::Pattern AdapterConfig::read_pattern(const std::string& key, double number, const std::string& what) {
  try {
    Pattern pattern{std::make_shared<grammar::Expressions>(), {}, number};
    const grammar::TextSet names = grammar::parse_pattern(R"((.*\.)?()" + key + ")", grammar::Anchors::kWhole);
    pattern.expression = grammar::lower(names, grammar::Spelling::kRaw, *pattern.expressions);
    return pattern;
  } catch (const grammar::Refusal& refusal) {
    throw Error(ExitCode::kData, fmt::format("{}: {} is no regular expression that is computed: {}", what,
                                             json_excerpt(OrderedJson(key)), refusal.what()));
  }
}

AdapterConfig::AdapterConfig(std::string_view json_text, const std::string& what) {
  const OrderedJson json = parse_ordered_json(json_text, what);
  if (!json.is_object())
    throw Error(ExitCode::kData, fmt::format("{}: {}, expected a JSON object", what, json_excerpt(json)));
  check_keys(json, what);
  rank_ = rank_in(required(json, "r", what), what, "r");
  alpha_ = positive(required(json, "lora_alpha", what), what, "lora_alpha");
  const OrderedJson rslora = json.value("use_rslora", OrderedJson(false));
  if (!rslora.is_boolean()) refuse(what, "use_rslora", rslora, "true or false");
  rank_stabilized_ = rslora.get<bool>();
  target_parameters_ = texts(json, "target_parameters", what);
  modules_to_save_ = texts(json, "modules_to_save", what);
  trained_tokens_ = read_trained_tokens(json, what);
  if (const std::optional<int> version = version_of(json)) exchanges_experts_ = *version < 20;
  const auto read_patterns = [&](const char* key, std::vector<Pattern>& patterns,
                                 double (*read)(const OrderedJson&, const std::string&, std::string_view)) {
    if (!json.contains(key) || json[key].is_null()) return;
    if (!json[key].is_object()) refuse(what, key, json[key], "an object");
    const std::string where = fmt::format("{}: {}", what, key);
    for (const auto& [pattern, value] : json[key].items())
      patterns.push_back(read_pattern(pattern, read(value, where, pattern), where));
  };
  read_patterns("rank_pattern", rank_patterns_, rank_in);
  read_patterns("alpha_pattern", alpha_patterns_, positive);
}

double AdapterConfig::number_of(const std::vector<Pattern>& patterns, const std::string& module, double otherwise) {
  const auto at = std::find_if(patterns.begin(), patterns.end(), [&](const Pattern& pattern) {
    return pattern.expressions->matches(pattern.expression, module);
  });
  return at == patterns.end() ? otherwise : at->number;
}

uint64_t AdapterConfig::rank(const std::string& module) const {
  return static_cast<uint64_t>(number_of(rank_patterns_, module, rank_));
}

// Rounded to fp32 once, as PyTorch rounds a Python number that multiplies an fp32 tensor.
float AdapterConfig::scale(const std::string& module) const {
  const double rank = number_of(rank_patterns_, module, rank_), alpha = number_of(alpha_patterns_, module, alpha_);
  return static_cast<float>(alpha / (rank_stabilized_ ? std::sqrt(rank) : rank));
}

namespace {

// Whether `name` is `listed`, or ends in it after a dot.
bool ends_in(std::string_view name, std::string_view listed) {
  return name.ends_with(listed) && (name.size() == listed.size() || name[name.size() - listed.size() - 1] == '.');
}

bool any_ends(const std::vector<std::string>& listed, std::string_view name) {
  return std::any_of(listed.begin(), listed.end(), [&](const std::string& one) { return ends_in(name, one); });
}

}  // namespace

bool AdapterConfig::targets_parameter(std::string_view parameter) const {
  return any_ends(target_parameters_, parameter);
}

std::vector<uint64_t> AdapterConfig::trained_tokens(std::string_view module) const {
  for (const auto& [listed, ids] : trained_tokens_)
    if (ends_in(module, listed)) return ids;
  return {};
}

std::vector<std::string> AdapterConfig::trained_modules() const {
  std::vector<std::string> modules = modules_to_save_;
  for (const auto& [listed, ids] : trained_tokens_) modules.push_back(listed);
  return modules;
}

bool AdapterConfig::saves_module(std::string_view module) const { return any_ends(modules_to_save_, module); }

}  // namespace lfm2
