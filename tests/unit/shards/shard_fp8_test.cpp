// Shards with fp8: what other programs find in them, and edits that are refused.
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "stage/shards/shard_weights.h"
#include "support/fp8_checkpoints.h"
#include "support/shard_edits.h"
#include "weights-tools/model/dequantized_source.h"

namespace lfm2::test {
namespace {

const std::string kW1 = "model.layers.0.feed_forward.w1.weight", kScaleW1 = kW1 + "_scale";

class ShardFp8Test : public testing::Test {
 protected:
  void SetUp() override { split("tiny-fp8-block", folder_ / "shards", equal_partition(3, 2)); }
  std::filesystem::path first() const { return folder_ / "shards/stage-00-of-02.h5"; }

  TemporaryFolder folder_;
};

TEST_F(ShardFp8Test, GivesTheScalesOfAWeight) {
  const ShardSet shards = ShardSet::open(folder_ / "shards");
  EXPECT_EQ(shards.config().quantization.scheme, Quantization::Scheme::kBlock);
  const ShardTensor& weight = shards.find(kW1);
  EXPECT_EQ(weight.dtype, DType::kF8);
  EXPECT_EQ(weight.bytes, 256u * 192);
  const ShardTensor* scale = shards.scale_of(weight);
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(scale->spec.name, kScaleW1);
  EXPECT_EQ(scale->dtype, DType::kBf16);
  EXPECT_EQ(scale->spec.dims, (std::vector<uint64_t>{2, 2}));
  EXPECT_EQ(scale->spec.layer, 0);
  EXPECT_EQ(shards.scale_of(shards.find("model.embed_tokens.weight")), nullptr);
  std::vector<HandTensor> tensors = fp8_tensors("tiny-fp8-block");
  EXPECT_TRUE(read_tensor(shards, weight) == find_tensor(tensors, kW1).bytes);
  EXPECT_TRUE(read_tensor(shards, *scale) == find_tensor(tensors, kScaleW1).bytes);
}

TEST_F(ShardFp8Test, OlderReadersSeeANewerVersion) {
  edit_shard(first(), [](hid_t file) {
    int64_t version = 0;
    const h5::Id attribute{H5Aopen(file, shard::kVersionAttribute, H5P_DEFAULT), H5Aclose};
    ASSERT_GE(H5Aread(attribute.get(), H5T_NATIVE_INT64, &version), 0);
    EXPECT_EQ(version, 2);
  });
}

TEST_F(ShardFp8Test, RefusesEdits) {
  struct Edit {
    std::string what;
    std::function<void(hid_t)> change;
    std::vector<std::string> parts;
  };
  const h5::Id half = h5::file_type(DType::kF16);
  const std::vector<Edit> edits = {
      {"bytes without a type",
       [](hid_t f) { remove_attribute(f, kW1.c_str(), shard::kElementTypeAttribute); },
       {kW1, "8-bit", "or fp8"}},
      {"another type",
       [](hid_t f) { set_text(f, kW1, shard::kElementTypeAttribute, "float8_e5m2"); },
       {kW1, "float8_e5m2", "float8_e4m3fn"}},
      {"no scales", [](hid_t f) { H5Ldelete(f, kScaleW1.c_str(), H5P_DEFAULT); }, {kScaleW1, "missing", "[2, 2]"}},
      {"scales of another shape",
       [](hid_t f) {
         replace_dataset(f, kScaleW1, H5T_IEEE_F32LE, {256, 1});
       },
       {kScaleW1, "[256, 1]", "[2, 2]"}},
      {"scales in fp16",
       [&](hid_t f) {
         replace_dataset(f, kScaleW1, half.get(), {2, 2});
       },
       {kScaleW1, "fp16"}},
      {"scales of no fp8",
       [](hid_t f) {
         replace_dataset(f, "model.layers.1.self_attn.q_proj.weight", H5T_IEEE_F32LE, {192, 192});
       },
       {"model.layers.1.self_attn.q_proj.weight_scale", "no part"}},
      {"only w1 in fp8",
       [](hid_t f) {
         replace_dataset(f, "model.layers.0.feed_forward.w3.weight", H5T_IEEE_F32LE, {256, 192});
         H5Ldelete(f, "model.layers.0.feed_forward.w3.weight_scale", H5P_DEFAULT);
       },
       {kW1, "feed_forward.w3.weight", "one type"}},
      {"an fp8 norm",
       [](hid_t f) {
         replace_dataset(f, "model.layers.0.ffn_norm.weight", H5T_STD_U8LE, {192});
         add_text(f, "model.layers.0.ffn_norm.weight", shard::kElementTypeAttribute, shard::kFp8Type);
       },
       {"ffn_norm.weight", "projections"}},
      {"a name of another tensor",
       [](hid_t f) { set_text(f, kScaleW1, shard::kCheckpointNameAttribute, "model.embed_tokens.weight"); },
       {kScaleW1, "checkpoint_name", "model.embed_tokens.weight"}}};
  const std::string original = read_bytes(first());
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.what);
    write_bytes(first(), original);
    edit_shard(first(), edit.change);
    expect_error([&] { ShardSet::open(folder_ / "shards"); }, ExitCode::kData, edit.parts);
  }
}

TEST_F(ShardFp8Test, ADamagedScaleIsNamed) {
  const ShardSet before = ShardSet::open(folder_ / "shards");
  std::string bytes = read_bytes(first());
  bytes[before.find(kScaleW1).offset] ^= 1;
  write_bytes(first(), bytes);
  const ShardSet shards = ShardSet::open(folder_ / "shards");
  expect_error([&] { read_tensor(shards, shards.find(kScaleW1)); }, ExitCode::kData, {kScaleW1, "damaged"});
}

// Shards of which one expert says that its scales were together: merge cannot write such a tensor.
TEST_F(ShardFp8Test, PartsOfATensorMustBeComplete) {
  const std::string experts = "model.layers.1.feed_forward.experts.";
  const ShardSet shards = ShardSet::open(folder_ / "shards");
  const std::string scale = experts + "0.w2.weight_scale";
  edit_shard(shards.files()[shards.find(scale).file].path(), [&](hid_t file) {
    set_text(file, scale, shard::kCheckpointNameAttribute, experts + "down_proj_scale_inv");
  });
  const auto model = open_shards(folder_ / "shards");
  expect_error([&] { create_model(*model, folder_ / "back", false); }, ExitCode::kData,
               {experts + "down_proj_scale_inv", "1 parts", "expected 3"});
}

// The first layer's feed-forward w1, loaded for this --dtype.
std::string loaded_w1(const std::filesystem::path& folder, std::optional<DType> wanted) {
  ShardSet shards = ShardSet::open(folder);
  const DType act = shards.choose_dtype(wanted);
  CpuBackend backend(1);
  Progress progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  ShardWeights weights(shards, backend, act, progress, 1);
  const auto n = static_cast<int64_t>(shards.find(kW1).spec.dims[0]),
             k = static_cast<int64_t>(shards.find(kW1).spec.dims[1]);
  const Tensor w1 = weights.load({kW1}, {n, k}, WeightSource::Rows::kBehindOneAnother);
  weights.finish();
  return {reinterpret_cast<const char*>(w1.data), w1.bytes()};
}

// A scale whose checksum is right, but which is no finite number above 0, is refused whatever is computed.
TEST_F(ShardFp8Test, LoadingRefusesScalesThatAreNotPositive) {
  const std::string original = read_bytes(first());
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -1.0f, 0.0f, HUGE_VALF}) {
    write_bytes(first(), original);
    set_scale(folder_ / "shards", kScaleW1, 2, value);  // at [1, 0] of [2, 2]
    for (const std::optional<DType> dtype :
         {std::optional<DType>(), std::optional(DType::kBf16), std::optional(DType::kF32)})
      expect_error([&] { loaded_w1(folder_ / "shards", dtype); }, ExitCode::kData, {kScaleW1, "[1, 0]", "above 0"});
  }
}

// --dtype of lfm2_stage and of split dequantise alike, and round once.
TEST_F(ShardFp8Test, LoadsDequantisedWeightsAsSplitWritesThem) {
  std::vector<HandTensor> tensors = test::fp8_tensors("tiny-fp8-channel");
  HandTensor &weight = find_tensor(tensors, kW1), &scale = find_tensor(tensors, kScaleW1);
  std::vector<float> scales(192, 1.0f);
  const std::vector<float> hard = {0x1.c8e390p-1f, 0x1.cc71c6p-1f, 0x1.d38e38p-1f, 0x1.d71c72p-1f,   // for bf16
                                   0x1.c75556p-1f, 0x1.c7c71cp-1f, 0x1.c838e4p-1f, 0x1.c8aaaap-1f};  // for fp16
  std::copy(hard.begin(), hard.end(), scales.begin());
  scale.dtype = "F32";
  scale.bytes.assign(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  for (size_t row = 0; row < hard.size(); ++row) weight.bytes[row * 128] = 0x39;  // 1.125
  write_folder(folder_ / "m", "tiny-fp8-channel", tensors);
  const auto model = open_model(folder_ / "m");
  ShardWriter writer(*model, equal_partition(4, 1), {}, folder_ / "hard", false);
  Progress progress("split", 0, Progress::Unit::kBytes, ProgressMode::kOff);
  copy_model(*model, writer, progress);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const auto source = dequantize(open_model(folder_ / "m"), dtype);
    const auto at = std::find_if(source->tensors().begin(), source->tensors().end(),
                                 [](const SourceTensor& tensor) { return tensor.spec.name == kW1; });
    EXPECT_TRUE(loaded_w1(folder_ / "hard", dtype) ==
                tensor_bytes(*source, static_cast<size_t>(at - source->tensors().begin())))
        << name(dtype);
  }
}

}  // namespace
}  // namespace lfm2::test
