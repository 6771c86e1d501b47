// Appending to the caches and reading them.
#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

void CpuOps::append_keys_values(const Tensor&, AttentionShape, const Batch&, const KeyValueCache&) {
  expect(false, "append_keys_values: to be written");
}
void CpuOps::cached_attention(const Tensor&, AttentionShape, const Batch&, const KeyValueCache&, const Tensor&) {
  expect(false, "cached_attention: to be written");
}
void CpuOps::cached_short_conv(const Tensor&, const Tensor&, const Tensor&, const Batch&, const Tensor&,
                               const Tensor&) {
  expect(false, "cached_short_conv: to be written");
}
void CpuOps::sample(const Tensor&, const Tensor&, const SamplingRule&, const Tensor&, const Tensor&) {
  expect(false, "sample: to be written");
}

}  // namespace lfm2
