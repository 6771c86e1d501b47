// cached_short_conv on the GPU gives the bits of whole samples, however those are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sequences.h"

namespace lfm2 {
namespace {

using namespace test;

class CudaCachedShortConvTest : public ::testing::Test {
 protected:
  static void check(const std::vector<int64_t>& lengths, int64_t hidden, int64_t taps, bool with_bias, DType act,
                    uint32_t seed) {
    SCOPED_TRACE(fmt::format("{} hidden {}, {} taps", name(act), hidden, taps));
    Sequences sequences(lengths, 16, seed);
    const int64_t tokens = sequences.packed.tokens();
    HostTensor bcz(act, {tokens, 3 * hidden}), weight(act, {hidden, taps}), bias(DType::kF32, {hidden});
    HostTensor whole(act, {tokens, hidden});
    bcz.fill_random(seed);
    weight.fill_random(seed + 1);
    bias.fill_random(seed + 2);
    const HostTensor no_states = nans(DType::kF32, {2 * sequences.slots(), taps - 1, hidden});
    const DeviceTensor in(bcz), device_weight(weight), device_bias(bias), device_whole(whole), states(no_states);
    const Tensor& bias_or_none = with_bias ? static_cast<const Tensor&>(device_bias) : Tensor();
    on_gpu([&](Ops& ops) { ops.short_conv(in, device_weight, bias_or_none, sequences.packed.device, device_whole); });
    device_whole.fetch(whole);
    while (!sequences.finished()) {
      const auto parts = sequences.random_parts(1200);
      if (parts.empty()) continue;
      sequences.next(parts);
      const HostTensor expected = sequences.take(whole);
      HostTensor out = nans(act, {expected->dim(0), hidden});
      const DeviceTensor rows(sequences.take(bcz)), device_out(out);
      on_gpu([&](Ops& ops) {
        ops.cached_short_conv(rows, device_weight, bias_or_none, sequences.batch, states, device_out);
      });
      device_out.fetch(out);
      ASSERT_TRUE(same_bits(out, expected));
    }
    states.fetch(no_states);
  }
};

TEST_F(CudaCachedShortConvTest, HasTheBitsOfWholeSamples) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const int64_t hidden : {264, 33, 8})
      for (const int64_t taps : {3, 1, 2, 4, 7})
        for (const bool with_bias : {false, true})
          check({1, 2, 3, 40, 5, 700, 9, 1, 64, 33, 2500}, hidden, taps, with_bias, act, ++seed);
}

TEST_F(CudaCachedShortConvTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const int64_t hidden : {64, 33}) check({1, 2, 40, 9}, hidden, 3, true, act, 1);
}

}  // namespace
}  // namespace lfm2
