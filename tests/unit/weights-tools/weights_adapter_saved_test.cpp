// Whole tensors of an adapter (modules_to_save, trained biases) take the place of the model's, and may untie the LM
// head.
#include "support/adapters.h"
#include "support/shard_edits.h"
#include "weights-tools/model/synth.h"

namespace lfm2::test {
namespace {

const std::string kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";  // [200, 48] of tiny-dense

std::vector<float> values_before(const std::string& golden_case, const std::string& tensor) {
  return float_values(*open_model(golden_dir() / golden_case), tensor);
}

bool has_tensor(const ModelSource& model, const std::string& name) {
  return std::any_of(model.tensors().begin(), model.tensors().end(),
                     [&](const SourceTensor& tensor) { return tensor.spec.name == name; });
}

TEST(SavedModulesTest, TakeThePlaceOfTensors) {
  const TemporaryFolder folder;
  HandAdapter adapter;
  adapter.add("model.layers.0.operator_norm.weight", {64});
  adapter.add("model.layers.0.conv.conv.weight", {64, 1, 3});
  adapter.add("model.layers.0.feed_forward.w1.weight", {112, 64});
  adapter.add("model.layers.2.feed_forward.expert_bias", {8});
  const auto model = adapted("tiny-bf16", {adapter.write(folder / "adapter")});
  for (const HandTensor& tensor : adapter.tensors) {
    const std::string name = tensor.name.substr(std::string("base_model.model.").size());
    EXPECT_EQ(float_values(*model, name), adapter.values(name)) << name;
  }
  // Shards have the model's types.
  ShardWriter writer(*model, equal_partition(8, 1), {}, folder / "shards", false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*model, writer, progress);
  std::vector<float> rounded = adapter.values("model.layers.0.conv.conv.weight");
  for (float& value : rounded) value = to_float(from_float<Bf16>(value));
  EXPECT_EQ(float_values(*open_shards(folder / "shards"), "model.layers.0.conv.conv.weight"), rounded);
}

TEST(SavedModulesTest, HoldAllExpertsInOneTensor) {
  const TemporaryFolder folder;
  const std::string experts = "model.layers.2.feed_forward.experts.";
  HandAdapter adapter;
  adapter.add(experts + "gate_up_proj", {8, 96, 64});
  adapter.add(experts + "down_proj", {8, 64, 48});
  const auto model = adapted("tiny-moe", {adapter.write(folder / "adapter")});
  const auto expect_part = [&](const std::string& name, const std::string& whole, size_t first) {
    const std::vector<float> found = float_values(*model, experts + name), all = adapter.values(experts + whole);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin() + static_cast<ptrdiff_t>(first))) << name;
  };
  for (const size_t expert : {0, 3, 7}) {
    expect_part(fmt::format("{}.w1.weight", expert), "gate_up_proj", expert * 96 * 64);
    expect_part(fmt::format("{}.w3.weight", expert), "gate_up_proj", (expert * 96 + 48) * 64);
    expect_part(fmt::format("{}.w2.weight", expert), "down_proj", expert * 64 * 48);
  }
}

// A later adapter's tensor discards what earlier ones added, and is added to by later ones.
TEST(SavedModulesTest, CountInTheOrderOfAdapters) {
  const TemporaryFolder folder;
  const std::string module = "model.layers.0.feed_forward.w2";
  HandAdapter sum, whole;
  sum.add_pair(module, {2, 96}, {48, 2});
  whole.add(module + ".weight", {48, 96});
  const std::string first = sum.write(folder / "sum"), second = whole.write(folder / "whole");
  std::vector<float> expected = whole.values(module + ".weight");
  EXPECT_EQ(float_values(*adapted("tiny-dense", {first, second}), module + ".weight"), expected);
  add_linear_product(expected, 96, 2, 1.5f, sum, module);
  EXPECT_EQ(float_values(*adapted("tiny-dense", {second, first}), module + ".weight"), expected);
  EXPECT_EQ(float_values(*adapted("tiny-dense", {first, second, first}), module + ".weight"), expected);
}

// Biases that were trained: of a module that has factors, too, and of another one.
TEST(SavedModulesTest, MayBeBiases) {
  const TemporaryFolder folder;
  Json config = parse_json(read_bytes(golden_dir() / "tiny-dense/config.json"), "config.json");
  config["conv_bias"] = true;
  HandAdapter adapter;
  adapter.config["bias"] = "all";
  adapter.add_pair("model.layers.0.conv.in_proj", {2, 48}, {144, 2});
  adapter.add("model.layers.0.conv.in_proj.base_layer.bias", {144});
  adapter.add("model.layers.0.conv.conv.bias", {48});
  const auto model = adapt(std::make_unique<SynthSource>(config.dump(), "config.json", 0, DType::kF32),
                           {adapter.write(folder / "adapter")});
  EXPECT_EQ(float_values(*model, "model.layers.0.conv.in_proj.bias"),
            adapter.values("model.layers.0.conv.in_proj.base_layer.bias"));
  EXPECT_EQ(float_values(*model, "model.layers.0.conv.conv.bias"), adapter.values("model.layers.0.conv.conv.bias"));
}

TEST(SavedModulesTest, ThatFitNoTensorAreRefused) {
  const TemporaryFolder folder;
  const auto expect_refused = [&](const std::string& name, std::vector<uint64_t> dims, std::vector<std::string> parts) {
    HandAdapter adapter;
    adapter.add(name, std::move(dims));
    const std::string path = adapter.write(folder / "adapter");
    parts.push_back("tensor base_model.model." + name + " ");
    expect_error([&] { adapted("tiny-moe", {path}); }, ExitCode::kData, parts);
  };
  expect_refused("model.layers.0.conv.in_proj.bias", {192}, {"no weight"});  // this model has no biases
  expect_refused("model.layers.0.operator_norm.weight", {65}, {"[65]", "[64]"});
  expect_refused(kEmbedding, {258, 64}, {"[258, 64]", "[256, 64]"});
  expect_refused("model.layers.2.feed_forward.experts.gate_up_proj", {8, 48, 64}, {"[8, 48, 64]", "[8, 96, 64]"});
  expect_refused("model.layers.0.feed_forward.experts.down_proj", {8, 64, 48}, {"no weight"});
  expect_refused(kHead, {256, 64}, {"lm_head", "modules_to_save"});
  HandAdapter twice;
  twice.add("model.layers.0.conv.in_proj.weight", {192, 64});
  twice.add("model.layers.0.conv.in_proj.base_layer.weight", {192, 64});
  const std::string path = twice.write(folder / "adapter");
  expect_error([&] { adapted("tiny-moe", {path}); }, ExitCode::kData,
               {"second one", "model.layers.0.conv.in_proj.weight"});
}

TEST(SavedModulesTest, ThatAreListedHaveTensors) {
  const TemporaryFolder folder;
  const auto write = [&](const char* key, const Json& modules) {
    HandAdapter adapter;
    adapter.config[key] = modules;
    adapter.add_pair("model.layers.0.feed_forward.w2", {2, 96}, {48, 2});
    return adapter.write(folder / "adapter");
  };
  const auto expect_refused = [&](const char* key, const Json& modules, const std::string& module) {
    const std::string path = write(key, modules);
    expect_error([&] { adapted("tiny-dense", {path}); }, ExitCode::kData, {"no trained tensor of " + module});
  };
  expect_refused("modules_to_save", {"lm_head"}, "lm_head");
  expect_refused("modules_to_save", {"feed_forward.w2"}, "feed_forward.w2");  // it has factors alone
  expect_refused("trainable_token_indices", {3, 4}, "embed_tokens");
  adapted("tiny-dense", {write("modules_to_save", {"classifier"})});  // the model has none
}

// Expects an LM head apart from the embedding, also in shards.
void expect_untied(const std::string& adapter, const std::vector<float>& embedding, const std::vector<float>& head) {
  const TemporaryFolder folder;
  const auto model = adapted("tiny-dense", {adapter});
  ShardWriter writer(*model, equal_partition(5, 2), {}, folder / "shards", false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*model, writer, progress);
  const auto shards = open_shards(folder / "shards");
  EXPECT_FALSE(shards->config().tied_embedding);
  EXPECT_EQ(float_values(*shards, kEmbedding), embedding);
  EXPECT_EQ(float_values(*shards, kHead), head);
  EXPECT_EQ(parse_json(shards->config_text(), "config").at("tie_word_embeddings"), false);
}

TEST(SavedEmbeddingTest, UntiesTheHeadWhereItWasTrainedApart) {
  const TemporaryFolder folder;
  const std::vector<float> old = values_before("tiny-dense", kEmbedding);
  HandAdapter embedding, head, both;
  for (HandAdapter* adapter : {&embedding, &both}) adapter->add(kEmbedding, {200, 48});
  for (HandAdapter* adapter : {&head, &both}) adapter->add(kHead, {200, 48});
  embedding.config["modules_to_save"] = {"embed_tokens"};
  head.config["modules_to_save"] = {"lm_head"};
  both.config["modules_to_save"] = {"embed_tokens", "lm_head"};
  expect_untied(embedding.write(folder / "embedding"), embedding.values(kEmbedding), old);
  expect_untied(head.write(folder / "head"), old, head.values(kHead));
  expect_untied(both.write(folder / "both"), both.values(kEmbedding), both.values(kHead));
  // From then on adapters of the head are those of a linear layer; an embedding is replaced alone.
  HandAdapter later;
  later.add_pair("lm_head", {2, 48}, {200, 2});
  later.add(kEmbedding, {200, 48});
  std::vector<float> expected = head.values(kHead);
  add_linear_product(expected, 48, 2, 1.5f, later, "lm_head");
  const auto model = adapted("tiny-dense", {folder / "head", later.write(folder / "later")});
  EXPECT_EQ(float_values(*model, kHead), expected);
  EXPECT_EQ(float_values(*model, kEmbedding), later.values(kEmbedding));
}

// An embedding that was saved without being listed, or beside an equal head, was still tied when it was saved.
TEST(SavedEmbeddingTest, KeepsTheHeadTied) {
  const TemporaryFolder folder;
  HandAdapter alone, equal;
  alone.add(kEmbedding, {200, 48});
  equal.config["modules_to_save"] = {"embed_tokens", "lm_head"};
  equal.add(kEmbedding, {200, 48});
  equal.tensors.push_back(equal.tensors.front());
  equal.tensors.back().name = "base_model.model." + kHead;
  for (const HandAdapter* adapter : {&alone, &equal}) {
    const auto model = adapted("tiny-dense", {adapter->write(folder / "adapter")});
    EXPECT_TRUE(model->config().tied_embedding);
    EXPECT_FALSE(has_tensor(*model, kHead));
    EXPECT_EQ(float_values(*model, kEmbedding), adapter->values(kEmbedding));
  }
  // An untied head that follows keeps what the embedding was until then.
  HandAdapter untying;
  untying.config["modules_to_save"] = {"embed_tokens"};
  untying.add(kEmbedding, {200, 48});
  std::reverse(untying.tensors[0].bytes.begin(), untying.tensors[0].bytes.end());
  for (char& byte : untying.tensors[0].bytes) byte = static_cast<char>(byte & 0x3f);  // finite
  const auto model = adapted("tiny-dense", {alone.write(folder / "alone"), untying.write(folder / "untying")});
  EXPECT_EQ(float_values(*model, kHead), alone.values(kEmbedding));
  EXPECT_EQ(float_values(*model, kEmbedding), untying.values(kEmbedding));
}

// The new rows of the embedding, which a tied LM head shares; a later adapter's rows win, a later whole one discards
// them.
TEST(TrainedTokensTest, ReplaceRowsOfTheEmbedding) {
  const TemporaryFolder folder;
  const std::string rows = "model.embed_tokens.token_adapter.trainable_tokens_delta";
  HandAdapter first, second, whole;
  first.config["trainable_token_indices"] = {7, 199, 0};
  first.add(rows, {3, 48});
  second.config["trainable_token_indices"] = {{"embed_tokens", {199}}};
  second.add(rows, {1, 48});
  whole.add(kEmbedding, {200, 48});
  std::vector<float> expected = values_before("tiny-dense", kEmbedding);
  const auto replace = [&](const HandAdapter& adapter, size_t from, size_t row) {
    const std::vector<float> values = adapter.values(rows);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(from * 48), 48,
                expected.begin() + static_cast<ptrdiff_t>(row * 48));
  };
  const std::string one = first.write(folder / "first"), two = second.write(folder / "second");
  replace(first, 0, 7);
  replace(first, 1, 199);
  replace(first, 2, 0);
  const auto model = adapted("tiny-dense", {one});
  EXPECT_EQ(float_values(*model, kEmbedding), expected);
  EXPECT_TRUE(model->config().tied_embedding);
  const std::string bytes = tensor_bytes(*model, 0);
  std::string middle(400, '\0');  // from inside row 7 on
  model->read(0, (7 * 48 + 5) * 4, std::as_writable_bytes(std::span(middle)));
  EXPECT_EQ(middle, bytes.substr((7 * 48 + 5) * 4, 400));
  replace(second, 0, 199);
  EXPECT_EQ(float_values(*adapted("tiny-dense", {one, two}), kEmbedding), expected);
  EXPECT_EQ(float_values(*adapted("tiny-dense", {one, whole.write(folder / "whole")}), kEmbedding),
            whole.values(kEmbedding));
}

TEST(TrainedTokensTest, ThatFitNoRowsAreRefused) {
  const TemporaryFolder folder;
  const auto expect_refused = [&](const std::string& module, const Json& ids, std::vector<uint64_t> dims,
                                  const std::string& part) {
    HandAdapter adapter;
    adapter.config["trainable_token_indices"] = ids;
    adapter.add(module + ".token_adapter.trainable_tokens_delta", std::move(dims));
    const std::string path = adapter.write(folder / "adapter");
    expect_error([&] { adapted("tiny-dense", {path}); }, ExitCode::kData, {module + ".token_adapter", part});
  };
  expect_refused("model.embed_tokens", {3, 200}, {2, 48}, "token 200");
  expect_refused("model.embed_tokens", {3, 4}, {1, 48}, "[2, 48]");
  expect_refused("model.embed_tokens", {{"lm_head", {3}}}, {1, 48}, "[0, 48]");
  expect_refused("lm_head", {{"lm_head", {3}}}, {1, 48}, "rows of lm_head");
}

}  // namespace
}  // namespace lfm2::test
