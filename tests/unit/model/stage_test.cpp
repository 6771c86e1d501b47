// One rank at a time: from the reference's hidden state before stage r to the reference's hidden state behind it.
#include "stage/model/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "kernels/cpu/cpu_ops.h"
#include "stage/model/memory_plan.h"
#include "support/fp8_cases.h"
#include "support/golden.h"
#include "support/host_tensor.h"
#include "support/largest_difference.h"
#include "support/loaded_stage.h"

namespace lfm2::test {
namespace {

class StageTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::filesystem::path golden() const { return golden_dir() / std::get<0>(GetParam()) / "golden.h5"; }
};

// The rounding errors of `layers` layers of two blocks, each a few sums of `hidden` products, for values up to
// `largest`.
double fp32_tolerance(int64_t layers, int64_t hidden, double largest) {
  return 4 * 2 * static_cast<double>(layers) * std::sqrt(static_cast<double>(hidden)) * 0x1p-24 * largest;
}

void expect_near(const float* found, const Array& expected, double tolerance) {
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < expected.values.size() && !std::isnan(worst); ++i) {
    const double difference = std::abs(static_cast<double>(found[i]) - expected.values[i]);
    if (!(difference <= worst)) {
      worst = difference;
      at = i;
    }
  }
  EXPECT_LE(worst, tolerance) << "token " << at / static_cast<size_t>(expected.dims.back()) << ", element "
                              << at % static_cast<size_t>(expected.dims.back());
}

TEST_P(StageTest, ReferenceInReferenceOut) {
  const auto& [golden_case, rank] = GetParam();
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const LayerRange range = equal_partition(config.layers, 4)[static_cast<size_t>(rank)];
  LoadedStage loaded(golden_case, range, DType::kF32);
  const Array ids = read_array(golden(), "input_ids");
  const int64_t samples = ids.dim(0), length = ids.dim(1), tokens = samples * length;

  std::vector<float> residual(static_cast<size_t>(tokens * config.hidden));
  const Tensor hidden(residual.data(), DType::kF32, {tokens, config.hidden});
  std::vector<int32_t> id_values(ids.values.begin(), ids.values.end()), positions, offsets;
  for (int64_t token = 0; token < tokens; ++token) positions.push_back(static_cast<int32_t>(token % length));
  for (int64_t sample = 0; sample <= samples; ++sample) offsets.push_back(static_cast<int32_t>(sample * length));
  const Batch batch{.positions = Tensor(positions.data(), DType::kI32, {tokens}),
                    .offsets = Tensor(offsets.data(), DType::kI32, {samples + 1}),
                    .tokens = tokens,
                    .sequences = samples,
                    .max_length = length};
  const StageMemory cost = stage_memory(config, range, DType::kF32, DType::kF32, tokens, tokens);
  Scratch scratch(loaded.backend.allocate(cost.scratch_bytes));
  Ops& ops = loaded.backend.ops();
  if (loaded.stage().first()) {
    loaded.stage().embed(ops, Tensor(id_values.data(), DType::kI32, {tokens}), hidden);
    expect_near(residual.data(), read_array(golden(), "hidden_states/00"), 0);
  } else {
    const Array in = read_array(golden(), fmt::format("hidden_states/{:02}", range.first));
    std::transform(in.values.begin(), in.values.end(), residual.begin(),
                   [](double x) { return static_cast<float>(x); });
  }
  loaded.stage().forward({.ops = ops, .scratch = scratch, .residual = hidden, .batch = batch});
  if (loaded.stage().last()) {
    const Array expected = read_array(golden(), "logits_f64"), reference = read_array(golden(), "logits");
    const double own_error = largest_difference(reference.values, expected.values);
    std::vector<float> logits(expected.values.size());
    loaded.stage().head(ops, hidden, {}, scratch, Tensor(logits.data(), DType::kF32, {tokens, config.vocab}));
    expect_near(logits.data(), expected, 3 * own_error);
  } else {
    const Array expected = read_array(golden(), fmt::format("hidden_states/{:02}", range.end()));
    const double largest = std::abs(*std::max_element(expected.values.begin(), expected.values.end(),
                                                      [](double a, double b) { return std::abs(a) < std::abs(b); }));
    expect_near(residual.data(), expected, fp32_tolerance(range.count, config.hidden, largest));
  }
}

// Counts the norms that are left to products.
class CountingNorms : public CpuOps {
 public:
  using CpuOps::CpuOps;
  void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                   const Tensor& normed, const Tensor& out) override {
    ++norms;
    CpuOps::norm_matmul(x, norm_weight, eps, w, bias, normed, out);
  }
  int64_t norms = 0;
};

// Where the operators fuse norms into products, the forward leaves the norms to them, with the same bits.
TEST_P(StageTest, NormsInPassingGiveTheSameBits) {
  const auto& [golden_case, rank] = GetParam();
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const LayerRange range = equal_partition(config.layers, 4)[static_cast<size_t>(rank)];
  const LoadedStage loaded(golden_case, range, DType::kBf16);
  constexpr int64_t kTokens = 6;
  HostTensor before(DType::kBf16, {kTokens, config.hidden}), behind_blocks(DType::kBf16, {kTokens, config.hidden}),
      in_passing(DType::kBf16, {kTokens, config.hidden});
  before.fill_random(1);
  for (const HostTensor* out : {&behind_blocks, &in_passing}) std::memcpy((*out)->data, before->data, before->bytes());
  int32_t positions[] = {0, 1, 2, 3, 0, 1}, offsets[] = {0, 4, 6};
  const Batch batch{.positions = Tensor(positions, DType::kI32, {kTokens}),
                    .offsets = Tensor(offsets, DType::kI32, {3}),
                    .tokens = kTokens,
                    .sequences = 2,
                    .max_length = 4};
  const StageMemory cost = stage_memory(config, range, DType::kBf16, DType::kBf16, kTokens, kTokens);
  ThreadPool pool{1};
  const auto forward = [&](int64_t max_fused_norm_rows, const Tensor& residual) {
    CpuBackend backend(1);
    Scratch scratch(backend.allocate(cost.scratch_bytes));
    std::memset(scratch.allocate(DType::kBf16, {1}).data, 0xff, cost.scratch_bytes);
    scratch.reset();
    CountingNorms ops(pool, *available_simd().front(), max_fused_norm_rows);
    loaded.stage().forward({.ops = ops, .scratch = scratch, .residual = residual, .batch = batch});
    return ops.norms;
  };
  EXPECT_EQ(forward(kTokens - 1, behind_blocks), 0);
  EXPECT_EQ(forward(kTokens, in_passing), range.count);
  EXPECT_TRUE(same_bits(in_passing, behind_blocks));
  EXPECT_FALSE(same_bits(in_passing, before));
}

// Random weights of bf16, but for fp8 in k_proj, which is therefore not loaded together with q_proj and v_proj.
class WeightsOfTwoTypes : public WeightSource {
 public:
  bool load_together(const std::vector<std::string>&) const override { return false; }
  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows) override {
    if (names.front().find("k_proj") != std::string::npos) return fp8_.emplace_back(dims, kChannel, 7).view();
    HostTensor& tensor = tensors_.emplace_back(DType::kBf16, dims);
    tensor.fill_random(static_cast<uint32_t>(tensors_.size()), 0.1f);
    return tensor;
  }

 private:
  std::deque<HostTensor> tensors_;
  std::deque<Fp8Matrix> fp8_;
};

// One norm serves all three projections, so it is computed once.
TEST(LayerTest, ANormIsNotFusedWhereSomeOfItsReadersMultiplyFp8) {
  ModelConfig config;
  config.hidden = config.ffn = 64;
  config.layers = config.dense_layers = 1;
  config.layer_types = {LayerType::kAttention};
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.norm_eps = 1e-5f;
  config.rope.theta = 1e4f;
  WeightsOfTwoTypes weights;
  const Layer layer(weights, config, 0, {0, 1});
  constexpr int64_t kTokens = 3;
  int32_t positions[] = {0, 1, 2}, offsets[] = {0, kTokens};
  const Batch batch{.positions = Tensor(positions, DType::kI32, {kTokens}),
                    .offsets = Tensor(offsets, DType::kI32, {2}),
                    .tokens = kTokens,
                    .sequences = 1,
                    .max_length = kTokens};
  ThreadPool pool{1};
  CpuBackend backend(1);
  const auto forward = [&](int64_t max_fused_norm_rows, const HostTensor& residual) {
    Scratch scratch(backend.allocate(1 << 20));
    CountingNorms ops(pool, *available_simd().front(), max_fused_norm_rows);
    Pass pass{.ops = ops, .scratch = scratch, .residual = residual, .batch = batch};
    pass.normed = scratch.allocate(DType::kBf16, {kTokens, config.hidden});
    scratch.hold();
    layer.forward(pass, nullptr);
    return ops.norms;
  };
  HostTensor fused(DType::kBf16, {kTokens, config.hidden}), apart(DType::kBf16, {kTokens, config.hidden});
  fused.fill_random(1);
  apart.fill_random(1);
  EXPECT_EQ(forward(kTokens, fused), 0);
  EXPECT_EQ(forward(0, apart), 0);
  EXPECT_TRUE(same_bits(fused, apart));
}

// The last feed-forward of some rows alone, in any order, has the bits that they have among all.
TEST_P(StageTest, OutputRowsHaveTheBitsTheyHaveAmongAll) {
  const auto& [golden_case, rank] = GetParam();
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const LayerRange range = equal_partition(config.layers, 4)[static_cast<size_t>(rank)];
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    LoadedStage loaded(golden_case, range, compute);
    constexpr int64_t kTokens = 7, kWanted = 3;
    HostTensor all(compute, {kTokens, config.hidden}), start(compute, {kTokens, config.hidden}),
        some(compute, {kWanted, config.hidden});
    all.fill_random(1);
    std::memcpy(start->data, all->data, all->bytes());
    int32_t positions[] = {0, 1, 2, 3, 0, 1, 2}, offsets[] = {0, 4, 7}, rows[kWanted] = {6, 3, 1};
    const Batch batch{.positions = Tensor(positions, DType::kI32, {kTokens}),
                      .offsets = Tensor(offsets, DType::kI32, {3}),
                      .tokens = kTokens,
                      .sequences = 2,
                      .max_length = 4};
    const StageMemory cost = stage_memory(config, range, compute, compute, kTokens, kTokens);
    Scratch scratch(loaded.backend.allocate(cost.scratch_bytes));
    Ops& ops = loaded.backend.ops();
    const OutputRows output{Tensor(rows, DType::kI32, {kWanted}), some};
    const Pass some_rows{.ops = ops, .scratch = scratch, .residual = start, .batch = batch, .output = &output};
    if (!loaded.stage().last()) {
      EXPECT_THROW(loaded.stage().forward(some_rows), Error);
      continue;
    }
    loaded.stage().forward({.ops = ops, .scratch = scratch, .residual = all, .batch = batch});
    loaded.stage().forward(some_rows);
    for (int64_t i = 0; i < kWanted; ++i)
      EXPECT_EQ(std::memcmp(some->rows(i, 1).data, all->rows(rows[i], 1).data, some->rows(i, 1).bytes()), 0)
          << "row " << rows[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, StageTest, testing::Combine(testing::ValuesIn(kGoldenCases), testing::Range(0, 4)),
                         [](const auto& tested) {
                           std::string name =
                               std::get<0>(tested.param) + "_rank" + std::to_string(std::get<1>(tested.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// What a plan counts is what is allocated, with states at the ends of pages and without, and with a part of a layer.
TEST(CachesTest, TakeTheBytesOfTheirPlan) {
  ModelConfig config = ShardSet::open(golden_shards("tiny-moe", 4)).config();
  uint64_t page[2] = {};  // bytes in all layers, in bf16 and in fp8
  for (const bool fp8 : {false, true})
    for (const bool keeps_prefixes : {true, false})
      for (const LayerRange range :
           {LayerRange{1, 2}, layers_of_blocks(3, 7), layers_of_blocks(1, 2), LayerRange{0, config.layers}}) {
        config.fp8_cache = fp8;
        CpuBackend backend(1);
        const CacheShape shape{.slots = 3, .pages = 7, .page_size = 16, .keeps_prefixes = keeps_prefixes};
        const Caches caches(backend, config, range, DType::kBf16, shape);
        page[fp8 ? 1 : 0] = page_bytes(config, range, DType::kBf16, shape);
        EXPECT_EQ(caches.bytes(), 7 * page[fp8 ? 1 : 0] + 3 * slot_bytes(config, range));
      }
  const auto d = static_cast<uint64_t>(config.head_dim);
  EXPECT_EQ(page[1] * 2 * d, page[0] * (d + 1));
}

// Of lfm3's four attention layers two have a window, of 8 positions here: two pages of 4 and one that they reach into,
// for each slot, those of 8 tokens of prompts, and one more. The prefix cache adds a quarter of all pages.
TEST(CachesTest, LayersWithAWindowHaveFewPages) {
  const ModelConfig config = ShardSet::open(golden_shards("tiny-lfm3", 4)).config();
  const auto position = static_cast<uint64_t>(2 * config.kv_heads * config.head_dim) * sizeof(float);
  const auto state = static_cast<uint64_t>(4 * (config.conv_length - 1) * config.hidden) * sizeof(float);
  for (const auto& [pages, keeps_prefixes, of_windows] :
       std::vector<std::tuple<int64_t, bool, int64_t>>{{100, false, 12}, {100, true, 37}, {7, false, 7}}) {
    CacheShape shape{.slots = 3, .page_size = 4, .keeps_prefixes = keeps_prefixes, .window = config.window};
    shape.set_pages(pages, 8);
    EXPECT_EQ(shape.window_pages, of_windows);
    const LayerRange all{0, config.layers};
    CpuBackend backend(1);
    const Caches caches(backend, config, all, DType::kF32, shape);
    EXPECT_EQ(caches.bytes(), cache_bytes(config, all, DType::kF32, shape));
    EXPECT_EQ(caches.bytes(), static_cast<uint64_t>(2 * 4 * (pages + of_windows)) * position +
                                  static_cast<uint64_t>(2 * 3 + (keeps_prefixes ? pages : 0)) * state);
  }
}

}  // namespace
}  // namespace lfm2::test
