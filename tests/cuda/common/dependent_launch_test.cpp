// Dependent launches, which are kernels that start while the one before them ends.
#include <gtest/gtest.h>

#include "cuda/experts/test_routing.h"
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

// The experts of several layers, which share one routing, and whose products and sums read it before they wait. A
// routing that is read too early is that of the layer before, or at first the one that `wrong` gives.
TEST(CudaDependentLaunchTest, EveryLayerHasItsOwnRouting) {
  const int64_t hidden = 512, ffn = 256, top_k = 4, experts = 32, layers = 3;
  HostTensor scale(DType::kBf16, {hidden}), gates(DType::kBf16, {layers, experts, hidden});
  HostTensor gate_up(DType::kBf16, {experts, 2 * ffn, hidden}), down(DType::kBf16, {experts, hidden, ffn});
  scale.fill_random(1);
  gates.fill_random(2, 0.1f);
  gate_up.fill_random(3, 0.1f);
  down.fill_random(4, 0.1f);
  const DeviceTensor norm(scale), routers(gates), wide(gate_up), narrow(down);
  for (const int64_t tokens : {1, 2, 8, 9, 64, 65, 700, 1024, 1100}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    HostTensor x(DType::kBf16, {tokens, hidden});
    x.fill_random(5);
    TestRouting wrong(tokens, top_k, experts);
    for (int64_t i = 0; i < tokens * top_k; ++i) wrong.ids.set(static_cast<size_t>(i), static_cast<double>(31 - i % 7));
    CpuReference().ops.group_by_expert(wrong.routing);
    const HostTensor sorted(DType::kBf16, {tokens * top_k, hidden}), product(DType::kBf16, {tokens * top_k, ffn});
    const DeviceTensor residual(x), normed(x), ids(wrong.ids), weights(wrong.weights), sources(wrong.sources),
        rows(wrong.rows), offsets(wrong.expert_offsets), spread(sorted), inner(product), y(sorted);
    const Routing routing{ids, weights, sources, rows, offsets};
    std::vector<std::function<void(Ops&)>> steps;
    for (int64_t layer = 0; layer < layers; ++layer) {
      steps.push_back([&, layer](Ops& ops) {
        ops.norm_route(residual, norm, 1e-5f, routers->at(layer), {}, {top_k, true, 1.0f}, normed, routing, spread);
      });
      steps.push_back([&](Ops& ops) { ops.grouped_swiglu(spread, wide, offsets, inner); });
      steps.push_back([&](Ops& ops) { ops.grouped_matmul(inner, narrow, offsets, y); });
      steps.push_back([&](Ops& ops) { ops.combine_experts_norm(y, routing, residual, norm, 1e-5f, normed); });
    }
    const auto all = [&](Ops& ops) {
      for (const auto& step : steps) step(ops);
    };
    const auto run = [&](const std::function<void()>& work) {
      gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
      for (const auto& [device, host] : {std::pair<const Tensor&, const Tensor&>{ids, wrong.ids},
                                         {sources, wrong.sources},
                                         {rows, wrong.rows},
                                         {offsets, wrong.expert_offsets}})
        gpu().upload(device, 0, DType::kI32, host.data, host.numel());
      work();
      HostTensor out(DType::kBf16, {tokens, hidden});
      residual.fetch(out);
      return out;
    };
    const HostTensor expected = run([&] {
      for (const auto& step : steps) {
        on_gpu(step);
        gpu().compute().drain();
      }
    });
    for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(same_bits(run([&] { on_gpu(all); }), expected));
    const auto recording = gpu().record([&] { all(gpu().ops()); });
    const HostTensor replayed = run([&] { gpu().compute().submit([&] { recording->replay(); }); });
    EXPECT_TRUE(same_bits(replayed, expected)) << "replayed";
  }
}

}  // namespace
}  // namespace lfm2
