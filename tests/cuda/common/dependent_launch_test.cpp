// Dependent launches, which are kernels that start while the one before them ends.
#include <gtest/gtest.h>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

// Every kernel of the chain starts while the one before it ends. The results must be those of one kernel at a time.
TEST(CudaDependentLaunchTest, AChainIsItsKernelsOneByOne) {
  const int64_t tokens = 700, hidden = 2048, top_k = 4, experts = 32;
  const PackedSamples packed({300, 1, 32, 32, 335});
  HostTensor bcz(DType::kBf16, {tokens, 3 * hidden}), x(DType::kBf16, {tokens, hidden}), scale(DType::kBf16, {hidden});
  HostTensor taps(DType::kBf16, {hidden, 3}), gate(DType::kBf16, {experts, hidden});
  bcz.fill_random(1);
  x.fill_random(2);
  scale.fill_random(3);
  taps.fill_random(4);
  gate.fill_random(5, 0.1f);
  const HostTensor ids(DType::kI32, {tokens, top_k}), weights(DType::kF32, {tokens, top_k});
  const HostTensor sources(DType::kI32, {tokens * top_k}), rows(DType::kI32, {tokens, top_k});
  const HostTensor offsets(DType::kI32, {experts + 1}), sorted(DType::kBf16, {tokens * top_k, hidden});
  const HostTensor logits(DType::kF32, {tokens, experts});
  const auto run = [&](bool apart) {
    const DeviceTensor in(bcz), mixed(x), residual(x), norm(scale), conv(taps), router(gate), chosen(ids),
        shares(weights), from(sources), to(rows), first(offsets), spread(sorted), scores(logits);
    const Routing routing{chosen, shares, from, to, first};
    std::vector<std::function<void(Ops&)>> steps;
    for (int layer = 0; layer < 3; ++layer) {
      steps.push_back([&](Ops& ops) { ops.short_conv(in, conv, {}, packed.device, mixed); });
      steps.push_back([&](Ops& ops) { ops.rms_norm(mixed, norm, 1e-5f, mixed); });
      steps.push_back([&](Ops& ops) { ops.matmul(mixed, router, {}, scores, Write::kStore); });
      steps.push_back([&](Ops& ops) { ops.route(scores, {}, {top_k, true, 1.0f}, routing); });
      steps.push_back([&](Ops& ops) { ops.group_by_expert(routing); });
      steps.push_back([&](Ops& ops) { ops.gather_rows(mixed, routing.sources, spread); });
      steps.push_back([&](Ops& ops) { ops.combine_experts(spread, routing, residual); });
      steps.push_back([&](Ops& ops) { ops.rms_norm(residual, norm, 1e-5f, residual); });
    }
    if (apart) {
      for (const auto& step : steps) {
        on_gpu(step);
        gpu().compute().drain();
      }
    } else {
      on_gpu([&](Ops& ops) {
        for (const auto& step : steps) step(ops);
      });
    }
    HostTensor out(DType::kBf16, {tokens, hidden});
    residual.fetch(out);
    return out;
  };
  const HostTensor expected = run(true);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(same_bits(run(false), expected));
}

}  // namespace
}  // namespace lfm2
