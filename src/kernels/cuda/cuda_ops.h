// The operators on the GPU: checks shapes and types, chooses kernels, launches them. Made by CudaBackend; nothing here
// allocates on the device or waits for it.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/fused/launch.h"
#include "kernels/cuda/gemm/products.h"
#include "kernels/cuda/rows/launch.h"
#include "kernels/ops.h"

namespace lfm2 {

// Device memory that the operators work in.
struct CudaWorkspaces {
  Buffer group;            // kGroupWorkspaceInts int32
  Buffer route;            // kRouteExchangeBytes bytes, which are 0 at first
  Buffer decode_partials;  // kDecodePartialFloats floats
  Buffer decode_counters;  // kDecodeCounters int32, which are 0 between launches
  Buffer attention_unit;   // an int32, which is 0 between launches
  Buffer lt;               // LtMatmul::kWorkspaceBytes, moved into Products
};

// The frequencies of one kind of layer.
struct RopeOfHeads {
  Rope rope;
  int64_t head_dim;
  RopeFrequencies frequencies;
};

class CudaOps final : public Ops {
 public:
  CudaOps(cudaStream_t stream, Products::Features features, int multiprocessors, CudaWorkspaces workspaces)
      : Ops(features.hopper ? kMaxFrontNormedRows : 0),
        stream_(stream),
        hopper_(features.hopper),
        multiprocessors_(multiprocessors),
        workspaces_(std::move(workspaces)),
        products_(stream, features, std::move(workspaces_.lt)) {}

  void reserve_sms(int sms) { products_.reserve_sms(sms); }  // as Backend's

  void embed(const Tensor& ids, const Tensor& table, const Tensor& out) override;
  void insert_drawn(const Tensor& ids, const Tensor& drawn) override;
  void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) override;
  bool rounds_operand(const Tensor& a, const Tensor& w) const override { return products_.rounds_operand(a, w); }
  void quantize(const Tensor& x, const Tensor& out) override;
  void add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual, const Tensor& next_weight,
                float next_eps, const Tensor& normed) override;
  void put_columns(const Tensor& x, int64_t first, const Tensor& out) override;
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) override;
  void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                   const Tensor& normed, const Tensor& out) override;
  bool rounds_short_conv(const Tensor& bcz, const Tensor& weight) const override {
    return short_conv_rounds(weight.dim(0), weight.numel() / weight.dim(0), bcz.dtype);
  }
  void short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                  const Tensor& out) override;
  void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                    AttentionShape shape, const Batch& batch) override;
  void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) override;
  void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                          const KeyValueCache& cache) override;
  void qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                           const Rope& rope, AttentionShape shape, const Batch& batch,
                           const KeyValueCache& cache) override;
  void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                        const Tensor& out) override;
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
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) override {
    products_.matmul_swiglu(a, w, out);
  }
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
  // attention, and cached_attention for the sequences that are not singles.
  void attend(const AttentionArgs& args, DType act, int64_t max_length);
  const RopeFrequencies& frequencies(const Rope& rope, int64_t head_dim);

  cudaStream_t stream_;
  bool hopper_;  // Products::Features::hopper
  int multiprocessors_;
  CudaWorkspaces workspaces_;
  Products products_;
  std::vector<RopeOfHeads> ropes_;  // those asked for so far
};

}  // namespace lfm2
