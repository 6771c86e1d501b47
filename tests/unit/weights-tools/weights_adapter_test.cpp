// Weights with merged adapters: the sum in fp32, rounded once, for every form of factors; and shards that name them.
#include "support/adapters.h"
#include "support/shard_edits.h"
#include "weights-tools/model/dequantized_source.h"
#include "weights-tools/model/synth.h"

namespace lfm2::test {
namespace {

const std::string kProjection = "model.layers.0.conv.in_proj";            // [144, 48] of tiny-dense
const std::string kDown = "model.layers.0.feed_forward.w2";               // [48, 96]
const std::string kExpertsOfMoe = "model.layers.2.feed_forward.experts";  // of tiny-moe: 8 of [48, 64]
constexpr size_t kExpertCount = 8, kMoeHidden = 64, kMoeFfn = 48;

std::vector<float> base_values(const std::string& golden_case, const std::string& tensor) {
  return float_values(*open_model(golden_dir() / golden_case), tensor);
}

HandAdapter projection_adapter() {
  HandAdapter adapter;
  adapter.add_pair(kProjection, {2, 48}, {144, 2});
  return adapter;
}

void split_adapted(const std::string& golden_case, const std::vector<std::string>& adapters,
                   const std::filesystem::path& out, std::optional<DType> dtype = {}) {
  const auto source = adapted(golden_case, adapters);
  ShardWriter writer(*source, equal_partition(source->config().layers, 2), dtype, out, false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*source, writer, progress);
}

TEST(AdaptedWeightsTest, IsTheSumInFp32) {
  const TemporaryFolder folder;
  const HandAdapter adapter = projection_adapter();
  const auto model = adapted("tiny-dense", {adapter.write(folder / "one")});
  std::vector<float> expected = base_values("tiny-dense", kProjection + ".weight");
  add_linear_product(expected, 48, 2, 1.5f, adapter, kProjection);
  EXPECT_EQ(float_values(*model, kProjection + ".weight"), expected);
  EXPECT_EQ(float_values(*model, kDown + ".weight"), base_values("tiny-dense", kDown + ".weight"));
}

// PEFT names LFM3's gates of heads as transformers does in memory.
TEST(AdaptedWeightsTest, FindsGatesByTheirNameInMemory) {
  const TemporaryFolder folder;
  const std::string block = "model.layers.2.self_attn.";  // gates [4, 48]
  HandAdapter factors, whole;
  factors.config["rank_pattern"] = {{"g_proj", 3}};
  factors.add_pair(block + "g_proj", {3, 48}, {4, 3});
  std::vector<float> expected = base_values("tiny-lfm3", block + "gate_proj.weight");
  add_linear_product(expected, 48, 3, 1.0f, factors, block + "g_proj");
  EXPECT_EQ(float_values(*adapted("tiny-lfm3", {factors.write(folder / "factors")}), block + "gate_proj.weight"),
            expected);
  whole.config["modules_to_save"] = {"g_proj"};
  whole.add(block + "g_proj.weight", {4, 48});
  EXPECT_EQ(float_values(*adapted("tiny-lfm3", {whole.write(folder / "whole")}), block + "gate_proj.weight"),
            whole.values(block + "g_proj.weight"));
}

// A weight in bf16 with two adapters: the sums are not rounded to bf16 before the last one was added, and their order
// counts.
TEST(AdaptedWeightsTest, IsRoundedOnce) {
  const TemporaryFolder folder;
  const std::string module = "model.layers.0.conv.in_proj";
  HandAdapter first, second;
  first.add_pair(module, {2, 64}, {192, 2});
  second.config["lora_alpha"] = 1e-3;
  second.config["r"] = 5;
  second.add_pair(module, {5, 64}, {192, 5});
  split_adapted("tiny-bf16", {first.write(folder / "first"), second.write(folder / "second")}, folder / "shards");
  std::vector<float> expected = base_values("tiny-bf16", module + ".weight");
  add_linear_product(expected, 64, 2, 1.5f, first, module);
  std::vector<float> rounded_twice = expected;
  for (float& value : rounded_twice) value = to_float(from_float<Bf16>(value));
  for (std::vector<float>* values : {&expected, &rounded_twice}) {
    add_linear_product(*values, 64, 5, static_cast<float>(1e-3 / 5), second, module);
    for (float& value : *values) value = to_float(from_float<Bf16>(value));
  }
  const auto shards = open_shards(folder / "shards");
  EXPECT_EQ(float_values(*shards, module + ".weight"), expected);
  EXPECT_NE(float_values(*shards, module + ".weight"), rounded_twice);
  for (const SourceTensor& tensor : shards->tensors())
    EXPECT_EQ(tensor.dtype, tensor.spec.keep_fp32 ? DType::kF32 : DType::kBf16) << tensor.spec.name;
}

// The first pattern that matches the whole name sets the rank, or alpha, of a module; the other number stays.
TEST(AdaptedWeightsTest, ScalesByPatterns) {
  struct Case {
    const char *ranks, *alphas;
    bool rank_stabilized;
    uint64_t rank;
    float scale;
  };
  const std::vector<Case> cases = {
      {"{}", "{}", false, 2, 1.5f},
      {"{}", "{}", true, 2, static_cast<float>(3 / std::sqrt(2.0))},
      {R"({"w2": 3})", "{}", false, 3, 1.0f},
      {R"({"w2": 3})", "{}", true, 3, static_cast<float>(3 / std::sqrt(3.0))},
      {"{}", R"({"w2": 0.5})", false, 2, 0.25f},
      {R"({"feed_forward.w2": 3, "w2": 4})", "{}", false, 3, 1.0f},  // the first, not the longest
      {R"({"w2": 4, "feed_forward.w2": 3})", "{}", false, 4, 0.75f},
      {R"({"2": 4, "forward.w2": 4, "^w2": 4, "w": 4, "w2x": 4})", "{}", false, 2, 1.5f},
      {R"({"layers\\.0\\..*": 4})", "{}", false, 4, 0.75f},
      {R"({"layers\\.[1-9]\\..*": 4})", "{}", false, 2, 1.5f},
      {R"({"^model.layers.0.feed_forward.w2": 4})", "{}", false, 4, 0.75f},
      {R"({"w1|w2": 4})", R"({"\\w+": 8})", false, 4, 2.0f},
  };
  const TemporaryFolder folder;
  for (const Case& tested : cases) {
    SCOPED_TRACE(fmt::format("{} {}", tested.ranks, tested.alphas));
    HandAdapter adapter;
    // As text, because the order of keys counts.
    const std::string patterns = fmt::format(R"(, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": {}}})",
                                             tested.ranks, tested.alphas, tested.rank_stabilized);
    adapter.add_pair(kDown, {tested.rank, 96}, {48, tested.rank});
    adapter.write(folder / "adapter");
    std::string config = adapter.config.dump();
    config.replace(config.size() - 1, 1, patterns);
    write_bytes(folder / "adapter/adapter_config.json", config);
    std::vector<float> expected = base_values("tiny-dense", kDown + ".weight");
    add_linear_product(expected, 96, tested.rank, tested.scale, adapter, kDown);
    EXPECT_EQ(float_values(*adapted("tiny-dense", {folder / "adapter"}), kDown + ".weight"), expected);
  }
}

// Expects w1, w3 and w2 of each expert to have these products added; an empty name: none. `exchanged`: as PEFT before
// 0.20 stores the factors.
void expect_expert_sums(const ModelSource& model, const HandAdapter& adapter, const std::string& gate_up,
                        const std::string& down, size_t gate_up_rank, size_t down_rank, bool exchanged) {
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    const auto expect_matrix = [&](const char* matrix, const std::string& wrapper, size_t rank, size_t first_row,
                                   size_t height, size_t width) {
      const std::string name = fmt::format("{}.{}.{}.weight", kExpertsOfMoe, expert, matrix);
      std::vector<float> expected = base_values("tiny-moe", name);
      if (!wrapper.empty()) {
        const std::vector<float> a = adapter.values(wrapper + ".lora_A.weight"),
                                 b = adapter.values(wrapper + ".lora_B.weight");
        // The factors as the tensors [E, r, of_a] and [of_b, r, E].
        const auto of_a = [&](size_t k, size_t i, size_t extent) { return a[(expert * rank + k) * extent + i]; };
        const auto of_b = [&](size_t i, size_t k) { return b[(i * rank + k) * kExpertCount + expert]; };
        add_product(
            expected, width, rank, 3.0f / static_cast<float>(rank),
            [&](size_t row, size_t k) {
              return exchanged ? of_a(k, first_row + row, height) : of_b(first_row + row, k);
            },
            [&](size_t k, size_t column) { return exchanged ? of_b(column, k) : of_a(k, column, width); });
      }
      EXPECT_EQ(float_values(model, name), expected) << name;
    };
    // The rows of w1 and w3 follow each other in gate_up_proj.
    expect_matrix("w2", down, down_rank, 0, kMoeHidden, kMoeFfn);
    if (exchanged) continue;
    expect_matrix("w1", gate_up, gate_up_rank, 0, kMoeFfn, kMoeHidden);
    expect_matrix("w3", gate_up, gate_up_rank, kMoeFfn, kMoeFfn, kMoeHidden);
  }
}

TEST(AdaptedExpertsTest, AddsBothParameters) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  adapter.config["target_parameters"] = {"experts.gate_up_proj", "feed_forward.experts.down_proj"};
  adapter.config["rank_pattern"] = {{"experts.down_proj", 3}};
  adapter.add_pair(kExpertsOfMoe + ".base_layer", {kExpertCount * 2, kMoeHidden}, {2 * kMoeFfn, 2 * kExpertCount});
  adapter.add_pair(kExpertsOfMoe, {kExpertCount * 3, kMoeFfn}, {kMoeHidden, 3 * kExpertCount});
  const auto model = adapted("tiny-moe", {adapter.write(folder / "adapter")});
  expect_expert_sums(*model, adapter, kExpertsOfMoe + ".base_layer", kExpertsOfMoe, 2, 3, false);
}

// One targeted parameter has the outer name, whichever it is.
TEST(AdaptedExpertsTest, AddsOneParameter) {
  const TemporaryFolder folder;
  HandAdapter gate_up, down;
  gate_up.config["target_parameters"] = {"experts.gate_up_proj"};
  gate_up.add_pair(kExpertsOfMoe, {kExpertCount * 2, kMoeHidden}, {2 * kMoeFfn, 2 * kExpertCount});
  expect_expert_sums(*adapted("tiny-moe", {gate_up.write(folder / "gate_up")}), gate_up, kExpertsOfMoe, "", 2, 2,
                     false);
  down.config["target_parameters"] = {"experts.down_proj"};
  down.add_pair(kExpertsOfMoe, {kExpertCount * 2, kMoeFfn}, {kMoeHidden, 2 * kExpertCount});
  expect_expert_sums(*adapted("tiny-moe", {down.write(folder / "down")}), down, "", kExpertsOfMoe, 2, 2, false);
}

// The shapes tell the older order of factors, whatever the version says.
TEST(AdaptedExpertsTest, AddsExchangedFactors) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  adapter.config["target_parameters"] = {"experts.down_proj"};
  adapter.add_pair(kExpertsOfMoe, {kExpertCount * 2, kMoeHidden}, {kMoeFfn, 2 * kExpertCount});
  const auto model = adapted("tiny-moe", {adapter.write(folder / "adapter")});
  expect_expert_sums(*model, adapter, "", kExpertsOfMoe, 2, 2, true);
}

// With experts of 32 rows gate_up_proj is square, [8, 64, 64], so that only the version tells the order of factors.
TEST(AdaptedExpertsTest, ExchangesFactorsByVersion) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  adapter.config["target_parameters"] = {"experts.gate_up_proj"};
  adapter.add_pair(kExpertsOfMoe, {kExpertCount * 2, kMoeHidden}, {kMoeHidden, 2 * kExpertCount});
  const std::string name = kExpertsOfMoe + ".5.w3.weight";
  const auto square_model = [] {
    Json config = parse_json(read_bytes(golden_dir() / "tiny-moe/config.json"), "config.json");
    config["moe_intermediate_size"] = 32;
    return std::make_unique<SynthSource>(config.dump(), "config.json", 0, DType::kF32);
  };
  const std::vector<float> a = adapter.values(kExpertsOfMoe + ".lora_A.weight"),
                           b = adapter.values(kExpertsOfMoe + ".lora_B.weight");
  for (const char* version : {"0.17.1", "0.19.0.dev0", "0.20.0", "1.2.0"}) {
    SCOPED_TRACE(version);
    adapter.config["peft_version"] = version;
    const bool exchanged = std::string(version) < "0.20";
    std::vector<float> expected = float_values(*square_model(), name);
    const auto of_a = [&](size_t k, size_t i) { return a[(5 * 2 + k) * kMoeHidden + i]; };
    const auto of_b = [&](size_t i, size_t k) { return b[(i * 2 + k) * kExpertCount + 5]; };
    add_product(
        expected, kMoeHidden, 2, 1.5f,
        [&](size_t row, size_t k) { return exchanged ? of_a(k, 32 + row) : of_b(32 + row, k); },
        [&](size_t k, size_t column) { return exchanged ? of_b(column, k) : of_a(k, column); });
    EXPECT_EQ(float_values(*adapt(square_model(), {adapter.write(folder / "adapter")}), name), expected);
  }
  adapter.config.erase("peft_version");
  const std::string path = adapter.write(folder / "adapter");
  expect_error([&] { adapt(square_model(), {path}); }, ExitCode::kData, {"gate_up_proj", "square", "peft_version"});
}

// Adapters of experts that were trained apart, and of the router.
TEST(AdaptedExpertsTest, AddsToSeparateExpertsAndTheRouter) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  const std::string expert = kExpertsOfMoe + ".3.w2", router = "model.layers.2.feed_forward.gate";
  adapter.config["target_parameters"] = {"feed_forward.gate.weight"};
  adapter.config["alpha_pattern"] = {{"gate.weight", 8}};
  adapter.add_pair(expert, {2, kMoeFfn}, {kMoeHidden, 2});
  adapter.add_pair(router, {2, kMoeHidden}, {kExpertCount, 2});
  const auto model = adapted("tiny-moe", {adapter.write(folder / "adapter")});
  std::vector<float> matrix = base_values("tiny-moe", expert + ".weight"),
                     gate = base_values("tiny-moe", router + ".weight");
  add_linear_product(matrix, kMoeFfn, 2, 1.5f, adapter, expert);
  add_linear_product(gate, kMoeHidden, 2, 4.0f, adapter, router);
  EXPECT_EQ(float_values(*model, expert + ".weight"), matrix);
  EXPECT_EQ(float_values(*model, router + ".weight"), gate);
}

TEST(AdaptedSourceTest, GivesTheSameForAnyReadsAndThreads) {
  const TemporaryFolder folder;
  const std::vector<std::string> adapters = {(golden_dir() / "adapter-moe").string()};
  const auto one = adapted("tiny-moe", adapters, 1), many = adapted("tiny-moe", adapters, 5);
  expect_same_model(*one, *many);
  for (size_t tensor = 0; tensor < one->tensors().size(); tensor += 7) {
    const std::string whole = tensor_bytes(*one, tensor);
    const size_t first = whole.size() / 8 * 4 - 4;  // inside a row
    std::string rest(whole.size() - first, '\0'), front(first, '\0');
    many->read(tensor, first, std::as_writable_bytes(std::span(rest)));
    many->read(tensor, 0, std::as_writable_bytes(std::span(front)));
    EXPECT_EQ(front + rest, whole) << one->tensors()[tensor].spec.name;
  }
}

TEST(AdapterShardsTest, NameTheirAdapters) {
  const TemporaryFolder folder;
  const HandAdapter adapter = projection_adapter();
  const std::string one = adapter.write(folder / "one"), two = adapter.write(folder / "two");
  split_adapted("tiny-dense", {one, two}, folder / "shards");
  const ShardSet shards = ShardSet::open(folder / "shards");
  const AdapterId expected{"one", checksum_of(read_bytes(folder / "one/adapter_config.json")),
                           checksum_of(read_bytes(folder / "one/adapter_model.safetensors"))};
  ASSERT_EQ(shards.adapters().size(), 2u);
  EXPECT_EQ(shards.adapters()[0], expected);
  EXPECT_EQ(shards.adapters()[1], (AdapterId{"two", expected.config, expected.weights}));
  // Shards that are split again keep the list, and add to it.
  const auto again = adapt(open_shards(folder / "shards"), {one});
  ASSERT_EQ(again->adapters().size(), 3u);
  EXPECT_EQ(again->adapters()[2], expected);
  EXPECT_TRUE(ShardSet::open(golden_shards("tiny-dense", 1)).adapters().empty());
}

TEST(AdapterShardsTest, AreReadTogetherOnlyWithTheSameAdapters) {
  const TemporaryFolder folder;
  split_adapted("tiny-dense", {projection_adapter().write(folder / "one")}, folder / "shards");
  const auto last = folder / "shards" / shard::file_name(1, 2);
  edit_shard(last, [](hid_t file) {
    remove_attribute(file, "/", shard::kAdaptersAttribute);
    remove_attribute(file, "/", shard::kGapsAttribute);
  });
  expect_error([&] { ShardSet::open(folder / "shards"); }, ExitCode::kData, {last.string(), "adapters differs"});
  for (const char* text :
       {"{}", "[]", "[1]", R"([{"name":"a","config":"b"}])", R"([{"name":"a","config":"b","weights":1}])", "["}) {
    edit_shard(last, [&](hid_t file) { set_text(file, "/", shard::kAdaptersAttribute, text); });
    expect_error([&] { ShardSet::open(folder / "shards"); }, ExitCode::kData, {last.string(), "adapters"});
  }
}

// An fp8 weight is dequantised to fp32 before the sum.
TEST(AdaptedWeightsTest, AreFinite) {
  const TemporaryFolder folder;
  for (const float value : {NAN, INFINITY, 3e38f}) {  // the last one is finite, but its sum is not
    HandAdapter adapter = projection_adapter();
    std::vector<float> values(2 * 48, value);
    std::memcpy(adapter.tensors[0].bytes.data(), values.data(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1e6f;
    std::memcpy(adapter.tensors[1].bytes.data(), values.data(), values.size() * sizeof(float));
    const auto model = adapted("tiny-dense", {adapter.write(folder / "adapter")});
    expect_error([&] { float_values(*model, kProjection + ".weight"); }, ExitCode::kData, {kProjection, "NaN"});
  }
}

TEST(AdaptedWeightsTest, NeedsATypeForFp8) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  const std::string module = "model.layers.0.feed_forward.w1";
  const auto model = open_model(golden_dir() / "tiny-fp8-channel");
  const auto ffn = static_cast<uint64_t>(model->config().ffn), hidden = static_cast<uint64_t>(model->config().hidden);
  adapter.add_pair(module, {2, hidden}, {ffn, 2});
  const std::string path = adapter.write(folder / "adapter");
  expect_error([&] { adapted("tiny-fp8-channel", {path}); }, ExitCode::kData, {"tiny-fp8-channel", "fp8", "--dtype"});
  std::vector<float> expected =
      float_values(*dequantize(open_model(golden_dir() / "tiny-fp8-channel"), DType::kF32), module + ".weight");
  add_linear_product(expected, hidden, 2, 1.5f, adapter, module);
  const auto sum = adapt(dequantize(open_model(golden_dir() / "tiny-fp8-channel"), DType::kF32), {path});
  EXPECT_EQ(float_values(*sum, module + ".weight"), expected);
}

}  // namespace
}  // namespace lfm2::test
