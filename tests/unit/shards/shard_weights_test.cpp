// The layout of a stage's weights on the device: pairs of gate and up, and feed-forwards padded with zeros.
#include "stage/shards/shard_weights.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/json/json.h"
#include "kernels/cpu/cpu_backend.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"
#include "support/weights_support.h"
#include "weights-tools/commands/stages.h"
#include "weights-tools/formats/shard_writer.h"
#include "weights-tools/model/copy.h"
#include "weights-tools/model/synth.h"

namespace lfm2 {
namespace {

constexpr int64_t kHidden = 16, kExperts = 3;

// While it lives, fresh memory is not zero, as a device's memory may be.
struct DirtyMemory {
  DirtyMemory() { mallopt(M_PERTURB, 0x55); }
  ~DirtyMemory() { mallopt(M_PERTURB, 0); }
};

// A configuration with a dense layer of `ffn` columns and one with experts of `moe_ffn` columns.
std::string config_text(int64_t ffn, int64_t moe_ffn) {
  return OrderedJson{{"model_type", "lfm2_moe"},
                     {"vocab_size", 32},
                     {"hidden_size", kHidden},
                     {"num_hidden_layers", 2},
                     {"intermediate_size", ffn},
                     {"moe_intermediate_size", moe_ffn},
                     {"num_dense_layers", 1},
                     {"num_experts", kExperts},
                     {"num_experts_per_tok", 2},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 1},
                     {"max_position_embeddings", 64},
                     {"layer_types", {"conv", "full_attention"}}}
      .dump();
}

struct Loaded {
  Loaded(const SynthSource& source, DType compute) {
    ShardWriter writer(source, equal_partition(2, 1), {}, folder / "shards", false);
    copy_model(source, writer, progress);
    shards.emplace(ShardSet::open(folder / "shards"));
    weights.emplace(*shards, backend, compute, progress, 2);
  }
  test::TemporaryFolder folder;
  Progress progress{"", 0, Progress::Unit::kBytes, ProgressMode::kOff};
  DirtyMemory dirty;
  CpuBackend backend{1};
  std::optional<ShardSet> shards;
  std::optional<ShardWeights> weights;
};

std::vector<float> floats(const ModelSource& source, const std::string& name) {
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const SourceTensor& tensor = source.tensors()[i];
    if (tensor.spec.name != name) continue;
    const std::string bytes = test::tensor_bytes(source, i);
    std::vector<float> values(static_cast<size_t>(numel(tensor.spec.dims)));
    convert(tensor.dtype, bytes.data(), DType::kF32, values.data(), values.size());
    return values;
  }
  ADD_FAILURE() << name;
  return {};
}

// Compares gate_up [2 padded, hidden] and down [hidden, padded] of one feed-forward with its tensors.
void expect_padded(const ModelSource& source, const std::string& prefix, int64_t ffn, const Tensor& gate_up,
                   const Tensor& down) {
  SCOPED_TRACE(prefix);
  const auto value = [](const Tensor& tensor, int64_t element) {
    float result = std::numeric_limits<float>::quiet_NaN();
    convert(tensor.dtype, tensor.data + static_cast<size_t>(element) * size_bytes(tensor.dtype), DType::kF32, &result,
            1);
    return result;
  };
  const std::vector<float> w1 = floats(source, prefix + "w1.weight"), w3 = floats(source, prefix + "w3.weight"),
                           w2 = floats(source, prefix + "w2.weight");
  const int64_t padded = (ffn + 7) / 8 * 8;
  ASSERT_EQ(gate_up.numel(), 2 * padded * kHidden);
  ASSERT_EQ(down.numel(), padded * kHidden);
  for (int64_t c = 0; c < padded; ++c)
    for (int64_t h = 0; h < kHidden; ++h) {
      const int64_t row = c / 8 * 16 + c % 8;
      const auto at = static_cast<size_t>(c * kHidden + h), down_at = static_cast<size_t>(h * ffn + c);
      EXPECT_EQ(value(gate_up, row * kHidden + h), c < ffn ? w1[at] : 0.0f) << "gate " << c << " " << h;
      EXPECT_EQ(value(gate_up, (row + 8) * kHidden + h), c < ffn ? w3[at] : 0.0f) << "up " << c << " " << h;
      EXPECT_EQ(value(down, h * padded + c), c < ffn ? w2[down_at] : 0.0f) << "down " << c << " " << h;
    }
}

TEST(ShardWeightsTest, FeedForwardsArePaddedWithZeros) {
  for (const int64_t ffn : {1, 7, 8, 12, 100})
    for (const auto& [stored, compute] : {std::pair(DType::kF32, DType::kF32), std::pair(DType::kBf16, DType::kF32),
                                          std::pair(DType::kBf16, DType::kF16)}) {
      SCOPED_TRACE(fmt::format("ffn {}, {} as {}", ffn, name(stored), name(compute)));
      const int64_t moe_ffn = ffn + 3, padded = (ffn + 7) / 8 * 8, moe_padded = (moe_ffn + 7) / 8 * 8;
      const SynthSource source(config_text(ffn, moe_ffn), "config", 1, stored);
      Loaded loaded(source, compute);
      WeightSource& weights = *loaded.weights;
      const std::string dense = "model.layers.0.feed_forward.", moe = "model.layers.1.feed_forward.experts.";
      const Tensor gate_up =
          weights.load({dense + "w1.weight", dense + "w3.weight"}, {2 * padded, kHidden}, WeightSource::Rows::kGateUp);
      const Tensor down = weights.load({dense + "w2.weight"}, {kHidden, padded});
      std::vector<std::string> pairs, downs;
      for (int64_t e = 0; e < kExperts; ++e) {
        for (const char* part : {"w1", "w3"}) pairs.push_back(fmt::format("{}{}.{}.weight", moe, e, part));
        downs.push_back(fmt::format("{}{}.w2.weight", moe, e));
      }
      const Tensor all_gate_up = weights.load(pairs, {kExperts, 2 * moe_padded, kHidden}, WeightSource::Rows::kGateUp);
      const Tensor all_down = weights.load(downs, {kExperts, kHidden, moe_padded});
      loaded.weights->finish();
      expect_padded(source, dense, ffn, gate_up, down);
      for (int64_t e = 0; e < kExperts; ++e)
        expect_padded(source, fmt::format("{}{}.", moe, e), moe_ffn, all_gate_up.at(e), all_down.at(e));
    }
}

// Of fp32, with one element of w2 of layer 0 that fp16 cannot hold.
class LargeSource : public SynthSource {
 public:
  static constexpr int64_t kFfn = 8;
  static constexpr const char* kName = "model.layers.0.feed_forward.w2.weight";
  LargeSource() : SynthSource(lfm2::config_text(kFfn, kFfn), "config", 1, DType::kF32) {}
  void read(size_t tensor, uint64_t first_byte, std::span<std::byte> into) const override {
    SynthSource::read(tensor, first_byte, into);
    constexpr float kLarge = 70000;
    if (tensors()[tensor].spec.name == kName) std::memcpy(into.data() + (3 * kFfn + 2) * sizeof(float), &kLarge, 4);
  }
};

TEST(ShardWeightsTest, RefusesWhatWouldBecomeInfinite) {
  const LargeSource source;
  for (const DType compute : {DType::kF16, DType::kBf16}) {
    Loaded loaded(source, compute);
    WeightSource& weights = *loaded.weights;
    weights.load({LargeSource::kName}, {kHidden, LargeSource::kFfn});
    if (compute == DType::kBf16)
      EXPECT_NO_THROW(loaded.weights->finish());
    else
      test::expect_error([&] { loaded.weights->finish(); }, ExitCode::kData,
                         {"stage-00-of-01.h5", std::string(LargeSource::kName) + " is 70000 at [3, 2]", "fp16"});
  }
}

// Rows that are padded stand apart from each other on the device. Where one is longer than a piece, it comes in
// several.
TEST(ShardWeightsTest, RowsMayBeLongerThanAPiece) {
  constexpr int64_t kFfn = Loader::kPieceBytes / sizeof(float) + 1001, kPadded = (kFfn + 7) / 8 * 8;
  const SynthSource source(config_text(kFfn, 8), "config", 1, DType::kF32);
  Loaded loaded(source, DType::kF32);
  const std::string name = "model.layers.0.feed_forward.w2.weight";
  const Tensor down = loaded.weights->load({name}, {kHidden, kPadded}, WeightSource::Rows::kBehindOneAnother);
  loaded.weights->finish();
  std::vector<float> expected;
  const std::vector<float> stored = floats(source, name);
  for (int64_t row = 0; row < kHidden; ++row) {
    expected.insert(expected.end(), stored.begin() + row * kFfn, stored.begin() + (row + 1) * kFfn);
    expected.resize(static_cast<size_t>((row + 1) * kPadded), 0.0f);
  }
  const std::span found(down.as<float>(), static_cast<size_t>(down.numel()));
  EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
}

// A job of hidden states loads the layers that it asks for, and neither the LM head nor a final norm without need.
TEST(ShardWeightsTest, WhatStandsBehindTheModelsEndIsNotLoaded) {
  const SynthSource source(config_text(12, 100), "config", 1, DType::kF32);
  for (const ModelEnd end : {ModelEnd::kLmHead, ModelEnd::kFinalNorm, ModelEnd::kLastLayer})
    for (const int64_t layers : {1, 2}) {
      SCOPED_TRACE(testing::Message() << layers << " layers, end " << static_cast<int>(end));
      Loaded loaded(source, DType::kF32);
      loaded.shards->leave_out_behind(layers, end);
      const ModelConfig& config = loaded.shards->config();
      const LayerRange all{0, layers};
      const Stage stage(*loaded.weights, config, all);
      EXPECT_TRUE(stage.last());
      loaded.weights->finish();
      const std::vector<const ShardTensor*> tensors = stage_tensors(*loaded.shards, std::vector<LayerRange>{all});
      EXPECT_NO_THROW(loaded.weights->expect_all_loaded(tensors));
      EXPECT_EQ(held_bytes(*loaded.shards, tensors, DType::kF32), loaded.weights->bytes());
      EXPECT_EQ(stage_memory(config, all, DType::kF32, DType::kF32, 8, 1).weight_bytes, loaded.weights->bytes());
      const auto has = [&](const std::string& name) {
        return std::any_of(tensors.begin(), tensors.end(),
                           [&](const ShardTensor* tensor) { return tensor->spec.name.starts_with(name); });
      };
      EXPECT_TRUE(has("model.embed_tokens."));
      EXPECT_EQ(has("model.layers.1."), layers == 2);
      EXPECT_EQ(has(std::string(kFinalNormName)), end != ModelEnd::kLastLayer);
      EXPECT_EQ(has("lm_head."), end == ModelEnd::kLmHead && !config.tied_embedding);
    }
}

// The memory plan, weights-tools plan and the memory that is used all count the padding.
TEST(ShardWeightsTest, PlansCountThePadding) {
  const SynthSource source(config_text(12, 100), "config", 1, DType::kF32);
  Loaded loaded(source, DType::kF32);
  const LayerRange all{0, 2};
  const Stage stage(*loaded.weights, source.config(), all);
  loaded.weights->finish();
  const uint64_t taken = loaded.weights->bytes(), padding = 4 * 3 * kHidden * (4 + kExperts * 4);
  EXPECT_EQ(taken, source.total_bytes() + padding);
  EXPECT_EQ(held_bytes(*loaded.shards, stage_tensors(*loaded.shards, std::vector<LayerRange>{all}), DType::kF32),
            taken);
  EXPECT_EQ(stage_memory(source.config(), all, DType::kF32, DType::kF32, 8, 1).weight_bytes, taken);
  EXPECT_EQ(stage_needs(source, {all}, {{}, DType::kF32, 1, 8})[0].weight_bytes, taken);
}

}  // namespace
}  // namespace lfm2
