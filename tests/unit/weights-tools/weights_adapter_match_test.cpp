// What an adapter may not have: every tensor lands in a weight or is named, and so is every key that would change a
// sum.
#include <functional>

#include "support/adapters.h"

namespace lfm2::test {
namespace {

const std::string kQuery = "model.layers.1.self_attn.q_proj";  // [48, 48] of tiny-dense

HandAdapter query_adapter() {
  HandAdapter adapter;
  adapter.add_pair(kQuery, {2, 48}, {48, 2});
  return adapter;
}

struct Refused {
  std::function<void(HandAdapter&)> change;
  std::vector<std::string> parts;
};

void expect_refusals(const std::string& golden_case, const std::vector<Refused>& cases) {
  const TemporaryFolder folder;
  for (const Refused& refused : cases) {
    SCOPED_TRACE(refused.parts.front());
    HandAdapter adapter = query_adapter();
    if (golden_case != "tiny-dense") adapter.tensors.clear();
    refused.change(adapter);
    const std::string path = adapter.write(folder / "adapter");
    expect_error([&] { adapted(golden_case, {path}); }, ExitCode::kData, refused.parts);
  }
}

Refused refused_tensor(const std::string& name, std::vector<uint64_t> dims, std::vector<std::string> parts) {
  parts.push_back("tensor base_model.model." + name + " ");
  return {[=](HandAdapter& adapter) { adapter.add(name, dims); }, parts};
}

TEST(AdapterTensorsTest, OfOtherSumsAreRefused) {
  expect_refusals("tiny-dense",
                  {
                      refused_tensor(kQuery + ".lora_magnitude_vector", {48}, {"DoRA"}),
                      refused_tensor(kQuery + ".lora_B.bias", {48}, {"lora_bias"}),
                      refused_tensor("model.embed_tokens.lora_embedding_A", {2, 200}, {"embedding"}),
                      refused_tensor("model.embed_tokens.token_adapter.trainable_tokens_delta", {1, 48},
                                     {"trainable_token_indices"}),
                      refused_tensor("model.layers.1.self_attn.q_proj.lora_C.weight", {2, 2}, {"no weight"}),
                      refused_tensor("model.layers.1.self_attn.q_proj.lora_A.default.weight", {2, 2}, {"no weight"}),
                  });
}

TEST(AdapterTensorsTest, WithoutAWeightAreRefused) {
  const auto pair = [](const std::string& module, std::vector<uint64_t> a, std::vector<uint64_t> b,
                       const std::string& part) {
    return Refused{[=](HandAdapter& adapter) { adapter.add_pair(module, a, b); }, {module + ".lora_A.weight ", part}};
  };
  expect_refusals(
      "tiny-dense",
      {pair("model.layers.0.self_attn.q_proj", {2, 48}, {48, 2}, "no weight"),  // a convolution's layer
       pair("model.layers.9.self_attn.q_proj", {2, 48}, {48, 2}, "no weight"),
       pair("layers.1.self_attn.k_proj", {2, 48}, {24, 2}, "no weight"),
       pair("model.layers.0.feed_forward.experts", {2, 48}, {24, 2}, "target_parameters"),
       pair("model.layers.0.conv.conv", {2, 48}, {48, 2}, "no linear layer"),
       pair("model.layers.1.self_attn.q_layernorm", {2, 8}, {8, 2}, "no linear layer"),
       pair("model.embed_tokens", {2, 48}, {200, 2}, "no linear layer"),
       pair("lm_head", {2, 48}, {200, 2}, "embedding"),
       {[](HandAdapter& adapter) { adapter.tensors[0].name = "model.layers.1.self_attn.q_proj.lora_A.weight"; },
        {"tensor model.layers.1", "base_model.model."}}});
}

TEST(AdapterTensorsTest, OfOtherShapesAreRefused) {
  const auto change = [](const std::function<void(HandAdapter&)>& edit, std::vector<std::string> parts) {
    return Refused{edit, std::move(parts)};
  };
  const auto replaced = [](const std::string& name, std::vector<uint64_t> dims) {
    return [=](HandAdapter& adapter) {
      take_tensor(adapter.tensors, "base_model.model." + name);
      adapter.add(name, dims);
    };
  };
  const std::string a = kQuery + ".lora_A.weight", b = kQuery + ".lora_B.weight";
  expect_refusals(
      "tiny-dense",
      {change(replaced(a, {2, 47}), {a, "[2, 47]", "[2, 48]"}), change(replaced(a, {3, 48}), {a, "[3, 48]", "rank 2"}),
       change(replaced(b, {48, 1}), {b, "[48, 1]", "[48, 2]"}), change(replaced(b, {96}), {b, "[96]"}),
       change([&](HandAdapter& adapter) { take_tensor(adapter.tensors, "base_model.model." + b); }, {a, "partner", b}),
       change([&](HandAdapter& adapter) { take_tensor(adapter.tensors, "base_model.model." + a); }, {b, "partner", a}),
       change(
           [&](HandAdapter& adapter) {
             adapter.config["rank_pattern"] = {{"q_proj", 4}};
           },
           {a, "rank 4"}),
       change(
           [&](HandAdapter& adapter) {
             HandTensor& tensor = adapter.tensors[0];
             tensor.dtype = "F8_E4M3";
             tensor.bytes.resize(tensor.bytes.size() / 4);
           },
           {a, "fp8"})});
}

TEST(AdapterTensorsTest, OfExpertsThatDoNotFitAreRefused) {
  const std::string experts = "model.layers.2.feed_forward.experts";  // of tiny-moe: 8, gate_up_proj [96, 64]
  const auto targeting = [](std::vector<std::string> parameters,
                            std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors,
                            std::vector<std::string> parts) {
    return Refused{[=](HandAdapter& adapter) {
                     adapter.config["target_parameters"] = parameters;
                     for (const auto& [name, dims] : tensors) adapter.add(name, dims);
                   },
                   std::move(parts)};
  };
  const std::string a = experts + ".lora_A.weight", b = experts + ".lora_B.weight";
  const std::string inner = experts + ".base_layer.lora_A.weight", inner_b = experts + ".base_layer.lora_B.weight";
  expect_refusals(
      "tiny-moe",
      {targeting({"q_proj.weight"}, {{a, {16, 64}}, {b, {96, 16}}}, {a, "target_parameters"}),
       targeting({"experts.gate_up_proj"}, {{inner, {16, 64}}, {inner_b, {96, 16}}}, {inner, "target_parameters"}),
       targeting({"perts.gate_up_proj"}, {{a, {16, 64}}, {b, {96, 16}}}, {a, "target_parameters"}),
       targeting({"experts.gate_up_proj"}, {{a, {2, 64}}, {b, {96, 16}}}, {a, "[16, 64]"}),
       targeting({"experts.gate_up_proj"}, {{a, {16, 64}}, {b, {48, 16}}}, {b, "[96, 16]"}),
       targeting({"experts.gate_up_proj"}, {{a, {16, 96}}, {b, {96, 16}}}, {b, "[64, 16]"}),
       targeting({"experts.down_proj"}, {{a, {16, 50}}, {b, {64, 16}}}, {a, "[16, 48]"})});
}

TEST(AdapterConfigTest, RefusesWhatIsNotComputed) {
  const auto with = [](const std::string& key, const Json& value) {
    return Refused{[=](HandAdapter& adapter) { adapter.config[key] = value; }, {key, "adapter_config.json"}};
  };
  std::vector<Refused> cases = {
      with("peft_type", "IA3"),
      with("peft_type", "ADALORA"),
      with("peft_type", nullptr),
      with("use_dora", true),
      with("lora_bias", true),
      with("fan_in_fan_out", true),
      with("use_qalora", true),
      with("use_bdlora", {{"x", 1}}),
      with("layer_replication", {{0, 2}}),
      with("trainable_token_indices", {1, 1}),
      with("trainable_token_indices", {-1, 2}),
      with("trainable_token_indices", 3),
      with("alora_invocation_tokens", {1}),
      with("arrow_config", {{"top_k", 1}}),
      with("megatron_config", {{"x", 1}}),
      with("loftq_config", {{"loftq_bits", 4}}),
      with("corda_config", {{"x", 1}}),
      with("eva_config", {{"rho", 2.0}}),
      with("kasa_config", {{"x", 1}}),
      with("init_lora_weights", "pissa"),
      with("init_lora_weights", "pissa_niter_16"),
      with("init_lora_weights", "olora"),
      with("init_lora_weights", "loftq"),
      with("init_lora_weights", "corda"),
      with("init_lora_weights", nullptr),
      with("a_key_of_the_future", "x"),
      with("a_key_of_the_future", 0),
      with("bias", "some"),
      with("r", 0),
      with("r", 2.5),
      with("r", -2),
      with("r", "2"),
      with("lora_alpha", 0),
      with("lora_alpha", "3"),
      with("lora_alpha", 1e39),
      with("use_rslora", 1),
      with("target_parameters", "x"),
      with("modules_to_save", {1}),
      with("rank_pattern", {1}),
      {[](HandAdapter& adapter) {
         adapter.config["rank_pattern"] = {{"q_proj", 0}};
       },
       {"rank_pattern: q_proj"}},
      {[](HandAdapter& adapter) {
         adapter.config["alpha_pattern"] = {{"q_proj", "1"}};
       },
       {"alpha_pattern: q_proj"}},
      {[](HandAdapter& adapter) {
         adapter.config["rank_pattern"] = {{"(?<=x)q_proj", 2}};
       },
       {"rank_pattern", "(?<=x)q_proj"}},
  };
  for (const char* key : {"peft_type", "r", "lora_alpha"})
    cases.push_back({[=](HandAdapter& adapter) { adapter.config.erase(key); }, {key, "missing"}});
  expect_refusals("tiny-dense", cases);
}

// PEFT writes every key that it knows, and most say that something is off.
TEST(AdapterConfigTest, TakesWhatChangesNothing) {
  const TemporaryFolder folder;
  const std::string plain = query_adapter().write(folder / "plain");
  HandAdapter adapter = query_adapter();
  const Json golden = parse_json(read_bytes(golden_dir() / "adapter-dense/adapter_config.json"), "config");
  for (const auto& [key, value] : golden.items())
    if (key != "rank_pattern" && key != "alpha_pattern") adapter.config[key] = value;
  adapter.config.update({{"r", 2},
                         {"lora_alpha", 3},
                         {"lora_dropout", 0.1},
                         {"target_modules", "all-linear"},
                         {"layers_to_transform", {1}},
                         {"layers_pattern", "layers"},
                         {"exclude_modules", {"x"}},
                         {"runtime_config", {{"ephemeral_gpu_offload", false}}},
                         {"a_key_of_the_future", false},
                         {"another", nullptr},
                         {"a_third", Json::object()},
                         {"a_fourth", Json::array()}});
  for (const Json& init : {Json(true), Json(false), Json("gaussian"), Json("orthogonal"), Json("eva")}) {
    adapter.config["init_lora_weights"] = init;
    adapter.config["eva_config"] = init == "eva" ? Json{{"rho", 2.0}} : Json();
    expect_same_model(*adapted("tiny-dense", {adapter.write(folder / "adapter")}), *adapted("tiny-dense", {plain}));
  }
}

TEST(AdapterFolderTest, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  expect_error([&] { adapted("tiny-dense", {HandAdapter().write(folder / "empty")}); }, ExitCode::kData,
               {"empty/adapter_model.safetensors", "no tensors"});
  const auto expect_missing = [&](const std::string& name, const std::vector<std::string>& parts) {
    expect_error([&] { adapted("tiny-dense", {folder / name}); }, ExitCode::kNoInput, parts);
  };
  expect_missing("none", {"--adapter", "none", "adapter_config.json"});
  query_adapter().write(folder / "half");
  std::filesystem::remove(folder / "half/adapter_model.safetensors");
  expect_missing("half", {"half/adapter_model.safetensors"});
  write_bytes(folder / "half/adapter_model.bin", "PK");
  expect_error([&] { adapted("tiny-dense", {folder / "half"}); }, ExitCode::kData,
               {"half/adapter_model.bin", "pickle", "adapter_model.safetensors"});
  std::filesystem::remove(folder / "half/adapter_config.json");
  expect_missing("half", {"half/adapter_config.json"});
}

}  // namespace
}  // namespace lfm2::test
