// Hopper's kernel for attention gives the bits of attention_mma, called by its launcher and by the operators, over
// whole samples and over pages. attention_test.cpp compares those bits with double precision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cuda/common/hopper_test.h"
#include "cuda/sequences.h"
#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/op_checks.h"

namespace lfm2 {
namespace {

using namespace test;

constexpr std::initializer_list<DType> k16BitTypes = {DType::kBf16, DType::kF16};
constexpr std::initializer_list<AttentionShape> kShapes = {{32, 8, 64},
                                                           {4, 1, 64},
                                                           {8, 2, 64},
                                                           {16, 4, 128},
                                                           {4, 1, 128},
                                                           {8, 2, 64, false, 30},
                                                           {8, 2, 128, false, 30, true}};

using Launch = std::function<void(cudaStream_t, const AttentionArgs&)>;

class CudaAttentionWgmmaTest : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    multiprocessors_ = cuda_device_facts(0).multiprocessors;
  }

  // What a kernel writes; what it does not write stays NaN.
  static HostTensor output(AttentionArgs args, DType act, const Launch& launch) {
    HostTensor out = nans(act, {args.tokens, int64_t{args.heads} * args.head_dim});
    const DeviceTensor device(out);
    args.out = device->data;
    on_gpu([&](Ops&) { launch(dynamic_cast<CudaStream&>(gpu().compute()).native(), args); });
    device.fetch(out);
    return out;
  }
  static HostTensor mma(const AttentionArgs& args, DType act) {
    return output(args, act,
                  [&](cudaStream_t stream, const AttentionArgs& a) { launch_attention_mma(stream, a, act); });
  }
  // Also expects that the counter of units ends where the next launch begins.
  static HostTensor wgmma(const AttentionArgs& args, DType act, int multiprocessors) {
    EXPECT_TRUE(attention_wgmma_takes(args));
    HostTensor counter(DType::kI32, {1});
    counter.fill(std::vector<double>{0});
    const DeviceTensor device_counter(counter);
    HostTensor out = output(args, act, [&](cudaStream_t stream, const AttentionArgs& a) {
      launch_attention_wgmma(stream, a, act, multiprocessors, device_counter->as<int32_t>());
    });
    device_counter.fetch(counter);
    EXPECT_EQ(counter.get(0), 0);
    return out;
  }

  void check_samples(const std::vector<int64_t>& lengths, AttentionShape shape, DType act, float spread) const {
    const PackedSamples packed(lengths);
    SCOPED_TRACE(fmt::format("{} heads {} {} {}, window {}, {} samples, {} tokens", name(act), shape.heads,
                             shape.kv_heads, shape.head_dim, shape.window, lengths.size(), packed.tokens()));
    HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
    qkv.fill_random(static_cast<uint32_t>(packed.tokens()), spread);
    const DeviceTensor device(qkv);
    const AttentionArgs args = attention_args(device, shape, packed.device, device);
    const HostTensor expected = mma(args, act);
    EXPECT_TRUE(same_bits(wgmma(args, act, multiprocessors_), expected));
    EXPECT_TRUE(same_bits(wgmma(args, act, 5), expected));  // so few blocks that each takes many units
    const HostTensor by_operator = nans(act, {packed.tokens(), shape.heads * shape.head_dim});
    const DeviceTensor out(by_operator);
    on_gpu([&](Ops& ops) { ops.attention(device, shape, packed.device, out); });
    out.fetch(by_operator);
    EXPECT_TRUE(same_bits(by_operator, expected));
  }

  // Samples whose tokens come in random parts, and pages that hold NaNs wherever no token was written.
  void check_pages(const std::vector<int64_t>& lengths, int64_t page, AttentionShape shape, DType act, int64_t most,
                   size_t plain) const {
    SCOPED_TRACE(fmt::format("{} heads {} {} {}, window {}, pages of {}", name(act), shape.heads, shape.kv_heads,
                             shape.head_dim, shape.window, page));
    Sequences sequences(lengths, page, static_cast<uint32_t>(page));
    HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()});
    qkv.fill_random(1, 1.5f);
    const DeviceTensor keys(nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim})),
        values(nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim}));
    const KeyValueCache cache{keys, values};
    while (!sequences.finished()) {
      const auto parts = sequences.random_parts(most);
      if (parts.empty()) continue;
      sequences.next(parts, plain, shape.window);
      const Batch& batch = sequences.batch;
      const DeviceTensor rows(sequences.take(qkv));
      on_gpu([&](Ops& ops) { ops.append_keys_values(rows, shape, batch, cache); });
      AttentionArgs args = attention_args(rows, shape, batch, rows);
      args.pages = {.keys = keys->data,
                    .values = values->data,
                    .page_table = batch.page_table.as<const int32_t>(),
                    .sequence_of = batch.sequence_of.as<const int32_t>(),
                    .offsets = batch.offsets.as<const int32_t>(),
                    .max_pages = static_cast<int>(batch.page_table.dim(1)),
                    .page_size = static_cast<int>(page),
                    .pages = sequences.pages(),
                    .singles = batch.singles};
      ASSERT_TRUE(same_bits(wgmma(args, act, multiprocessors_), mma(args, act)));
    }
  }

  int multiprocessors_ = 0;
};

TEST_F(CudaAttentionWgmmaTest, AFewTokens) {
  check_samples({1, 30, 2, 0, 9, 32, 33, 64, 65, 1, 130}, {8, 2, 64}, DType::kBf16, 1.5f);
  check_pages({1, 70, 33}, 16, {8, 2, 64}, DType::kBf16, 60, 0);
}

// A tile has 48 positions, or with wide heads 32, of which each warpgroup takes 16; a tile of keys has 64.
TEST_F(CudaAttentionWgmmaTest, BitsOfMmaAtEveryEdge) {
  std::vector<int64_t> odd;
  for (int64_t length = 1; length < 200; length += 4) odd.push_back(length);
  std::shuffle(odd.begin(), odd.end(), std::mt19937(1));
  for (const DType act : k16BitTypes)
    for (const float spread : {1.0f, 4.0f}) {
      for (const int64_t length : {1, 15, 16, 17, 47, 48, 49, 64, 65, 128, 129})
        check_samples({length}, {8, 2, 64}, act, spread);
      check_samples(odd, {4, 1, 64}, act, spread);
      check_samples(odd, {4, 1, 128}, act, spread);
    }
  for (const DType act : k16BitTypes)
    for (const AttentionShape shape : kShapes) {
      check_samples(std::vector<int64_t>(150, 1), shape, act, 1.5f);
      check_samples(std::vector<int64_t>(10, 32), shape, act, 1.5f);
      check_samples({150, 33, 1, 64, 90}, shape, act, 1.5f);
    }
}

// Long samples have splits of 1024 keys.
TEST_F(CudaAttentionWgmmaTest, BitsOfMmaInLongSamples) {
  for (const DType act : k16BitTypes)
    for (const auto& lengths : std::vector<std::vector<int64_t>>{{1024}, {1025}, {2049, 3500, 700}})
      for (const int64_t head_dim : {64, 128})
        for (const int64_t window : {0, 1, 64, 256, 1500})
          check_samples(lengths, {8, 2, head_dim, false, window, head_dim == 128}, act, 1.5f);
}

TEST_F(CudaAttentionWgmmaTest, BitsOfMmaInPages) {
  size_t plain = 0;
  for (const DType act : k16BitTypes)
    for (const int64_t page : {8, 16, 40, 64, 256}) {
      check_pages({1, 200, 2, 63, 64, 65, 130, 33, 1, 90}, page, {8, 2, 64}, act, 100, plain++ % 3);
      check_pages({1, 200, 2, 63, 64, 65, 130, 33, 1, 90}, page, {8, 2, 128}, act, 100, plain++ % 3);
      if (page == 64) continue;
      for (const int64_t head_dim : {64, 128})
        for (const int64_t window : {0, 20, 256})
          check_pages({2100, 1023, 70}, page, {8, 2, head_dim, false, window, head_dim == 128}, act, 1500, 0);
    }
  check_pages({200, 63, 90}, 16, {32, 8, 64}, DType::kBf16, 100, 0);
}

// What a neighbour has, a tile may load: no bit of it must count.
TEST_F(CudaAttentionWgmmaTest, NaNsBesideASample) {
  const PackedSamples packed({50, 7, 130, 64, 33, 1, 90, 20, 48, 5});
  for (const AttentionShape shape : {AttentionShape{8, 2, 64}, {8, 2, 128}, {8, 2, 64, false, 30}})
    for (const DType act : k16BitTypes) {
      HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
      qkv.fill_random(1);
      const auto rows_of = [&](const HostTensor& tensor, size_t sample) {
        return tensor->rows(static_cast<int64_t>(packed.starts[sample]),
                            static_cast<int64_t>(packed.starts[sample + 1] - packed.starts[sample]));
      };
      const auto attend = [&] {
        const DeviceTensor device(qkv);
        return wgmma(attention_args(device, shape, packed.device, device), act, multiprocessors_);
      };
      const HostTensor clean = attend();
      for (size_t sample = 1; sample + 1 < packed.starts.size(); sample += 2) {
        const Tensor rows = rows_of(qkv, sample);
        std::memset(rows.data, 0xff, rows.bytes());
      }
      const HostTensor beside = attend();
      for (size_t sample = 0; sample + 1 < packed.starts.size(); sample += 2)
        EXPECT_TRUE(same_bits(rows_of(beside, sample), rows_of(clean, sample))) << "sample " << sample;
    }
}

TEST_F(CudaAttentionWgmmaTest, LeavesOtherSizesToMma) {
  const HostTensor host(DType::kBf16, {16, 16 * 64});
  const DeviceTensor device(host);
  AttentionArgs args{.qkv = device->data,
                     .columns = 12 * 64,
                     .positions = nullptr,
                     .out = device->data,
                     .tokens = 16,
                     .heads = 8,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .scale = 0.125f};
  EXPECT_TRUE(attention_wgmma_takes(args));
  AttentionArgs other = args;
  other.head_dim = 128;
  EXPECT_TRUE(attention_wgmma_takes(other));
  other.head_dim = 96;
  EXPECT_FALSE(attention_wgmma_takes(other));
  other = args;
  other.columns += 4;
  EXPECT_FALSE(attention_wgmma_takes(other));
  other = args;
  other.kv_heads = 4;
  EXPECT_FALSE(attention_wgmma_takes(other));
  other = args;
  other.qkv = static_cast<const char*>(args.qkv) + 2;
  EXPECT_FALSE(attention_wgmma_takes(other));
  args.pages.keys = args.pages.values = device->data;
  args.pages.page_size = 24;
  EXPECT_TRUE(attention_wgmma_takes(args));
  args.pages.page_size = 50;
  EXPECT_FALSE(attention_wgmma_takes(args));
}

}  // namespace
}  // namespace lfm2
