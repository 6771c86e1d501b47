// combine_experts_norm on the GPU gives the bits of its two operators one after the other.
#include <gtest/gtest.h>

#include "cuda/experts/weighted_rows.h"
#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaCombineExpertsNormTest, HasTheBitsOfCombineExpertsAndRmsNorm) {
  struct Sizes {
    int64_t tokens, hidden, top_k;
  };
  for (const auto& [tokens, hidden, top_k] : {Sizes{9, 1, 4},
                                              {9, 45, 4},
                                              {9, 64, 5},
                                              {9, 1000, 1},
                                              {9, 2048, 4},
                                              {9, 7168, 9},
                                              {2999, 256, 4},
                                              {2999, 768, 5},
                                              {2999, 2048, 4}})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {} x {}, {} choices", name(act), tokens, hidden, top_k));
      HostTensor y(act, {tokens * top_k, hidden}), residual(act, {tokens, hidden}), normed(act, {tokens, hidden});
      HostTensor weights(DType::kF32, {tokens, top_k}), rows(DType::kI32, {tokens, top_k}), scale(act, {hidden});
      y.fill_random(1);
      residual.fill_random(2, 4.0f);
      weights.fill_random(3);
      scale.fill_random(4);
      const auto assignments = static_cast<size_t>(tokens * top_k);  // 7 divides none of their numbers
      for (size_t i = 0; i < assignments; ++i) rows.set(i, static_cast<double>(i * 7 % assignments));
      const DeviceTensor device_y(y), apart(residual), together(residual), device_weights(weights), device_rows(rows);
      const DeviceTensor device_scale(scale), apart_normed(normed), together_normed(normed);
      on_gpu([&](Ops& ops) {
        ops.combine_experts(device_y, weighted_rows(device_weights, device_rows), apart);
        ops.rms_norm(apart, device_scale, 1e-5f, apart_normed);
        ops.combine_experts_norm(device_y, weighted_rows(device_weights, device_rows), together, device_scale, 1e-5f,
                                 together_normed);
      });
      HostTensor out(act, {tokens, hidden}), expected(act, {tokens, hidden});
      apart.fetch(expected);
      together.fetch(out);
      EXPECT_TRUE(same_bits(out, expected));
      apart_normed.fetch(expected);
      together_normed.fetch(out);
      EXPECT_TRUE(same_bits(out, expected)) << "the norm";
    }
}

}  // namespace
}  // namespace lfm2
