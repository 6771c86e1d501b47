// The operators of the model on the CPU. Made by CpuBackend and called only on its compute stream, one operator at a
// time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_matmul.h"
#include "kernels/cpu/fp32_rows.h"
#include "kernels/cpu/growing_buffer.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace lfm2 {

class CpuOps : public Ops {
 public:
  // The CPU gains nothing from fusing the norm into the product; only tests set this above 0.
  CpuOps(ThreadPool& pool, const Simd& simd, int64_t max_fused_norm_rows = 0)
      : Ops(max_fused_norm_rows), pool_(pool), simd_(simd) {}

  Tensor prepacked(const Tensor& w) const { return products_.prepacked(w); }
  void prepack(const Tensor& w) { products_.prepack(w); }

  void embed(const Tensor& ids, const Tensor& table, const Tensor& out) override;
  void insert_drawn(const Tensor& ids, const Tensor& drawn) override;
  void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) override;
  void quantize(const Tensor& x, const Tensor& out) override;
  void add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual, const Tensor& next_weight,
                float next_eps, const Tensor& normed) override;
  void put_columns(const Tensor& x, int64_t first, const Tensor& out) override;
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) override {
    products_.matmul(a, w, bias, out, write);
  }
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) override {
    products_.matmul_swiglu(a, w, out);
  }
  void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                   const Tensor& normed, const Tensor& out) override;
  void short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                  const Tensor& out) override;
  void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                    AttentionShape shape, const Batch& batch) override {
    attention_.qk_norm_rope(qkv, q_weight, k_weight, eps, rope, shape, batch);
  }
  void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) override {
    attention_.attention(qkv, shape, batch, out);
  }
  void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                          const KeyValueCache& cache) override {
    attention_.append_keys_values(qkv, shape, batch, cache);
  }
  void qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                           const Rope& rope, AttentionShape shape, const Batch& batch,
                           const KeyValueCache& cache) override {
    attention_.qk_norm_rope(qkv, q_weight, k_weight, eps, rope, shape, batch);
    attention_.append_keys_values(qkv, shape, batch, cache);
  }
  void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                        const Tensor& out) override {
    attention_.cached_attention(qkv, shape, batch, cache, out);
  }
  void gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) override;
  void cached_short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                         const ConvCache& cache, const Tensor& out) override;
  void project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor& in_bias, const Tensor& weight,
                          const Tensor& bias, const Batch& batch, const ConvCache& cache, const Tensor& bcz,
                          const Tensor& out) override;
  void norm_project_short_conv(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& in_proj,
                               const Tensor& in_bias, const Tensor& weight, const Tensor& bias, const Batch& batch,
                               const ConvCache& cache, const Tensor& normed, const Tensor& bcz,
                               const Tensor& out) override;
  void route(const Tensor& logits, const Tensor& bias, RouterRule rule, const Routing& routing) override;
  void norm_route(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                  RouterRule rule, const Tensor& normed, const Routing& routing, const Tensor& sorted) override;
  void group_by_expert(const Routing& routing) override;
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override;
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) override {
    products_.grouped_matmul(a, w, expert_offsets, out);
  }
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) override {
    products_.grouped_swiglu(a, w, expert_offsets, out);
  }
  void norm_route_swiglu(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                         RouterRule rule, const Tensor& w, const Tensor& normed, const Routing& routing,
                         const Tensor& sorted, const Tensor& out) override;
  void combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual) override;
  void combine_experts_norm(const Tensor& y, const Routing& routing, const Tensor& residual, const Tensor& norm_weight,
                            float eps, const Tensor& normed) override;
  void matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing& routing, const Tensor& y,
                              const Tensor& residual) override;
  void top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) override;
  void target_log_probs(const Tensor& logits, const Tensor& targets, const Tensor& log_probs,
                        const Tensor& is_greedy) override;
  void count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) override;
  void adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                     const Adjustments& adjustments, const Tensor& masks, const Tensor& out) override;
  void sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules, const Tensor& ids,
              const Tensor& log_probs) override;

 private:
  void embed_tiled(const Tensor& table, int64_t row, const Tensor& out) const;

  // Each row's log of the sum of exp(logits), valid until the next call. Uses scratch_.
  const double* log_sums(const Tensor& logits);
  // Calls f(row, first, end) for every piece of every row of logits, in parallel.
  static constexpr int64_t kVocabPiece = 4096;
  static int64_t vocab_pieces(int64_t vocab) { return (vocab + kVocabPiece - 1) / kVocabPiece; }
  template <class F>
  void for_each_vocab_piece(int64_t rows, int64_t vocab, F&& f);

  const float* as_float(const Tensor& x, GrowingBuffer& buffer) const {
    return lfm2::as_float(pool_, simd_, x, buffer);
  }
  template <class F>
  void for_each_row(int64_t rows, int64_t row_numel, F&& f) {
    lfm2::for_each_row(pool_, rows, row_numel, f);
  }

  ThreadPool& pool_;
  const Simd& simd_;
  CpuMatmul products_{pool_, simd_};
  CpuAttention attention_{pool_, simd_};
  GrowingBuffer activations_, weights_, more_weights_, logits_, scratch_, log_sums_, best_;
  GrowingBuffer rounded_;  // rows before they are rounded to fp8
};

template <class F>
void CpuOps::for_each_vocab_piece(int64_t rows, int64_t vocab, F&& f) {
  const int64_t pieces = vocab_pieces(vocab);
  pool_.parallel_for(static_cast<size_t>(rows * pieces), [&](size_t item, size_t) {
    const int64_t row = static_cast<int64_t>(item) / pieces, first = static_cast<int64_t>(item) % pieces * kVocabPiece;
    f(row, first, std::min(first + kVocabPiece, vocab));
  });
}

}  // namespace lfm2
