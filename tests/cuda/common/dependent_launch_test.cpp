// Dependent launches, which are kernels that start while the one before them ends.
#include <gtest/gtest.h>

#include "cuda/experts/device_routing.h"
#include "cuda/sequences.h"
#include "support/cache_tensors.h"

namespace lfm2 {
namespace {

using namespace test;

using Steps = std::vector<std::function<void(Ops&)>>;

// What the work leaves behind, which begins with the same operands whenever it is run.
using Run = std::function<HostTensor(const std::function<void()>& work)>;

// Expects that the steps, and their recording, give the bits that they give one at a time.
void expect_one_by_one(const Steps& steps, const Run& run) {
  const auto all = [&](Ops& ops) {
    for (const auto& step : steps) step(ops);
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
    Steps steps;
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

// Layers with a window, gates, a norm after each mixer and seven taps.
TEST(CudaDependentLaunchTest, LayersOfLfm3AreTheirKernelsOneByOne) {
  const int64_t tokens = 700, hidden = 2048;
  const AttentionShape shape{16, 4, 128, false, 100, true};
  const PackedSamples packed({300, 1, 32, 32, 335});
  HostTensor bcz(DType::kBf16, {tokens, 3 * hidden}), x(DType::kBf16, {tokens, hidden}), scale(DType::kBf16, {hidden}),
      taps(DType::kBf16, {hidden, 7}), rows(DType::kBf16, {tokens, shape.qkv_columns()}), head(DType::kBf16, {128});
  uint32_t seed = 0;
  for (HostTensor* tensor : {&bcz, &x, &scale, &taps, &rows, &head}) tensor->fill_random(++seed);
  const DeviceTensor in(bcz), mixed(x), normed(x), residual(x), norm(scale), conv(taps), qkv(rows), head_norm(head);
  Steps steps;
  for (int layer = 0; layer < 3; ++layer) {
    steps.push_back([&](Ops& ops) {
      ops.qk_norm_rope(qkv, head_norm, head_norm, 1e-5f, {1e6f, 32}, shape, packed.device);
    });
    steps.push_back([&](Ops& ops) { ops.attention(qkv, shape, packed.device, mixed); });
    steps.push_back([&](Ops& ops) { ops.gate_heads(qkv, shape, mixed); });
    steps.push_back([&](Ops& ops) { ops.add_norm(mixed, norm, 1e-5f, residual, norm, 1e-5f, normed); });
    steps.push_back([&](Ops& ops) { ops.short_conv(in, conv, {}, packed.device, mixed); });
    steps.push_back([&](Ops& ops) { ops.add_norm(normed, norm, 1e-5f, residual, {}, 0, {}); });
    steps.push_back([&](Ops& ops) { ops.add_norm(mixed, norm, 1e-5f, residual, {}, 0, {}); });
  }
  expect_one_by_one(steps, [&](const std::function<void()>& work) {
    gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
    gpu().upload(qkv, 0, DType::kBf16, rows->data, rows->numel());
    work();
    HostTensor out(DType::kBf16, {tokens, hidden});
    residual.fetch(out);
    return out;
  });
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
  struct Kind {
    int64_t tokens;
    bool routed, together;
  };
  std::vector<Kind> kinds;
  for (const int64_t tokens : {1, 2, 5, 8})
    for (const bool routed : {false, true})
      for (const bool together : {false, true}) kinds.push_back({tokens, routed, together});
  for (const int64_t tokens : {9, 64, 65, 700, 1024, 1100}) kinds.push_back({tokens, false, false});
  for (const auto& [count, routed, together] : kinds) {
    const int64_t tokens = count;
    SCOPED_TRACE(fmt::format("{} tokens{}{}", tokens, routed ? ", routed and gated together" : "",
                             together ? ", down and combine together" : ""));
    HostTensor x(DType::kBf16, {tokens, hidden});
    x.fill_random(5);
    HostTensor last_experts(DType::kI32, {tokens, top_k}), weights(DType::kF32, {tokens, top_k});
    for (size_t i = 0; i < last_experts.size(); ++i) last_experts.set(i, 31 - static_cast<double>(i % 7));
    const TestRouting wrong = grouped(last_experts, weights, experts);
    const HostTensor sorted(DType::kBf16, {tokens * top_k, hidden}), product(DType::kBf16, {tokens * top_k, ffn});
    const DeviceTensor residual(x), normed(x), spread(sorted), inner(product), y(sorted);
    const DeviceRouting chosen(wrong);
    const Routing& routing = chosen.routing;
    Steps steps;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const RouterRule rule{top_k, true, 1.0f};
      if (routed) {
        steps.push_back([&, layer, rule](Ops& ops) {
          ops.norm_route_swiglu(residual, norm, 1e-5f, routers->at(layer), {}, rule, wide, normed, routing, spread,
                                inner);
        });
      } else {
        steps.push_back([&, layer, rule](Ops& ops) {
          ops.norm_route(residual, norm, 1e-5f, routers->at(layer), {}, rule, normed, routing, spread);
        });
        steps.push_back([&](Ops& ops) { ops.grouped_swiglu(spread, wide, routing.expert_offsets, inner); });
      }
      if (together) {
        steps.push_back([&](Ops& ops) { ops.matmul_combine_experts(inner, narrow, routing, y, residual); });
        continue;
      }
      steps.push_back([&](Ops& ops) { ops.grouped_matmul(inner, narrow, routing.expert_offsets, y); });
      steps.push_back([&](Ops& ops) { ops.combine_experts_norm(y, routing, residual, norm, 1e-5f, normed); });
    }
    expect_one_by_one(steps, [&](const std::function<void()>& work) {
      gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
      for (const auto& [device, host] : {std::pair<const Tensor&, const Tensor&>{routing.ids, wrong.ids},
                                         {routing.sources, wrong.sources},
                                         {routing.rows, wrong.rows},
                                         {routing.expert_offsets, wrong.expert_offsets}})
        gpu().upload(device, 0, DType::kI32, host.data, host.numel());
      work();
      HostTensor out(DType::kBf16, {tokens, hidden});
      residual.fetch(out);
      return out;
    });
  }
}

// Steps of several layers of short convolutions, which read the states that the step before wrote.
TEST(CudaDependentLaunchTest, EveryStepGoesOnFromTheStatesOfTheOneBefore) {
  const int64_t hidden = 512, layers = 3, steps = 6;
  HostTensor in_proj(DType::kBf16, {layers, 3 * hidden, hidden}), taps(DType::kBf16, {hidden, 3});
  HostTensor out_proj(DType::kBf16, {layers, hidden, hidden}), scale(DType::kBf16, {hidden});
  in_proj.fill_random(1, 0.1f);
  taps.fill_random(2);
  out_proj.fill_random(3, 0.1f);
  scale.fill_random(6);
  const DeviceTensor in(in_proj), conv(taps), back(out_proj), norm(scale);
  for (const auto& kind : {std::pair<int64_t, bool>{1, false}, {1, true}, {7, false}, {7, true}, {16, false}}) {
    const int64_t tokens = kind.first;
    const bool norms = kind.second;
    SCOPED_TRACE(fmt::format("{} tokens{}", tokens, norms ? ", normed" : ""));
    HostTensor x(DType::kBf16, {tokens, hidden}), first_states(DType::kF32, {layers, 2 * tokens, 2, hidden});
    x.fill_random(4);
    first_states.fill_random(5);
    std::vector<double> each(at(tokens + 1)), positions(at(tokens), 9), turns[2];
    std::iota(each.begin(), each.end(), 0);
    for (double s = 0; s < static_cast<double>(tokens); ++s) {
      turns[0].insert(turns[0].end(), {2 * s, 2 * s + 1});
      turns[1].insert(turns[1].end(), {2 * s + 1, 2 * s});
    }
    const DeviceTensor offsets(ints(each, tokens + 1)), places(ints(positions, tokens));
    const DeviceTensor rows[2] = {DeviceTensor(ints(turns[0], tokens, 2)), DeviceTensor(ints(turns[1], tokens, 2))};
    const DeviceTensor residual(x), states(first_states), gated(x), bcz(HostTensor(DType::kBf16, {tokens, 3 * hidden}));
    const DeviceTensor normed(x);
    Steps calls;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t layer = 0; layer < layers; ++layer) {
        const Batch batch{.positions = places,
                          .offsets = offsets,
                          .tokens = tokens,
                          .sequences = tokens,
                          .max_length = 10,
                          .singles = tokens,
                          .sequence_of = offsets->rows(0, tokens),
                          .states = rows[step % 2]};
        calls.push_back([&, layer, batch](Ops& ops) {
          const ConvCache cache{states->at(layer)};
          if (norms)
            ops.norm_project_short_conv(residual, norm, 1e-5f, in->at(layer), {}, conv, {}, batch, cache, normed, bcz,
                                        gated);
          else
            ops.project_short_conv(residual, in->at(layer), {}, conv, {}, batch, cache, bcz, gated);
        });
        calls.push_back([&, layer](Ops& ops) { ops.matmul(gated, back->at(layer), {}, residual, Write::kAdd); });
      }
    expect_one_by_one(calls, [&](const std::function<void()>& work) {
      gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
      gpu().upload(states, 0, DType::kF32, first_states->data, first_states->numel());
      work();
      HostTensor out(DType::kBf16, {tokens, hidden});
      residual.fetch(out);
      return out;
    });
  }
}

// Layers of attention, which share one cache: each layer's attention reads the keys that the kernel before it has
// written, and the next layer writes them anew.
void expect_keys_of_own_layer(AttentionShape shape) {
  SCOPED_TRACE(fmt::format("heads of {}{}", shape.head_dim, shape.fp8_cache ? ", cache in fp8" : ""));
  const int64_t hidden = 512, layers = 4, page = 16, mixed_columns = shape.heads * shape.head_dim;
  HostTensor to_qkv(DType::kBf16, {layers, shape.qkv_columns(), hidden}),
      back_to(DType::kBf16, {layers, hidden, mixed_columns});
  HostTensor scale(DType::kBf16, {hidden}), head(DType::kBf16, {shape.head_dim});
  to_qkv.fill_random(1, 0.1f);
  back_to.fill_random(2, 0.1f);
  scale.fill_random(3);
  head.fill_random(4);
  const DeviceTensor in(to_qkv), back(back_to), norm(scale), head_norm(head);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1}, {1, 1, 1}, {1, 1, 40}, {300, 5, 1, 1}, std::vector<int64_t>(64, 1)}) {
    SCOPED_TRACE(fmt::format("{} sequences", lengths.size()));
    Sequences sequences(lengths, page, 1);
    std::vector<Sequences::Part> parts;
    for (int64_t s = 0; s < sequences.slots(); ++s) parts.push_back({s, lengths[at(s)]});
    sequences.next(parts);
    const int64_t tokens = sequences.batch.tokens;
    HostTensor x(DType::kBf16, {tokens, hidden});
    x.fill_random(5);
    const CacheTensors<HostTensor> none(shape, DType::kBf16, sequences.pages(), page);
    const CacheTensors<DeviceTensor> tensors(shape, DType::kBf16, sequences.pages(), page);
    const DeviceTensor residual(x), normed(x), qkv(HostTensor(DType::kBf16, {tokens, shape.qkv_columns()})),
        mixed(HostTensor(DType::kBf16, {tokens, mixed_columns}));
    const KeyValueCache cache = tensors.cache();
    Steps steps;
    for (int64_t layer = 0; layer < layers; ++layer) {
      steps.push_back([&, layer](Ops& ops) { ops.norm_matmul(residual, norm, 1e-5f, in->at(layer), {}, normed, qkv); });
      steps.push_back([&](Ops& ops) {
        ops.qk_norm_rope_append(qkv, head_norm, head_norm, 1e-5f, {1e6f}, shape, sequences.batch, cache);
      });
      steps.push_back([&](Ops& ops) { ops.cached_attention(qkv, shape, sequences.batch, cache, mixed); });
      steps.push_back([&, layer](Ops& ops) { ops.matmul(mixed, back->at(layer), {}, residual, Write::kAdd); });
    }
    expect_one_by_one(steps, [&](const std::function<void()>& work) {
      gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
      for (const auto member : {&KeyValueCache::keys, &KeyValueCache::values}) {
        const Tensor blank = none.cache().*member;
        gpu().upload(cache.*member, 0, blank.dtype, blank.data, blank.numel());
      }
      work();
      HostTensor left(DType::kBf16, {tokens, hidden});
      residual.fetch(left);
      return left;
    });
  }
}

TEST(CudaDependentLaunchTest, EveryAttentionReadsTheKeysOfItsOwnLayer) {
  for (const bool fp8 : {false, true}) expect_keys_of_own_layer({8, 2, 64, fp8});
}

// The kernels for heads of any size, one of which rounds keys and values to fp8.
TEST(CudaDependentLaunchTest, EveryAttentionReadsTheKeysOfItsOwnLayerWithOddHeads) {
  for (const bool fp8 : {false, true}) expect_keys_of_own_layer({8, 2, 62, fp8});
}

// The positions of every step are copied by a kernel to where those of the step before were, and read before the wait
// of the kernel behind that copy.
TEST(CudaDependentLaunchTest, EveryStepReadsThePositionsThatWereCopiedForIt) {
  const AttentionShape shape{32, 8, 64};
  constexpr int64_t kSteps = 40;
  for (const int64_t tokens : {1, 8, 500}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    const PackedSamples packed(std::vector<int64_t>(static_cast<size_t>(tokens), 1));
    HostTensor qkv(DType::kBf16, {kSteps * tokens, shape.qkv_columns()}), weight(DType::kBf16, {shape.head_dim});
    qkv.fill_random(1);
    weight.fill_random(2);
    const size_t bytes = static_cast<size_t>(tokens) * sizeof(int32_t);
    const Buffer staging = gpu().allocate_host(kSteps * bytes), there = gpu().allocate(bytes);
    for (int64_t i = 0; i < kSteps * tokens; ++i)
      reinterpret_cast<int32_t*>(staging.data())[i] = static_cast<int32_t>(i * 37 % 4001);
    Batch batch = packed.device;
    batch.positions = Tensor(there.data(), DType::kI32, {tokens});
    const DeviceTensor norm(weight);
    const auto run = [&](bool apart) {
      const DeviceTensor all(qkv);
      const Tensor& rows = all;
      for (int64_t step = 0; step < kSteps; ++step) {
        on_gpu([&](Ops& ops) {
          gpu().copy(gpu().compute(), there.data(), staging.data() + static_cast<size_t>(step) * bytes, bytes);
          if (apart) gpu().compute().drain();
          ops.qk_norm_rope(rows.rows(step * tokens, tokens), norm, norm, 1e-5f, {1e6f}, shape, batch);
        });
        if (apart) gpu().compute().drain();
      }
      HostTensor out(DType::kBf16, {kSteps * tokens, shape.qkv_columns()});
      all.fetch(out);
      return out;
    };
    const HostTensor expected = run(true);
    for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(same_bits(run(false), expected));
  }
}

// Layers of a norm and two products, of which the second adds to the rows that the next norm reads. All layers write
// the first one's result to the same memory, which the layer before may still read.
TEST(CudaDependentLaunchTest, EveryNormReadsTheSumOfTheProductBefore) {
  const int64_t hidden = 512, wide = 768, layers = 6;
  HostTensor out_of(DType::kBf16, {layers, wide, hidden}), back_to(DType::kBf16, {layers, hidden, wide});
  HostTensor scale(DType::kBf16, {hidden}), bias(DType::kBf16, {wide});
  out_of.fill_random(1, 0.1f);
  back_to.fill_random(2, 0.1f);
  scale.fill_random(3);
  bias.fill_random(4);
  const DeviceTensor out(out_of), back(back_to), norm(scale), term(bias);
  for (const int64_t tokens : {1, 2, 5, 8, 9, 16}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    HostTensor x(DType::kBf16, {tokens, hidden});
    x.fill_random(5);
    const DeviceTensor residual(x), normed(x), inner(HostTensor(DType::kBf16, {tokens, wide}));
    Steps steps;
    for (int64_t layer = 0; layer < layers; ++layer) {
      steps.push_back([&, layer](Ops& ops) {
        ops.norm_matmul(residual, norm, 1e-5f, out->at(layer), layer % 2 == 0 ? Tensor() : Tensor(term), normed, inner);
      });
      steps.push_back([&, layer](Ops& ops) { ops.matmul(inner, back->at(layer), {}, residual, Write::kAdd); });
    }
    expect_one_by_one(steps, [&](const std::function<void()>& work) {
      gpu().upload(residual, 0, DType::kBf16, x->data, x->numel());
      work();
      HostTensor left(DType::kBf16, {tokens, hidden});
      residual.fetch(left);
      return left;
    });
  }
}

}  // namespace
}  // namespace lfm2
