// The mixture of experts around its matrix products: the choice of experts, the order of the rows, and the weighted
// sum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

namespace {

// The score by which experts are compared; an expert with a NaN score is chosen last.
float sortable(float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; }

// The best expert after `last` in the order of descending scores and ascending ids; the first one if `last` is -1.
int32_t next_best(const float* scores, int32_t experts, int32_t last) {
  int32_t best = -1;
  for (int32_t expert = 0; expert < experts; ++expert) {
    const bool after_last =
        last < 0 || scores[expert] < scores[last] || (scores[expert] == scores[last] && expert > last);
    if (after_last && (best < 0 || scores[expert] > scores[best])) best = expert;
  }
  return best;
}

}  // namespace

void CpuOps::route(const Tensor& logits, const Tensor& bias, RouterRule rule, const Routing& routing) {
  const int64_t tokens = logits.dim(0), experts = logits.dim(1), top_k = rule.top_k;
  expect(logits.dtype == DType::kF32 && top_k >= 1 && top_k <= experts && (!bias || bias.dtype == DType::kF32) &&
             (!bias || bias.numel() == experts),
         "route: logits");
  expect(routing.ids.numel() == tokens * top_k && routing.weights.numel() == tokens * top_k, "route: routing");
  auto* probabilities = scratch_.reserve<float>(static_cast<size_t>(2 * tokens * experts));
  auto* scores = probabilities + tokens * experts;
  for_each_row(tokens, experts * (8 + top_k), [&](int64_t token) {
    float* p = probabilities + token * experts;
    float* score = scores + token * experts;
    for (int64_t e = 0; e < experts; ++e) {
      p[e] = 1.0f / (1.0f + std::exp(-logits.as<const float>()[token * experts + e]));
      score[e] = sortable(bias ? p[e] + bias.as<const float>()[e] : p[e]);
    }
    int32_t* ids = routing.ids.as<int32_t>() + token * top_k;
    float* weights = routing.weights.as<float>() + token * top_k;
    float sum = 0;
    int32_t last = -1;
    for (int64_t j = 0; j < top_k; ++j) {
      ids[j] = last = next_best(score, static_cast<int32_t>(experts), last);
      weights[j] = p[last];
      sum += p[last];
    }
    for (int64_t j = 0; j < top_k; ++j)
      weights[j] = (rule.normalize ? weights[j] / (sum + 1e-6f) : weights[j]) * rule.scale;
  });
}

void CpuOps::norm_route(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                        RouterRule rule, const Tensor& normed, const Routing& routing, const Tensor& sorted) {
  const int64_t tokens = x.dim(0), experts = gate.dim(0);
  rms_norm(x, norm_weight, eps, normed);
  const Tensor logits(logits_.reserve<float>(static_cast<size_t>(tokens * experts)), DType::kF32, {tokens, experts});
  matmul(normed, gate, {}, logits, Write::kStore);
  route(logits, bias, rule, routing);
  group_by_expert(routing);
  if (sorted.dtype != DType::kF8) return gather_rows(normed, routing.sources, sorted);
  const Tensor gathered(rounded_.reserve<std::byte>(static_cast<size_t>(sorted.numel()) * size_bytes(x.dtype)), x.dtype,
                        {sorted.dim(0), sorted.dim(1)});
  gather_rows(normed, routing.sources, gathered);
  quantize(gathered, sorted);
}

void CpuOps::norm_route_swiglu(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate,
                               const Tensor& bias, RouterRule rule, const Tensor& w, const Tensor& normed,
                               const Routing& routing, const Tensor& sorted, const Tensor& out) {
  norm_route(x, norm_weight, eps, gate, bias, rule, normed, routing, sorted);
  grouped_swiglu(sorted, w, routing.expert_offsets, out);
}

void CpuOps::group_by_expert(const Routing& routing) {
  const int64_t assignments = routing.ids.numel(), experts = routing.expert_offsets.numel() - 1;
  expect(routing.ids.rank == 2 && routing.rows.numel() == assignments && routing.sources.numel() == assignments,
         "group_by_expert: shapes");
  const int64_t top_k = routing.ids.dim(1);
  const auto* ids = routing.ids.as<const int32_t>();
  auto* offsets = routing.expert_offsets.as<int32_t>();
  // Counts the rows of expert e in offsets[e + 2] and sums up, so that offsets[e + 1] is the first row of expert e. It
  // advances as rows are assigned, and ends as the first row of expert e + 1.
  std::fill_n(offsets, experts + 1, 0);
  for (int64_t i = 0; i < assignments; ++i) {
    expect(ids[i] >= 0 && ids[i] < experts, "group_by_expert: an expert id out of range");
    if (ids[i] + 2 <= experts) ++offsets[ids[i] + 2];
  }
  for (int64_t e = 1; e <= experts; ++e) offsets[e] += offsets[e - 1];
  for (int64_t i = 0; i < assignments; ++i) {
    const int32_t row = offsets[ids[i] + 1]++;
    routing.rows.as<int32_t>()[i] = row;
    routing.sources.as<int32_t>()[row] = static_cast<int32_t>(i / top_k);
  }
}

void CpuOps::combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual) {
  const int64_t hidden = residual.dim(1), top_k = routing.rows.dim(1);
  expect(y.dim(1) == hidden && routing.rows.dim(0) == residual.dim(0) &&
             routing.weights.numel() == routing.rows.numel() && y.dim(0) == routing.rows.numel() &&
             y.dtype == residual.dtype,
         "combine_experts: shapes");
  with_float_type(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(residual.dim(0), hidden * top_k, [&](int64_t token) {
      const int32_t* rows = routing.rows.as<const int32_t>() + token * top_k;
      const float* weights = routing.weights.as<const float>() + token * top_k;
      for (int64_t j = 0; j < top_k; ++j)
        expect(rows[j] >= 0 && rows[j] < y.dim(0), "combine_experts: a row out of range");
      T* target = residual.as<T>() + token * hidden;
      for (int64_t c = 0; c < hidden; ++c) {
        float sum = 0;
        for (int64_t j = 0; j < top_k; ++j) sum += weights[j] * to_float(y.as<const T>()[rows[j] * hidden + c]);
        target[c] = from_float<T>(to_float(target[c]) + sum);
      }
    });
  });
}

void CpuOps::combine_experts_norm(const Tensor& y, const Routing& routing, const Tensor& residual,
                                  const Tensor& norm_weight, float eps, const Tensor& normed) {
  combine_experts(y, routing, residual);
  rms_norm(residual, norm_weight, eps, normed);
}

void CpuOps::matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing& routing, const Tensor& y,
                                    const Tensor& residual) {
  grouped_matmul(a, w, routing.expert_offsets, y);
  combine_experts(y, routing, residual);
}

}  // namespace lfm2
