// The operators of the model on the CPU. Made by CpuBackend and called only on its compute stream, one operator at a
// time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/growing_buffer.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace lfm2 {

class CpuOps : public Ops {
 public:
  // On the CPU a norm in front of a product is no faster than behind what stands before it: a test alone asks for it.
  CpuOps(ThreadPool& pool, const Simd& simd, int64_t rows_normed_in_passing = 0)
      : Ops(rows_normed_in_passing), pool_(pool), simd_(simd) {}

  // Of whole tiles of w, each [tile_columns, k], the elements lie as a product takes them (MatmulKernel::tile_w): so a
  // product of one row reads memory from end to end, as fast as it is, and needs not transpose. Other shapes stay as
  // they are.
  Tensor as_product_weight(const Tensor& w) const;
  void put_in_tiles(const Tensor& w);  // rows, in place

  void embed(const Tensor& ids, const Tensor& table, const Tensor& out) override;
  void insert_drawn(const Tensor& ids, const Tensor& drawn) override;
  void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) override;
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) override;
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) override;
  void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                   const Tensor& normed, const Tensor& out) override;
  void short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                  const Tensor& out) override;
  void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, float rope_theta,
                    AttentionShape shape, const Batch& batch) override;
  void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) override;
  void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                          const KeyValueCache& cache) override;
  void qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                           float rope_theta, AttentionShape shape, const Batch& batch,
                           const KeyValueCache& cache) override;
  void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                        const Tensor& out) override;
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
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) override;
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) override;
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
                        const Tensor& likeliest) override;
  void count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) override;
  void adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                     const Adjustments& adjustments, const Tensor& out) override;
  void sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules, const Tensor& ids,
              const Tensor& log_probs) override;

 private:
  void embed_tiled(const Tensor& table, int64_t row, const Tensor& out) const;

  // A matrix product, and the blocks of rows that it is cut into; each block is multiplied by one matrix, and packed in
  // whole tiles.
  struct Product;
  struct RowBlock {
    int64_t matrix = 0, first_row = 0, rows = 0, first_tile = 0, end_tile = 0;
  };
  void cut_rows(int64_t matrix, int64_t first, int64_t last, int64_t wanted);
  int64_t min_item_columns() const;
  int64_t wanted_blocks(int64_t n) const;
  void cut_experts(const Tensor& a, const Tensor& w, const Tensor& expert_offsets);
  const std::byte* pack_rows(const Tensor& a, DType w_type);
  int64_t few_tiles(const Product& product) const;
  int64_t tiles_at_once(const Product& product, int64_t rows) const;
  void multiply_blocks(Product product);
  void multiply_single_rows(const Product& product, int64_t group_columns, int64_t item_blocks);
  void multiply_group(const Product& product, const RowBlock& block, int64_t first_column, int64_t end_column,
                      std::byte* w_tile, float* sums, const std::byte* next_w) const;
  void write_sums(const Product& product, int64_t row, int64_t first, int64_t columns, const float* sums,
                  int64_t step) const;
  void write_swiglu(const float* sums, int64_t columns, DType type, std::byte* target) const;

  // the tokens [first, end) of the batch, all of one sequence
  struct TokenRange {
    int64_t sequence = 0, first = 0, end = 0;
  };
  void cut_tokens(const Batch& batch);

  // Each row's log of the sum of exp(logits), valid until the next call. Uses scratch_.
  const double* log_sums(const Tensor& logits);
  // Calls f(row, first, end) for every piece of every row of logits, in parallel.
  static constexpr int64_t kVocabPiece = 4096;
  static int64_t vocab_pieces(int64_t vocab) { return (vocab + kVocabPiece - 1) / kVocabPiece; }
  template <class F>
  void for_each_vocab_piece(int64_t rows, int64_t vocab, F&& f);

  // The elements as fp32: x itself where it is fp32, else a copy in the workspace; null for an empty tensor.
  const float* as_float(const Tensor& x, GrowingBuffer& buffer);
  // Calls f(row) for every row, in parallel; cheap rows are shared out in groups.
  template <class F>
  void for_each_row(int64_t rows, int64_t row_numel, F&& f);

  ThreadPool& pool_;
  const Simd& simd_;
  RopeTable rope_;
  std::vector<RowBlock> row_blocks_;
  std::vector<TokenRange> token_ranges_;
  GrowingBuffer activations_, weights_, more_weights_, logits_, packed_, scratch_, log_sums_, likeliest_;
};

template <class F>
void CpuOps::for_each_vocab_piece(int64_t rows, int64_t vocab, F&& f) {
  const int64_t pieces = vocab_pieces(vocab);
  pool_.parallel_for(static_cast<size_t>(rows * pieces), [&](size_t item, size_t) {
    const int64_t row = static_cast<int64_t>(item) / pieces, first = static_cast<int64_t>(item) % pieces * kVocabPiece;
    f(row, first, std::min(first + kVocabPiece, vocab));
  });
}

template <class F>
void CpuOps::for_each_row(int64_t rows, int64_t row_numel, F&& f) {
  // This many elements take some microseconds, about as long as waking a thread.
  constexpr int64_t kWorthSharing = 16384;
  if (rows == 0) return;
  const int64_t group = row_numel >= kWorthSharing ? 1 : kWorthSharing / (row_numel + 1) + 1;
  const auto groups = static_cast<size_t>((rows + group - 1) / group);
  pool_.parallel_for(groups, [&](size_t item, size_t) {
    const int64_t first = static_cast<int64_t>(item) * group;
    for (int64_t row = first; row < first + group && row < rows; ++row) f(row);
  });
}

}  // namespace lfm2
