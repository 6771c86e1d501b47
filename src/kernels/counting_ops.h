// Operators that compute nothing and only count the work of products, for plans before anything is loaded.
#pragma once

#include "kernels/ops.h"

namespace lfm2 {

class CountingOps : public Ops {
 public:
  double flops() const { return flops_; }

  void embed(const Tensor&, const Tensor&, const Tensor&) override {}
  void insert_drawn(const Tensor&, const Tensor&) override {}
  void rms_norm(const Tensor&, const Tensor&, float, const Tensor&) override {}
  void quantize(const Tensor&, const Tensor&) override {}
  void add_norm(const Tensor&, const Tensor&, float, const Tensor&, const Tensor&, float, const Tensor&) override {}
  void put_columns(const Tensor&, int64_t, const Tensor&) override {}
  void matmul(const Tensor& a, const Tensor& w, const Tensor&, const Tensor&, Write) override {
    count(a.dim(0), w.dim(0), w.dim(1));
  }
  void norm_matmul(const Tensor& x, const Tensor&, float, const Tensor& w, const Tensor&, const Tensor&,
                   const Tensor&) override {
    count(x.dim(0), w.dim(0), w.dim(1));
  }
  void short_conv(const Tensor&, const Tensor&, const Tensor&, const Batch&, const Tensor&) override {}
  void qk_norm_rope(const Tensor&, const Tensor&, const Tensor&, float, const Rope&, AttentionShape,
                    const Batch&) override {}
  void attention(const Tensor&, AttentionShape, const Batch&, const Tensor&) override {}
  void append_keys_values(const Tensor&, AttentionShape, const Batch&, const KeyValueCache&) override {}
  void qk_norm_rope_append(const Tensor&, const Tensor&, const Tensor&, float, const Rope&, AttentionShape,
                           const Batch&, const KeyValueCache&) override {}
  void cached_attention(const Tensor&, AttentionShape, const Batch&, const KeyValueCache&, const Tensor&) override {}
  void gate_heads(const Tensor&, AttentionShape, const Tensor&) override {}
  void cached_short_conv(const Tensor&, const Tensor&, const Tensor&, const Batch&, const ConvCache&,
                         const Tensor&) override {}
  void project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor&, const Tensor&, const Tensor&,
                          const Batch&, const ConvCache&, const Tensor&, const Tensor&) override {
    count(x.dim(0), in_proj.dim(0), in_proj.dim(1));
  }
  void norm_project_short_conv(const Tensor& x, const Tensor&, float, const Tensor& in_proj, const Tensor&,
                               const Tensor&, const Tensor&, const Batch&, const ConvCache&, const Tensor&,
                               const Tensor&, const Tensor&) override {
    count(x.dim(0), in_proj.dim(0), in_proj.dim(1));
  }
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor&) override { count(a.dim(0), w.dim(0), w.dim(1)); }
  void route(const Tensor&, const Tensor&, RouterRule, const Routing&) override {}
  void norm_route(const Tensor& x, const Tensor&, float, const Tensor& gate, const Tensor&, RouterRule, const Tensor&,
                  const Routing&, const Tensor&) override {
    count(x.dim(0), gate.dim(0), gate.dim(1));
  }
  void group_by_expert(const Routing&) override {}
  void gather_rows(const Tensor&, const Tensor&, const Tensor&) override {}
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor&, const Tensor&) override {
    count(a.dim(0), w.dim(1), w.dim(2));
  }
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor&, const Tensor&) override {
    count(a.dim(0), w.dim(1), w.dim(2));
  }
  void norm_route_swiglu(const Tensor& x, const Tensor&, float, const Tensor& gate, const Tensor&, RouterRule,
                         const Tensor& w, const Tensor&, const Routing&, const Tensor& sorted, const Tensor&) override {
    count(x.dim(0), gate.dim(0), gate.dim(1));
    count(sorted.dim(0), w.dim(1), w.dim(2));
  }
  void combine_experts(const Tensor&, const Routing&, const Tensor&) override {}
  void combine_experts_norm(const Tensor&, const Routing&, const Tensor&, const Tensor&, float,
                            const Tensor&) override {}
  void matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing&, const Tensor&, const Tensor&) override {
    count(a.dim(0), w.dim(1), w.dim(2));
  }
  void top_log_probs(const Tensor&, const Tensor&, const Tensor&) override {}
  void target_log_probs(const Tensor&, const Tensor&, const Tensor&, const Tensor&) override {}
  void count_tokens(const Tensor&, const Tensor&, const Batch&, const Tensor&) override {}
  void adjust_logits(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Adjustments&, const Tensor&,
                     const Tensor&) override {}
  void sample(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) override {}

 private:
  void count(int64_t m, int64_t n, int64_t k) {
    flops_ += 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  double flops_ = 0;
};

}  // namespace lfm2
