// Operators that get no rows do nothing, and no launch is refused.
#include <gtest/gtest.h>

#include "cuda/gpu.h"

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

}  // namespace
}  // namespace lfm2
