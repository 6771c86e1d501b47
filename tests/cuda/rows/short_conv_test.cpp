// short_conv on the GPU, compared with transformers' results and the CPU's operator.
#include <gtest/gtest.h>

#include "cuda/gpu.h"
#include "support/golden.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaShortConvTest : ::testing::Test {
  CpuReference cpu;
};

HostTensor short_conv(const HostTensor& bcz, const HostTensor& weight, const HostTensor* bias, const Batch& batch) {
  const DeviceTensor in(bcz), taps(weight);
  std::unique_ptr<DeviceTensor> offset;
  if (bias != nullptr) offset = std::make_unique<DeviceTensor>(*bias);
  HostTensor out(bcz->dtype, {bcz->dim(0), bcz->dim(1) / 3});
  const DeviceTensor device_out(out);
  on_gpu([&](Ops& ops) { ops.short_conv(in, taps, offset ? Tensor(*offset) : Tensor(), batch, device_out); });
  device_out.fetch(out);
  return out;
}

TEST_F(CudaShortConvTest, AgreesWithTransformers) {
  for (const std::string kind : {"k3", "k3_bias", "k4", "k4_bias"}) {
    SCOPED_TRACE(kind);
    const auto x = golden_operator("causal_conv1d/" + kind + "/x"), w = golden_operator("causal_conv1d/" + kind + "/w");
    const auto y = golden_operator("causal_conv1d/" + kind + "/y");
    const int64_t samples = x.dim(0), channels = x.dim(1), length = x.dim(2), taps = w.dim(1);
    const PackedSamples packed(std::vector<int64_t>(static_cast<size_t>(samples), length));
    HostTensor bcz(DType::kF32, {samples * length, 3 * channels}), weight(DType::kF32, {channels, taps});
    HostTensor bias(DType::kF32, {channels});
    bcz.fill(1.0);
    weight.fill(w.values);
    const bool has_bias = kind.size() > 2;
    if (has_bias) bias.fill(golden_operator("causal_conv1d/" + kind + "/bias").values);
    std::vector<double> expected(y.values.size());
    for (int64_t i = 0; i < samples; ++i)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = 0; t < length; ++t) {
          const auto from = static_cast<size_t>((i * channels + c) * length + t);
          bcz.set(static_cast<size_t>((i * length + t) * 3 * channels + 2 * channels + c), x.values[from]);
          expected[static_cast<size_t>((i * length + t) * channels + c)] = y.values[from];
        }
    expect_close(short_conv(bcz, weight, has_bias ? &bias : nullptr, packed.device), expected,
                 std::vector<double>(expected.size(), 2 * 5 * 0x1p-24 * 10));
  }
}

TEST_F(CudaShortConvTest, EveryTypeAndLength) {
  const PackedSamples packed({1, 2, 0, 7, 3, 33, 1, 1});
  for (const int64_t hidden : {37, 64, 1032})
    for (const DType act : kFloatTypes)
      for (const DType weight_type : {act, DType::kBf16})
        for (const int64_t taps : {1, 2, 3, 5}) {
          SCOPED_TRACE(fmt::format("{} {} taps {} hidden {}", name(act), name(weight_type), taps, hidden));
          HostTensor bcz(act, {packed.tokens(), 3 * hidden}), weight(weight_type, {hidden, 1, taps});
          HostTensor bias(weight_type, {hidden}), expected(act, {packed.tokens(), hidden});
          bcz.fill_random(1);
          weight.fill_random(2);
          bias.fill_random(3);
          cpu.ops.short_conv(bcz, weight, bias, packed.host, expected);
          const HostTensor out = short_conv(bcz, weight, &bias, packed.device);
          // The same operator on absolute values gives the magnitude of the terms.
          HostTensor all(act, {packed.tokens(), 3 * hidden}), most(DType::kF32, {packed.tokens(), hidden});
          HostTensor wide(DType::kF32, {packed.tokens(), 3 * hidden});
          wide.fill(magnitudes(bcz));
          weight.fill(magnitudes(weight));
          bias.fill(magnitudes(bias));
          cpu.ops.short_conv(wide, weight, bias, packed.host, most);
          expect_close_to_cpu(out, expected, most.values(), 2 * static_cast<double>(taps + 4));
        }
}

TEST_F(CudaShortConvTest, ASamplesBitsAreItsOwn) {
  const std::vector<int64_t> lengths{31, 1, 32, 2, 5, 64, 3};
  const PackedSamples packed(lengths);
  for (const DType act : kFloatTypes) {
    HostTensor bcz(act, {packed.tokens(), 3 * 2048}), weight(act, {2048, 1, 3});
    bcz.fill_random(1);
    weight.fill_random(2);
    const HostTensor all = short_conv(bcz, weight, nullptr, packed.device);
    int64_t first = 0;
    for (const int64_t length : lengths) {
      HostTensor one(act, {length, 3 * 2048});
      std::memcpy(one->data, bcz->rows(first, length).data, one->bytes());
      const PackedSamples alone({length});
      EXPECT_TRUE(same_bits(short_conv(one, weight, nullptr, alone.device), all->rows(first, length)))
          << name(act) << ", " << length;
      first += length;
    }
  }
}

}  // namespace
}  // namespace lfm2
