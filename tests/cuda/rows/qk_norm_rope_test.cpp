// qk_norm_rope on the GPU, compared with transformers' results and the CPU's operator.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu.h"
#include "support/golden.h"
#include "support/index_cast.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaQkNormRopeTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaQkNormRopeTest, EveryTypeAtFarPositions) {
  for (const AttentionShape shape :
       {AttentionShape{6, 2, 24}, {32, 8, 64}, {4, 2, 8}, {3, 1, 16}, {2, 1, 256}, {2, 2, 130}}) {
    PackedSamples packed({1, 5, 3});
    packed.places = {0., 1., 2., 3., 77., 1000., 30000., 105700., 127999.};
    packed.longest = 128000;
    packed.upload();
    for (const DType act : kFloatTypes)
      for (const float theta : {10000.0f, 1e6f}) {
        SCOPED_TRACE(fmt::format("{} head dim {} theta {}", name(act), shape.head_dim, theta));
        HostTensor qkv(act, {9, shape.qkv_columns()}), out(act, {9, shape.qkv_columns()});
        HostTensor q_weight(act, {shape.head_dim}), k_weight(DType::kF32, {shape.head_dim});
        qkv.fill_random(1);
        q_weight.fill_random(2);
        k_weight.fill_random(3);
        const DeviceTensor device(qkv), device_q(q_weight), device_k(k_weight);
        on_gpu([&](Ops& ops) { ops.qk_norm_rope(device, device_q, device_k, 1e-5f, theta, shape, packed.device); });
        device.fetch(out);
        cpu.ops.qk_norm_rope(qkv, q_weight, k_weight, 1e-5f, theta, shape, packed.host);
        // The angles are the same to the last bit, so only the norm's sum and the roundings of the rotation differ.
        std::vector<double> pair = magnitudes(qkv);
        for (size_t i = 0; i < pair.size(); ++i) {
          const auto d = at(shape.head_dim), column = i % d;
          const size_t other = i - column + (column + d / 2) % d;
          pair[i] = std::hypot(qkv.get(i), qkv.get(other));
        }
        expect_close_to_cpu(out, qkv, pair, 24);
      }
  }
}

// Few tokens have a kernel of their own.
TEST_F(CudaQkNormRopeTest, ATokensBitsAreItsOwn) {
  const AttentionShape shape{32, 8, 64};
  const int64_t many = 1100;
  for (const DType act : kFloatTypes) {
    HostTensor qkv(act, {many, shape.qkv_columns()}), weight(act, {shape.head_dim});
    qkv.fill_random(1);
    weight.fill_random(2);
    const DeviceTensor scale(weight);
    const auto turned = [&](int64_t tokens) {
      const PackedSamples packed({tokens});
      HostTensor part(act, {tokens, shape.qkv_columns()});
      std::memcpy(part->data, qkv->data, part->bytes());
      const DeviceTensor device(part);
      on_gpu([&](Ops& ops) { ops.qk_norm_rope(device, scale, scale, 1e-5f, 1e6f, shape, packed.device); });
      device.fetch(part);
      return part;
    };
    const HostTensor all = turned(many);
    for (const int64_t tokens : {1, 9, 1024})
      EXPECT_TRUE(same_bits(turned(tokens), all->rows(0, tokens))) << name(act) << ", " << tokens << " tokens";
  }
}

TEST_F(CudaQkNormRopeTest, AgreesWithTransformers) {
  const auto file = golden_dir() / "operators.h5";
  const auto x = read_array(file, "rope/x"), y = read_array(file, "rope/y");
  const auto theta = static_cast<float>(read_array(file, "rope/theta").values.at(0));
  const int64_t samples = x.dim(0), length = x.dim(1), heads = x.dim(2), d = x.dim(3);
  const AttentionShape shape{heads - 1, 1, d};  // the last head of x is the key head
  const PackedSamples packed(std::vector<int64_t>(at(samples), length));
  HostTensor qkv(DType::kF32, {packed.tokens(), (heads + 1) * d}), ones(DType::kF32, {d});
  ones.fill(1.0);
  qkv.fill_random(1);
  // The norm only scales a head, and the rotation is linear, so the result is transformers' rotation times that factor.
  std::vector<double> expected = qkv.values(), tolerance(expected.size(), 0.0);
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = (token * heads + head) * d, to = (token * (heads + 1) + head) * d;
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += std::pow(x.values[at(from + i)], 2);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
      for (int64_t i = 0; i < d; ++i) {
        qkv.set(at(to + i), x.values[at(from + i)]);
        expected[at(to + i)] = y.values[at(from + i)] * factor;
        tolerance[at(to + i)] =
            12 * 0x1p-24 * std::hypot(x.values[at(from + i)], x.values[at(from + (i + d / 2) % d)]) * factor;
      }
    }
  const DeviceTensor device(qkv), device_ones(ones);
  on_gpu([&](Ops& ops) { ops.qk_norm_rope(device, device_ones, device_ones, 1e-5f, theta, shape, packed.device); });
  device.fetch(qkv);
  expect_close(qkv, expected, tolerance);
}

TEST_F(CudaQkNormRopeTest, NoTokens) {
  const PackedSamples none({});
  for (const DType act : kFloatTypes) {
    const HostTensor qkv(act, {0, 64}), weight(act, {8});
    const DeviceTensor device(qkv), device_weight(weight);
    on_gpu([&](Ops& ops) {
      ops.qk_norm_rope(device, device_weight, device_weight, 1e-5f, 1e6f, {4, 2, 8}, none.device);
    });
    device.fetch(qkv);
  }
}

}  // namespace
}  // namespace lfm2
