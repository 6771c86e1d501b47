// The rotation of queries and keys, the writing of key/value caches, and attention, on the CPU. CpuOps owns one and
// forwards to it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/growing_buffer.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace lfm2 {

class CpuAttention {
 public:
  CpuAttention(ThreadPool& pool, const Simd& simd) : pool_(pool), simd_(simd) {}

  // kernels/ops.h defines what they compute.
  void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                    AttentionShape shape, const Batch& batch);
  void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache);
  void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out);
  void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                        const Tensor& out);

 private:
  // The tokens [first, end) of the batch, whose keys are all among those of `sequence`.
  struct TokenRange {
    int64_t sequence = 0, first = 0, end = 0;
  };
  void append_fp8(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache);
  const RopeTable& rope_table(const Rope& rope, int64_t head_dim, int64_t positions);
  void cut_tokens(AttentionShape shape, const Batch& batch, int64_t page_size);

  ThreadPool& pool_;
  const Simd& simd_;
  std::vector<RopeTable> ropes_;  // of each rotation that was asked for
  std::vector<TokenRange> token_ranges_;
  GrowingBuffer qkv_, q_weight_, k_weight_, scratch_;
};

}  // namespace lfm2
