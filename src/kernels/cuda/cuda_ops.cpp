// The operators of the GPU: each checks its tensors as the CPU's operator does, and launches kernels.
#include "kernels/cuda/cuda_ops.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/fused/few_fp8_rows.h"
#include "kernels/cuda/op_checks.h"
#include "kernels/cuda/sampling/launch.h"

namespace lfm2 {

void CudaOps::embed(const Tensor& ids, const Tensor& table, const Tensor& out) {
  expect(ids.dtype == DType::kI32 && out.dim(0) == ids.numel() && out.dim(1) == table.dim(1), "embed: shapes");
  launch_embed(stream_, ids.as<const int32_t>(), out.dim(0), any(table), table.dim(0), table.dim(1), out.data,
               out.dtype);
}

void CudaOps::insert_drawn(const Tensor& ids, const Tensor& drawn) {
  expect(ids.dtype == DType::kI32 && drawn.dtype == DType::kI32, "insert_drawn: types");
  launch_insert_drawn(stream_, ids.as<int32_t>(), ids.numel(), drawn.as<const int32_t>(), drawn.numel());
}

void CudaOps::rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  check_norm(x, weight, out);
  launch_rms_norm(stream_, x.data, any(weight), eps, x.dim(0), weight.numel(), out.data, x.dtype, rounded_rows(out));
}

void CudaOps::add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual,
                       const Tensor& next_weight, float next_eps, const Tensor& normed) {
  check_norm(x, weight, residual);
  if (next_weight) check_norm(residual, next_weight, normed);
  expect(x.data != residual.data && residual.dtype == x.dtype, "add_norm: the residual");
  launch_add_norm(stream_,
                  {.x = x.data,
                   .weight = any(weight),
                   .eps = eps,
                   .residual = residual.data,
                   .rows = x.dim(0),
                   .n = weight.numel(),
                   .next_weight = any(next_weight),
                   .next_eps = next_eps,
                   .normed = next_weight ? normed.data : nullptr,
                   .rounded = next_weight ? rounded_rows(normed) : RoundedRows{}},
                  x.dtype);
}

void CudaOps::quantize(const Tensor& x, const Tensor& out) {
  expect(x.rank == 2 && out.dtype == DType::kF8 && out.dims == x.dims && is_float(x), "quantize: shapes");
  launch_quantize(stream_, x.data, nullptr, x.dim(0), x.dim(1), rounded_rows(out), x.dtype);
}

void CudaOps::put_columns(const Tensor& x, int64_t first, const Tensor& out) {
  expect(x.dtype == out.dtype && x.rank == 2 && out.rank == 2 && x.dim(0) == out.dim(0) && first >= 0 &&
             first + x.dim(1) <= out.dim(1),
         "put_columns: shapes");
  const auto element = static_cast<int64_t>(size_bytes(x.dtype));
  launch_put_columns(stream_, x.data, x.dim(0), x.dim(1) * element, out.data + first * element, out.dim(1) * element);
}

void CudaOps::matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) {
#if LFM2_HAS_SM90A
  if (w.dtype == DType::kF8)
    if (const auto product = products_.fp8_args(a, w, bias, out, write); product && prefers_few_fp8_rows(*product))
      return launch_matmul_few_fp8_rows(stream_, *product);
#endif
  products_.matmul(a, w, bias, out, write);
}

void CudaOps::norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                          const Tensor& normed, const Tensor& out) {
  check_norm(x, norm_weight, normed);
#if LFM2_HAS_SM90A
  if (w.dtype != DType::kF8)
    if (const auto product = products_.skinny_args(x, w, bias, out))
      if (const auto norm = front_norm_args(*product, x.dtype, norm_weight, eps))
        return launch_norm_matmul(stream_, *product, *norm, x.dtype);
#endif
  const Tensor rows = rows_for(normed, w);
  rms_norm(x, norm_weight, eps, rows);
  matmul(rows, w, bias, out, Write::kStore);
}

void CudaOps::short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                         const Tensor& out) {
  launch_short_conv(stream_, short_conv_args(bcz, weight, bias, batch, out), bcz.dtype);
}

// Computes the frequencies as the CPU's RopeTable does, which rounds where transformers rounds. A pair that stays has
// the frequency 0.
const RopeFrequencies& CudaOps::frequencies(const Rope& rope, int64_t head_dim) {
  for (const RopeOfHeads& known : ropes_)
    if (known.rope == rope && known.head_dim == head_dim) return known.frequencies;
  expect(rope.pairs >= 0 && rope.pairs <= head_dim / 2 && rope.factor > 0, "qk_norm_rope: the rotation");
  RopeFrequencies& frequencies = ropes_.emplace_back(RopeOfHeads{rope, head_dim, {}}).frequencies;
  for (int64_t i = 0; i < (rope.pairs == 0 ? head_dim / 2 : rope.pairs); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(static_cast<double>(rope.theta), static_cast<double>(exponent)));
    frequencies.values[i] = 1.0f / power / rope.factor;
  }
  return frequencies;
}

void CudaOps::qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                           const Rope& rope, AttentionShape shape, const Batch& batch) {
  const bool rounded = launch_qk_norm_rope(stream_, qk_norm_rope_args(qkv, q_weight, k_weight, eps, shape, batch),
                                           frequencies(rope, shape.head_dim), qkv.dtype, shape.fp8_cache);
  if (shape.fp8_cache && !rounded) launch_round_keys_values(stream_, append_args(qkv, shape, batch, {}), qkv.dtype);
}

void CudaOps::attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) {
  check_qkv(qkv, shape, batch);
  expect(out.dim(0) == batch.tokens && out.dim(1) == shape.heads * shape.head_dim && out.dtype == qkv.dtype,
         "attention: out");
  attend(attention_args(qkv, shape, batch, out), qkv.dtype, batch.max_length);
}

void CudaOps::gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) {
  expect(shape.gated && qkv.rank == 2 && qkv.dim(1) == shape.qkv_columns() && out.rank == 2 &&
             out.dim(0) == qkv.dim(0) && out.dim(1) == shape.heads * shape.head_dim && out.dtype == qkv.dtype &&
             is_float(qkv),
         "gate_heads: shapes");
  launch_gate_heads(stream_,
                    {.qkv = qkv.data,
                     .columns = shape.qkv_columns(),
                     .out = out.data,
                     .tokens = out.dim(0),
                     .heads = static_cast<int>(shape.heads),
                     .head_dim = static_cast<int>(shape.head_dim)},
                    out.dtype);
}

// The choice does not show in the results: both kernels of the 16-bit types give the same bits.
void CudaOps::attend(const AttentionArgs& args, DType act, [[maybe_unused]] int64_t max_length) {
  if (act == DType::kF32) return launch_attention_simt(stream_, args);
#if LFM2_HAS_SM90A
  if (hopper_ && max_length > kMaxShortSample && attention_wgmma_takes(args))
    return launch_attention_wgmma(stream_, args, act, multiprocessors_,
                                  reinterpret_cast<int32_t*>(workspaces_.attention_unit.data()));
#else
  expect(!hopper_, "this build has no code for sm_90a");
#endif
  launch_attention_mma(stream_, args, act);
}

static bool can_choose(const RouterRule& rule, int64_t experts, const Tensor& bias) {
  return rule.top_k >= 1 && rule.top_k <= experts && experts <= kMaxExperts &&
         (!bias || (bias.dtype == DType::kF32 && bias.numel() == experts));
}

void CudaOps::route(const Tensor& logits, const Tensor& bias, RouterRule rule, const Routing& routing) {
  const int64_t tokens = logits.dim(0), experts = logits.dim(1);
  expect(logits.dtype == DType::kF32 && can_choose(rule, experts, bias), "route: logits");
  expect(routing.ids.numel() == tokens * rule.top_k && routing.weights.numel() == tokens * rule.top_k,
         "route: routing");
  const RouteArgs args{.logits = logits.as<const float>(),
                       .bias = bias ? bias.as<const float>() : nullptr,
                       .ids = routing.ids.as<int32_t>(),
                       .weights = routing.weights.as<float>(),
                       .tokens = tokens,
                       .experts = static_cast<int>(experts),
                       .top_k = static_cast<int>(rule.top_k),
                       .normalize = rule.normalize,
                       .scale = rule.scale};
  products_.set_routing_visible(launch_route(stream_, args));
}

namespace {

NormRouteArgs norm_route_args(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate,
                              const Tensor& bias, RouterRule rule, const Tensor& normed, const Routing& routing,
                              const Tensor& sorted) {
  const int64_t tokens = x.dim(0), hidden = x.dim(1), experts = gate.dim(0);
  expect(x.rank == 2 && gate.rank == 2 && gate.dim(1) == hidden && norm_weight.numel() == hidden &&
             normed.dims == x.dims && normed.dtype == x.dtype && is_float(gate),
         "norm_route: shapes");
  expect(can_choose(rule, experts, bias), "norm_route: experts");
  expect(routing.ids.numel() == tokens * rule.top_k && routing.weights.numel() == tokens * rule.top_k &&
             routing.rows.numel() == tokens * rule.top_k && routing.sources.numel() == tokens * rule.top_k &&
             routing.expert_offsets.numel() == experts + 1,
         "norm_route: routing");
  expect(sorted.rank == 2 && sorted.dim(0) == tokens * rule.top_k && sorted.dim(1) == hidden &&
             (sorted.dtype == x.dtype || (sorted.dtype == DType::kF8 && normed.data != x.data)),
         "norm_route: sorted");
  return {.x = x.data,
          .gate = any(gate),
          .bias = bias ? bias.as<const float>() : nullptr,
          .ids = routing.ids.as<int32_t>(),
          .weights = routing.weights.as<float>(),
          .tokens = tokens,
          .hidden = hidden,
          .experts = static_cast<int>(experts),
          .top_k = static_cast<int>(rule.top_k),
          .normalize = rule.normalize,
          .scale = rule.scale,
          .normed = normed.data,
          .norm_weight = any(norm_weight),
          .eps = eps,
          .sources = routing.sources.as<int32_t>(),
          .rows = routing.rows.as<int32_t>(),
          .offsets = routing.expert_offsets.as<int32_t>(),
          .sorted = sorted.data,
          .exchange = nullptr};
}

}  // namespace

void CudaOps::norm_route(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                         RouterRule rule, const Tensor& normed, const Routing& routing, const Tensor& sorted) {
  NormRouteArgs args = norm_route_args(x, norm_weight, eps, gate, bias, rule, normed, routing, sorted);
  args.exchange = reinterpret_cast<uint8_t*>(workspaces_.route.data());
  args.reserved_sms = products_.reserved_sms();
  const bool rounds = sorted.dtype == DType::kF8;
  const Tensor rows = rounds ? as_fp8_rows(normed, sorted.scales.group) : normed;
  args.rounded = rounded_rows(rows);
  args.rounded_sorted = rounded_rows(sorted);
  const auto [grouped, rounded, visible] = launch_norm_route(stream_, args, x.dtype);
  products_.set_routing_visible(visible);
  if (grouped) return;
  group_by_expert(routing);
  if (rounds && !rounded) {
    launch_quantize(stream_, normed.data, args.sources, sorted.dim(0), args.hidden, args.rounded_sorted, x.dtype);
    return products_.set_routing_visible(Visible::kAfterWait);
  }
  const CopiedScales scales{args.rounded.scales, args.rounded_sorted.scales, args.rounded.stride,
                            args.rounded_sorted.stride, rounds ? static_cast<int>(rows.scales.groups(args.hidden)) : 0};
  products_.set_routing_visible(launch_scatter_rows(stream_, rows.data, args.rows, args.tokens, args.top_k,
                                                    args.hidden * static_cast<int64_t>(size_bytes(rows.dtype)),
                                                    sorted.data, scales));
}

void CudaOps::norm_route_swiglu(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate,
                                const Tensor& bias, RouterRule rule, const Tensor& w, const Tensor& normed,
                                const Routing& routing, const Tensor& sorted, const Tensor& out) {
  expect(w.rank == 3 && w.dim(0) == gate.dim(0), "norm_route_swiglu: experts");
#if LFM2_HAS_SM90A
  const NormRouteArgs route = norm_route_args(x, norm_weight, eps, gate, bias, rule, normed, routing, sorted);
  if (route.tokens <= kMaxRoutedTokens && norm_weight.dtype == x.dtype && routes_in_one_block(route, x.dtype))
    if (auto product = products_.few_grouped_rows_args(sorted, w, routing.expert_offsets, out, Epilogue::kSwiglu);
        product && (w.dtype != DType::kF8 || takes_few_fp8_rows(*product))) {
      product->a = x.data;
      return products_.set_routing_visible(launch_norm_route_swiglu(stream_, {*product, route}, x.dtype));
    }
#endif
  norm_route(x, norm_weight, eps, gate, bias, rule, normed, routing, sorted);
  grouped_swiglu(sorted, w, routing.expert_offsets, out);
}

void CudaOps::group_by_expert(const Routing& routing) {
  const int64_t assignments = routing.ids.numel(), experts = routing.expert_offsets.numel() - 1;
  expect(routing.ids.rank == 2 && routing.rows.numel() == assignments && routing.sources.numel() == assignments &&
             experts >= 1 && experts <= kMaxExperts,
         "group_by_expert: shapes");
  const GroupByExpertArgs args{.ids = routing.ids.as<const int32_t>(),
                               .sources = routing.sources.as<int32_t>(),
                               .rows = routing.rows.as<int32_t>(),
                               .offsets = routing.expert_offsets.as<int32_t>(),
                               .workspace = reinterpret_cast<int32_t*>(workspaces_.group.data()),
                               .assignments = assignments,
                               .experts = static_cast<int>(experts),
                               .top_k = static_cast<int>(routing.ids.dim(1))};
  products_.set_routing_visible(launch_group_by_expert(stream_, args));
}

void CudaOps::gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) {
  expect(rows.dtype == DType::kI32 && out.dim(0) == rows.numel() && out.dim(1) == x.dim(1) && out.dtype == x.dtype &&
             x.dtype != DType::kF8,
         "gather_rows: shapes");
  launch_gather_rows(stream_, x.data, x.dim(0), rows.as<const int32_t>(), out.dim(0),
                     x.dim(1) * static_cast<int64_t>(size_bytes(x.dtype)), out.data, /*triggers_late=*/true);
}

namespace {

CombineExpertsArgs combine_args(const Tensor& y, const Routing& routing, const Tensor& residual, Visible visible) {
  const int64_t hidden = residual.dim(1);
  expect(y.dim(1) == hidden && routing.rows.dim(0) == residual.dim(0) &&
             routing.weights.numel() == routing.rows.numel() && y.dim(0) == routing.rows.numel() &&
             y.dtype == residual.dtype,
         "combine_experts: shapes");
  return {.y = y.data,
          .rows = routing.rows.as<const int32_t>(),
          .weights = routing.weights.as<const float>(),
          .residual = residual.data,
          .tokens = residual.dim(0),
          .hidden = hidden,
          .top_k = static_cast<int>(routing.rows.dim(1)),
          .routing_visible = visible};
}

}  // namespace

void CudaOps::combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual) {
  launch_combine_experts(stream_, combine_args(y, routing, residual, products_.routing_visible()), y.dtype);
}

void CudaOps::combine_experts_norm(const Tensor& y, const Routing& routing, const Tensor& residual,
                                   const Tensor& norm_weight, float eps, const Tensor& normed) {
  expect(norm_weight.numel() == residual.dim(1) && normed.dims == residual.dims &&
             (normed.dtype == residual.dtype || (normed.dtype == DType::kF8 && normed.data != residual.data)),
         "combine_experts_norm: shapes");
  launch_combine_experts_norm(stream_,
                              {.combine = combine_args(y, routing, residual, products_.routing_visible()),
                               .normed = normed.data,
                               .norm_weight = any(norm_weight),
                               .eps = eps,
                               .rounded = rounded_rows(normed)},
                              y.dtype);
}

void CudaOps::matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing& routing, const Tensor& y,
                                     const Tensor& residual) {
  [[maybe_unused]] const CombineExpertsArgs combine = combine_args(y, routing, residual, products_.routing_visible());
#if LFM2_HAS_SM90A
  if (combine.tokens <= kMaxCombinedTokens && combine.top_k <= kMaxCombinedChoices && w.dim(0) <= kMaxCombinedExperts)
    if (const auto product = products_.few_grouped_rows_args(a, w, routing.expert_offsets, y, Epilogue::kStore)) {
      if (w.dtype != DType::kF8)
        return products_.set_routing_visible(launch_matmul_combine_experts(stream_, {*product, combine}, y.dtype));
      if (is_float(a) && takes_few_fp8_rows(*product))
        return products_.set_routing_visible(launch_matmul_combine_experts_fp8(stream_, {*product, combine}));
    }
#endif
  grouped_matmul(a, w, routing.expert_offsets, y);
  combine_experts(y, routing, residual);
}

void CudaOps::top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1), k = ids.dim(1);
  expect(logits.dtype == DType::kF32 && ids.dtype == DType::kI32 && log_probs.dtype == DType::kF32 && vocab > 0 &&
             vocab <= std::numeric_limits<int32_t>::max() / 2 && k <= vocab && ids.dim(0) == rows &&
             ids.dims == log_probs.dims,
         "top_log_probs: shapes");
  launch_top_log_probs(stream_, logits.as<const float>(), rows, vocab, k, ids.as<int32_t>(), log_probs.as<float>());
}

void CudaOps::target_log_probs(const Tensor& logits, const Tensor& targets, const Tensor& log_probs,
                               const Tensor& is_greedy) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(logits.dtype == DType::kF32 && targets.dtype == DType::kI32 && log_probs.dtype == DType::kF32 &&
             is_greedy.dtype == DType::kI32 && vocab > 0 && vocab <= std::numeric_limits<int32_t>::max() / 2 &&
             targets.numel() == rows && log_probs.numel() == rows && is_greedy.numel() == rows,
         "target_log_probs: shapes");
  launch_target_log_probs(stream_, logits.as<const float>(), targets.as<const int32_t>(), rows, vocab,
                          log_probs.as<float>(), is_greedy.as<int32_t>());
}

}  // namespace lfm2
