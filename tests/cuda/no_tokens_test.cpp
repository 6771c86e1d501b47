// Operators that get no rows do nothing, and no launch is refused.
#include <gtest/gtest.h>

#include "cuda/experts/device_routing.h"
#include "cuda/sequences.h"
#include "support/cache_tensors.h"

namespace lfm2 {
namespace {

using namespace test;

TEST(CudaNoTokensTest, IsFineForEveryRowOperator) {
  const PackedSamples none({});
  const HostTensor host_x(DType::kF32, {0, 6}), host_out(DType::kF32, {0, 2}), host_weight(DType::kF32, {6});
  const HostTensor host_taps(DType::kF32, {2, 3}), host_ids(DType::kI32, {0}), host_table(DType::kF32, {4, 6});
  const HostTensor host_choices(DType::kI32, {0, 2}), host_log_probs(DType::kF32, {0});
  const DeviceTensor x(host_x), out(host_out), weight(host_weight), taps(host_taps), ids(host_ids), table(host_table),
      choices(host_choices), none_log_probs(host_log_probs);
  on_gpu([&](Ops& ops) {
    ops.embed(ids, table, x);
    ops.rms_norm(x, weight, 1e-5f, x);
    ops.short_conv(x, taps, {}, none.device, out);
    ops.gather_rows(table, ids, x);
    ops.insert_drawn(ids, ids);
    ops.combine_experts(x, {{}, choices, {}, choices, {}}, x);
    ops.top_log_probs(out, choices, out);
    ops.target_log_probs(out, ids, none_log_probs, ids);
  });
  x.fetch(host_x);
}

// Operators that compute in one kernel what stands around a skinny product of 16 bits.
TEST(CudaNoTokensTest, IsFineForTheFusedOperators) {
  const int64_t hidden = 32, ffn = 16, top_k = 4, experts = 32;
  const DType act = DType::kBf16;
  Sequences none({16}, 16, 1);  // one sequence, of which no part comes
  none.next({});
  TestRouting empty(0, top_k, experts);
  empty.expert_offsets.fill(-1);
  const HostTensor no_rows(act, {0, hidden}), scale(act, {hidden}), gate(act, {experts, hidden});
  const HostTensor no_logits(act, {0, experts}), in_proj(act, {3 * hidden, hidden}), taps(act, {hidden, 3}),
      no_bcz(act, {0, 3 * hidden});
  const HostTensor gate_up(act, {experts, 2 * ffn, hidden}), down(act, {experts, hidden, ffn}),
      no_product(act, {0, ffn});
  const HostTensor kept(DType::kF32, {2, 2, hidden});
  const DeviceTensor x(no_rows), normed(no_rows), logits(no_logits), norm(scale), router(gate), in(in_proj), conv(taps),
      bcz(no_bcz), wide(gate_up), narrow(down), sorted(no_rows), inner(no_product), y(no_rows), out(no_rows),
      states(kept);
  const AttentionShape shape{2, 1, 16};
  const HostTensor no_qkv(act, {0, shape.qkv_columns()}), head(act, {16}), cached = nans(act, {1, 16, 1, 16});
  const DeviceTensor qkv(no_qkv), head_norm(head), keys(cached), values(cached);
  const CacheTensors<DeviceTensor> fp8({2, 1, 16, true}, act, 1, 16);
  const DeviceRouting chosen(empty);
  on_gpu([&](Ops& ops) {
    ops.norm_matmul(x, norm, 1e-5f, router, {}, normed, logits);
    ops.norm_project_short_conv(x, norm, 1e-5f, in, {}, conv, {}, none.batch, {states}, normed, bcz, out);
    ops.qk_norm_rope_append(qkv, head_norm, head_norm, 1e-5f, {1e6f}, shape, none.batch, {keys, values});
    ops.qk_norm_rope_append(qkv, head_norm, head_norm, 1e-5f, {1e6f}, {2, 1, 16, true}, none.batch, fp8.cache());
    ops.append_keys_values(qkv, {2, 1, 16, true}, none.batch, fp8.cache());
    ops.norm_route_swiglu(x, norm, 1e-5f, router, {}, {top_k, true, 1.0f}, wide, normed, chosen.routing, sorted, inner);
    ops.matmul_combine_experts(inner, narrow, chosen.routing, y, out);
  });
  for (const DeviceTensor* rows : {&normed, &out, &sorted, &y}) rows->fetch(no_rows);
  logits.fetch(no_logits);
  bcz.fetch(no_bcz);
  inner.fetch(no_product);
  chosen.fetch(empty);
  EXPECT_EQ(empty.expert_offsets.values(), std::vector<double>(at(experts + 1)));
  const HostTensor after(DType::kF32, {2, 2, hidden});
  states.fetch(after);
  EXPECT_TRUE(same_bits(after, kept));
}

}  // namespace
}  // namespace lfm2
