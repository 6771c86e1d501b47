#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kernels/ops.h"

namespace lfm2::test {

// Calls the operators of another Ops whose names are chosen, and counts the calls. All layers have one routing, which
// stays as it is where no operator that makes one is chosen.
class ChosenOps final : public Ops {
 public:
  explicit ChosenOps(Ops& ops) : Ops(ops.max_fused_norm_rows()), ops_(ops) {}
  void set_routing(const Routing& routing) { own_ = routing; }
  // Without a name: all of them. Else only `name`, or all but that one.
  void choose(std::string name, bool only) {
    name_ = std::move(name);
    only_ = only;
  }
  std::map<std::string, int64_t> calls;
  bool routes_apart = false;  // norm_route and grouped_swiglu instead of norm_route_swiglu

  void embed(const Tensor& ids, const Tensor& table, const Tensor& out) override {
    call("embed", [&] { ops_.embed(ids, table, out); });
  }
  void insert_drawn(const Tensor& ids, const Tensor& drawn) override {
    call("insert_drawn", [&] { ops_.insert_drawn(ids, drawn); });
  }
  void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) override {
    call("rms_norm", [&] { ops_.rms_norm(x, weight, eps, out); });
  }
  bool rounds_operand(const Tensor& a, const Tensor& w) const override { return ops_.rounds_operand(a, w); }
  void quantize(const Tensor& x, const Tensor& out) override {
    call("quantize", [&] { ops_.quantize(x, out); });
  }
  void add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual, const Tensor& next_weight,
                float next_eps, const Tensor& normed) override {
    call("add_norm", [&] { ops_.add_norm(x, weight, eps, residual, next_weight, next_eps, normed); });
  }
  void put_columns(const Tensor& x, int64_t first, const Tensor& out) override {
    call("put_columns", [&] { ops_.put_columns(x, first, out); });
  }
  void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) override {
    call(fmt::format("matmul n {} k {}", w.dim(0), w.dim(1)), [&] { ops_.matmul(a, w, bias, out, write); });
  }
  void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                   const Tensor& normed, const Tensor& out) override {
    call(fmt::format("norm_matmul n {} k {}", w.dim(0), w.dim(1)),
         [&] { ops_.norm_matmul(x, norm_weight, eps, w, bias, normed, out); });
  }
  bool rounds_short_conv(const Tensor& bcz, const Tensor& weight) const override {
    return ops_.rounds_short_conv(bcz, weight);
  }
  void short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                  const Tensor& out) override {
    call("short_conv", [&] { ops_.short_conv(bcz, weight, bias, batch, out); });
  }
  void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                    AttentionShape shape, const Batch& batch) override {
    call("qk_norm_rope", [&] { ops_.qk_norm_rope(qkv, q_weight, k_weight, eps, rope, shape, batch); });
  }
  void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) override {
    call("attention", [&] { ops_.attention(qkv, shape, batch, out); });
  }
  void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                          const KeyValueCache& cache) override {
    call("append_keys_values", [&] { ops_.append_keys_values(qkv, shape, batch, cache); });
  }
  void qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                           const Rope& rope, AttentionShape shape, const Batch& batch,
                           const KeyValueCache& cache) override {
    call("qk_norm_rope_append",
         [&] { ops_.qk_norm_rope_append(qkv, q_weight, k_weight, eps, rope, shape, batch, cache); });
  }
  void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                        const Tensor& out) override {
    call("cached_attention", [&] { ops_.cached_attention(qkv, shape, batch, cache, out); });
  }
  void gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) override {
    call("gate_heads", [&] { ops_.gate_heads(qkv, shape, out); });
  }
  void cached_short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                         const ConvCache& cache, const Tensor& out) override {
    call("cached_short_conv", [&] { ops_.cached_short_conv(bcz, weight, bias, batch, cache, out); });
  }
  void project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor& in_bias, const Tensor& weight,
                          const Tensor& bias, const Batch& batch, const ConvCache& cache, const Tensor& bcz,
                          const Tensor& out) override {
    call("project_short_conv",
         [&] { ops_.project_short_conv(x, in_proj, in_bias, weight, bias, batch, cache, bcz, out); });
  }
  void norm_project_short_conv(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& in_proj,
                               const Tensor& in_bias, const Tensor& weight, const Tensor& bias, const Batch& batch,
                               const ConvCache& cache, const Tensor& normed, const Tensor& bcz,
                               const Tensor& out) override {
    call("norm_project_short_conv", [&] {
      ops_.norm_project_short_conv(x, norm_weight, eps, in_proj, in_bias, weight, bias, batch, cache, normed, bcz, out);
    });
  }
  void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) override {
    call("matmul_swiglu", [&] { ops_.matmul_swiglu(a, w, out); });
  }
  void route(const Tensor& logits, const Tensor& bias, RouterRule rule, const Routing& routing) override {
    call("route", [&] { ops_.route(logits, bias, rule, routing); });
  }
  void norm_route(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                  RouterRule rule, const Tensor& normed, const Routing&, const Tensor& sorted) override {
    call("norm_route", [&] { ops_.norm_route(x, norm_weight, eps, gate, bias, rule, normed, own_, sorted); });
  }
  void group_by_expert(const Routing&) override {
    call("group_by_expert", [&] { ops_.group_by_expert(own_); });
  }
  void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) override {
    call("gather_rows", [&] { ops_.gather_rows(x, rows, out); });
  }
  void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor&, const Tensor& out) override {
    call("grouped_matmul", [&] { ops_.grouped_matmul(a, w, own_.expert_offsets, out); });
  }
  void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor&, const Tensor& out) override {
    call("grouped_swiglu", [&] { ops_.grouped_swiglu(a, w, own_.expert_offsets, out); });
  }
  void norm_route_swiglu(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                         RouterRule rule, const Tensor& w, const Tensor& normed, const Routing& routing,
                         const Tensor& sorted, const Tensor& out) override {
    if (routes_apart) {
      norm_route(x, norm_weight, eps, gate, bias, rule, normed, routing, sorted);
      return grouped_swiglu(sorted, w, routing.expert_offsets, out);
    }
    call("norm_route_swiglu",
         [&] { ops_.norm_route_swiglu(x, norm_weight, eps, gate, bias, rule, w, normed, own_, sorted, out); });
  }
  void combine_experts(const Tensor& y, const Routing&, const Tensor& residual) override {
    call("combine_experts", [&] { ops_.combine_experts(y, own_, residual); });
  }
  void combine_experts_norm(const Tensor& y, const Routing&, const Tensor& residual, const Tensor& norm_weight,
                            float eps, const Tensor& normed) override {
    call("combine_experts_norm", [&] { ops_.combine_experts_norm(y, own_, residual, norm_weight, eps, normed); });
  }
  void matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing&, const Tensor& y,
                              const Tensor& residual) override {
    call("matmul_combine_experts", [&] { ops_.matmul_combine_experts(a, w, own_, y, residual); });
  }
  void top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) override {
    call("top_log_probs", [&] { ops_.top_log_probs(logits, ids, log_probs); });
  }
  void target_log_probs(const Tensor& logits, const Tensor& targets, const Tensor& log_probs,
                        const Tensor& is_greedy) override {
    call("target_log_probs", [&] { ops_.target_log_probs(logits, targets, log_probs, is_greedy); });
  }
  void count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) override {
    call("count_tokens", [&] { ops_.count_tokens(ids, keepers, batch, counts); });
  }
  void adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                     const Adjustments& adjustments, const Tensor& masks, const Tensor& out) override {
    call("adjust_logits", [&] { ops_.adjust_logits(logits, draws, rules, slots, adjustments, masks, out); });
  }
  void sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules, const Tensor& ids,
              const Tensor& log_probs) override {
    call("sample", [&] { ops_.sample(logits, adjusted, draws, rules, ids, log_probs); });
  }

 private:
  template <class F>
  void call(const std::string& name, F f) {
    ++calls[name];
    if (name_.empty() || (name == name_) == only_) f();
  }
  Ops& ops_;
  Routing own_;
  std::string name_;
  bool only_ = false;
};

}  // namespace lfm2::test
