// PEFT's names are those of modules in transformers. For a Linear with weight [out, in] the factors are A [r, in] and
// B [out, r]. The experts of a layer are one parameter [experts, x, y], whose factors hold all experts:
//
//   A [experts · r, y]   the r rows of expert 0, then those of expert 1, ...
//   B [x, r · experts]   the columns of rank 0 of all experts, then those of rank 1, ...
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "weights-tools/formats/adapter.h"

namespace lfm2 {

namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kFactorA = ".lora_A.weight", kFactorB = ".lora_B.weight";
constexpr std::string_view kExperts = ".feed_forward.experts", kInner = ".base_layer",
                           kInnerExperts = ".feed_forward.experts.base_layer", kGateUp = ".gate_up_proj",
                           kDown = ".down_proj";
constexpr std::string_view kTrainedTokens = ".token_adapter.trainable_tokens_delta";
constexpr std::string_view kBaseLayer = ".base_layer.";

// Tensors that belong to other sums, and what they are part of.
struct OtherPart {
  std::string_view ending, what;
};
constexpr std::array kOtherParts = std::to_array<OtherPart>({
    {".lora_magnitude_vector", "DoRA"},
    {".lora_magnitude_vector.weight", "DoRA"},
    {".lora_B.bias", "lora_bias"},
    {".lora_embedding_A", "an adapter of the embedding"},
    {".lora_embedding_B", "an adapter of the embedding"},
});

// The name in checkpoints of a tensor that PEFT names as transformers does in memory.
std::string name_in_files(std::string name) {
  const size_t at = name.find(fmt::format(".{}.", kGatesInMemory));
  if (at != std::string::npos) name.replace(at + 1, kGatesInMemory.size(), kGatesInFiles);
  return name;
}

class AdapterMatcher {
 public:
  AdapterMatcher(const RawTensors& tensors, const AdapterConfig& config, const ModelConfig& model, std::string what)
      : tensors_(tensors), config_(config), model_(model), what_(std::move(what)) {
    for (TensorSpec& spec : model_tensors(model)) specs_.emplace(spec.name, std::move(spec));
    specs_.emplace(kHeadWeight, specs_.at(std::string(kEmbeddingWeight)));
  }

  std::map<std::string, TensorUpdate> match() {
    for (const auto& [name, raw] : tensors_) add(name, raw);
    for (const auto& [module, factors] : factors_) add_factors(module, factors);
    for (const std::string& module : config_.trained_modules()) expect_trained(module);
    return std::move(updates_);
  }

 private:
  // The names of both factors of a module; either may be missing.
  struct Factors {
    std::string a, b;
  };

  [[noreturn]] void refuse(const std::string& tensor, const std::string& message) const {
    throw Error(ExitCode::kData, fmt::format("{}: tensor {} {}", what_, tensor, message));
  }
  void expect_dims(const std::string& tensor, const std::vector<uint64_t>& expected, const std::string& why) const {
    const std::vector<uint64_t>& dims = tensors_.at(tensor).dims;
    if (dims != expected)
      refuse(tensor, fmt::format("has shape {}, expected {} for {}", dims_text(dims), dims_text(expected), why));
  }

  void expect_trained(const std::string& listed) const;
  void add(const std::string& name, const RawTensor& raw);
  void add_replacement(const std::string& name, std::string weight);
  void replace_rows(const std::string& name, const std::string& module);
  void replace_experts(const std::string& name, const std::string& experts, bool gate_up);
  void add_factors(const std::string& module, const Factors& factors);
  void add_linear(const std::string& module, const Factors& factors);
  void add_experts(const std::string& experts, const std::string& parameter, const Factors& factors);
  std::string expert_parameter(const std::string& experts, bool inner, const std::string& tensor) const;

  const RawTensors& tensors_;
  const AdapterConfig& config_;
  const ModelConfig& model_;
  std::string what_;
  std::map<std::string, TensorSpec> specs_;
  std::map<std::string, Factors> factors_;  // by module, without kPeftPrefix
  std::map<std::string, TensorUpdate> updates_;
};

// A module that the configuration lists and the model has must have its tensors in the file.
void AdapterMatcher::expect_trained(const std::string& listed) const {
  const auto belongs = [&](const std::string& tensor) {
    return fmt::format(".{}", tensor).find(name_in_files(fmt::format(".{}.", listed))) != std::string::npos;
  };
  const auto is_trained = [&](const auto& update) {
    return belongs(update.first) && (update.second.replacement || !update.second.rows.empty());
  };
  if (std::ranges::none_of(specs_, belongs, [](const auto& spec) -> const std::string& { return spec.first; })) return;
  if (std::ranges::none_of(updates_, is_trained))
    throw Error(ExitCode::kData, fmt::format("{}: has no trained tensor of {}, which adapter_config.json lists: "
                                             "expected one, or no such module in modules_to_save and "
                                             "trainable_token_indices",
                                             what_, listed));
}

void AdapterMatcher::add(const std::string& name, const RawTensor& raw) {
  if (raw.dtype == DType::kF8) refuse(name, "is fp8, expected fp32, bf16 or fp16");
  if (!name.starts_with(kPeftPrefix))
    refuse(name, fmt::format("is no tensor of PEFT, expected a name that begins with {}", kPeftPrefix));
  const std::string rest = name.substr(kPeftPrefix.size());
  for (const OtherPart& other : kOtherParts)
    if (rest.ends_with(other.ending)) refuse(name, fmt::format("is part of {}, which is not computed", other.what));
  if (rest.ends_with(kFactorA))
    factors_[rest.substr(0, rest.size() - kFactorA.size())].a = name;
  else if (rest.ends_with(kFactorB))
    factors_[rest.substr(0, rest.size() - kFactorB.size())].b = name;
  else if (rest.ends_with(kTrainedTokens))
    replace_rows(name, rest.substr(0, rest.size() - kTrainedTokens.size()));
  else
    add_replacement(name, rest);
}

// PEFT calls the tensor a difference, but it holds the new rows themselves, in the order of the listed ids.
void AdapterMatcher::replace_rows(const std::string& name, const std::string& module) {
  const std::string weight = module + ".weight";
  if (weight != kEmbeddingWeight)
    refuse(name, fmt::format("changes rows of {}, expected {}", weight, kEmbeddingWeight));
  const std::vector<uint64_t> ids = config_.trained_tokens(module), &dims = specs_.at(weight).dims;
  expect_dims(name, {ids.size(), dims[1]}, fmt::format("{} trainable_token_indices", ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= dims[0])
      refuse(name, fmt::format("is for token {}, expected ids below {}: trainable_token_indices", ids[i], dims[0]));
    updates_[weight].rows[ids[i]] = {name, i * dims[1]};
  }
}

// Whole tensors are those of modules_to_save and trained biases. A module that has factors, too, is called base_layer.
void AdapterMatcher::add_replacement(const std::string& name, std::string weight) {
  if (const size_t at = weight.find(kBaseLayer); at != std::string::npos) weight.erase(at, kBaseLayer.size() - 1);
  weight = name_in_files(weight);
  for (const std::string_view parameter : {kGateUp, kDown})
    if (weight.ends_with(parameter))
      return replace_experts(name, weight.substr(0, weight.size() - parameter.size()), parameter == kGateUp);
  const auto spec = specs_.find(weight);
  if (spec == specs_.end()) refuse(name, "belongs to no weight of the model");
  expect_dims(name, spec->second.dims, weight);
  if (updates_[weight].replacement) refuse(name, fmt::format("is the second one for {}, expected one", weight));
  updates_[weight].replacement = {name, 0};
}

// The matrices of all experts, [experts, rows, columns], those of w1 before those of w3.
void AdapterMatcher::replace_experts(const std::string& name, const std::string& experts, bool gate_up) {
  const auto first = specs_.find(fmt::format("{}.0.{}.weight", experts, gate_up ? "w1" : "w2"));
  if (first == specs_.end()) refuse(name, "belongs to no weight of the model");
  const std::vector<uint64_t>& dims = first->second.dims;
  const auto count = static_cast<uint64_t>(model_.experts);
  const std::vector<std::string> matrices =
      gate_up ? std::vector<std::string>{"w1", "w3"} : std::vector<std::string>{"w2"};
  expect_dims(name, {count, matrices.size() * dims[0], dims[1]}, experts);
  uint64_t at = 0;
  for (uint64_t expert = 0; expert < count; ++expert) {
    for (const std::string& matrix : matrices) {
      updates_[fmt::format("{}.{}.{}.weight", experts, expert, matrix)].replacement = {name, at};
      at += dims[0] * dims[1];
    }
  }
}

void AdapterMatcher::add_factors(const std::string& module, const Factors& factors) {
  if (factors.a.empty() || factors.b.empty())
    refuse(factors.a.empty() ? factors.b : factors.a, fmt::format("has no partner, expected {}{}{}", kPeftPrefix,
                                                                  module, factors.a.empty() ? kFactorA : kFactorB));
  const bool inner = module.ends_with(kInnerExperts);
  if (!inner && !module.ends_with(kExperts)) return add_linear(module, factors);
  const std::string experts = inner ? module.substr(0, module.size() - kInner.size()) : module;
  add_experts(experts, expert_parameter(experts, inner, factors.a), factors);
}

// PEFT wraps each targeted parameter once more, gate_up_proj first, and names no parameter: the inner wrapper is called
// experts.base_layer where both are targeted.
std::string AdapterMatcher::expert_parameter(const std::string& experts, bool inner, const std::string& tensor) const {
  const bool gate_up = config_.targets_parameter(experts + ".gate_up_proj");
  const bool down = config_.targets_parameter(experts + ".down_proj");
  if (!(gate_up || down) || (inner && !(gate_up && down)))
    refuse(tensor, fmt::format("belongs to {}, expected target_parameters with it in adapter_config.json",
                               inner ? "gate_up_proj and down_proj" : "gate_up_proj or down_proj"));
  return gate_up && (inner || !down) ? "gate_up_proj" : "down_proj";
}

void AdapterMatcher::add_experts(const std::string& experts, const std::string& parameter, const Factors& factors) {
  if (!specs_.contains(experts + ".0.w1.weight")) refuse(factors.a, "belongs to no weight of the model");
  const bool gate_up = parameter == "gate_up_proj";
  const auto count = static_cast<uint64_t>(model_.experts), hidden = static_cast<uint64_t>(model_.hidden),
             ffn = static_cast<uint64_t>(model_.moe_ffn);
  const uint64_t x = gate_up ? 2 * ffn : hidden, y = gate_up ? hidden : ffn;
  const std::string name = fmt::format("{}.{}", experts, parameter);
  const uint64_t rank = config_.rank(name);
  const float scale = config_.scale(name);
  // Before PEFT 0.20, A belongs to x and B to y.
  const std::vector<uint64_t>& dims = tensors_.at(factors.a).dims;
  if (x == y && !config_.exchanges_experts())
    refuse(factors.a, fmt::format("is a factor of {}, which is square: expected peft_version in adapter_config.json, "
                                  "as versions before 0.20 exchange both factors",
                                  name));
  const bool exchanged = x == y ? *config_.exchanges_experts() : dims.size() == 2 && dims[1] == x;
  const std::string why = fmt::format("rank {} of {} [{}, {}, {}]", rank, name, count, x, y);
  expect_dims(factors.a, {count * rank, exchanged ? x : y}, why);
  expect_dims(factors.b, {exchanged ? y : x, rank * count}, why);
  const auto of_a = [&](uint64_t expert, uint64_t first, uint64_t width) {
    return AdapterFactor{factors.a, expert * rank * width + first, 1, width};
  };
  const auto of_b = [&](uint64_t expert, uint64_t first) {
    return AdapterFactor{factors.b, first * rank * count + expert, rank * count, count};
  };
  const auto add_matrix = [&](uint64_t expert, const char* matrix, uint64_t first_row) {
    updates_[fmt::format("{}.{}.{}.weight", experts, expert, matrix)].terms.push_back(
        {.rows = exchanged ? of_a(expert, first_row, x) : of_b(expert, first_row),
         .columns = exchanged ? of_b(expert, 0) : of_a(expert, 0, y),
         .rank = rank,
         .scale = scale});
  };
  for (uint64_t expert = 0; expert < count; ++expert) {
    add_matrix(expert, gate_up ? "w1" : "w2", 0);
    if (gate_up) add_matrix(expert, "w3", ffn);
  }
}

void AdapterMatcher::add_linear(const std::string& module, const Factors& factors) {
  const std::string weight = name_in_files(module + ".weight");
  if (weight == kHeadWeight && model_.tied_embedding)
    refuse(factors.a,
           "is an adapter of the LM head, which is the embedding: an adapter of one of the two is not computed");
  const auto spec = specs_.find(weight);
  if (spec == specs_.end()) refuse(factors.a, "belongs to no weight of the model");
  const std::vector<uint64_t>& dims = spec->second.dims;
  if (dims.size() != 2 || weight == kEmbeddingWeight)
    refuse(factors.a, fmt::format("changes {}, which is no linear layer: expected an adapter of one", weight));
  // A weight that target_parameters lists is known to patterns by its own name.
  const std::string& named = config_.targets_parameter(weight) ? weight : module;
  const uint64_t rank = config_.rank(named);
  const std::string why = fmt::format("rank {} of {} {}", rank, weight, dims_text(dims));
  expect_dims(factors.a, {rank, dims[1]}, why);
  expect_dims(factors.b, {dims[0], rank}, why);
  updates_[weight].terms.push_back({.rows = {factors.b, 0, rank, 1},
                                    .columns = {factors.a, 0, 1, dims[1]},
                                    .rank = rank,
                                    .scale = config_.scale(named)});
}

}  // namespace

std::map<std::string, TensorUpdate> match_adapter(const RawTensors& tensors, const AdapterConfig& config,
                                                  const ModelConfig& model, const std::string& what) {
  return AdapterMatcher(tensors, config, model, what).match();
}

}  // namespace lfm2
