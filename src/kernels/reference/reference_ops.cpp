// The operators in double precision. Simple loops, so that a reader can check them against the formulas in the header.
#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lfm2::reference {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

double element(const Tensor& x, int64_t i) {
  switch (x.dtype) {
    case DType::kF32:
      return static_cast<double>(x.as<float>()[i]);
    case DType::kBf16:
      return static_cast<double>(to_float(x.as<Bf16>()[i]));
    case DType::kF16:
      return static_cast<double>(to_float(x.as<F16>()[i]));
    case DType::kI32:
      return x.as<int32_t>()[i];
    case DType::kF8:
      return static_cast<double>(to_float(x.as<F8>()[i])) * static_cast<double>(x.scales.data[x.scale_of(i)]);
  }
  return 0;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// A sum with the sum of its terms' absolute values.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) { value += term, magnitude += std::fabs(term); }
};
void append(Results& results, const Sum& sum) {
  results.values.push_back(sum.value);
  results.magnitudes.push_back(sum.magnitude);
}

// The products of a's rows ends[e - 1] … ends[e] with the matrix e of w.  a [rows, k], w [experts, n, k]
Results products(const Tensor& a, const Tensor& w, int64_t n, const std::vector<int64_t>& ends) {
  const std::vector<double> x = elements(a), y = elements(w);
  const int64_t k = a.dim(1);
  Results out;
  int64_t expert = 0;
  for (int64_t i = 0; i < a.dim(0); ++i) {
    while (i >= ends[at(expert)]) ++expert;
    for (int64_t j = 0; j < n; ++j) {
      const double *row = x.data() + i * k, *column = y.data() + (expert * n + j) * k;
      Sum sum;
      for (int64_t c = 0; c < k; ++c) sum.add(row[c] * column[c]);
      append(out, sum);
    }
  }
  return out;
}
std::vector<int64_t> ends_of(const Tensor& expert_offsets) {
  return {expert_offsets.as<int32_t>() + 1, expert_offsets.as<int32_t>() + expert_offsets.dim(0)};
}

Results swiglu(const Results& sums, int64_t ffn) {
  Results out;
  for (int64_t i = 0; i < std::ssize(sums.values) / 2; ++i) {
    const int64_t row = i / ffn, c = i % ffn;
    const size_t gate = at(row * 2 * ffn + c / kGateUpBlock * 2 * kGateUpBlock + c % kGateUpBlock),
                 up = gate + at(kGateUpBlock);
    const double silu = sums.values[gate] * sigmoid(sums.values[gate]);
    out.values.push_back(silu * sums.values[up]);
    out.magnitudes.push_back(1.1 * sums.magnitudes[gate] * std::fabs(sums.values[up]) +
                             std::fabs(silu) * sums.magnitudes[up]);
  }
  return out;
}

// 1 / sqrt(mean(x^2) + eps) of n elements from `first`.
double norm_factor(const Tensor& x, int64_t first, int64_t n, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::pow(element(x, first + i), 2);
  return 1 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
}

float rope_angle(int32_t position, const Rope& rope, int64_t i, int64_t head_dim) {
  if (rope.pairs > 0 && i >= rope.pairs) return 0;
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
  const auto power = static_cast<float>(std::pow(static_cast<double>(rope.theta), static_cast<double>(exponent)));
  const float frequency = 1.0f / power;
  return static_cast<float>(position) * (frequency / rope.factor);
}

}  // namespace

std::vector<double> elements(const Tensor& x) {
  std::vector<double> all(at(x.numel()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = element(x, static_cast<int64_t>(i));
  return all;
}

std::vector<double> embed(const Tensor& ids, const Tensor& table) {
  std::vector<double> out;
  for (int64_t t = 0; t < ids.dim(0); ++t)
    for (int64_t c = 0; c < table.dim(1); ++c) out.push_back(element(table, ids.as<int32_t>()[t] * table.dim(1) + c));
  return out;
}

std::vector<double> insert_drawn(const Tensor& ids, const Tensor& drawn) {
  std::vector<double> out = elements(ids);
  for (double& id : out)
    if (id < 0) id = element(drawn, static_cast<int64_t>(-1 - id));
  return out;
}

Results rms_norm(const Tensor& x, const Tensor& weight, float eps) {
  const int64_t n = x.dim(1);
  Results out;
  for (int64_t row = 0; row < x.dim(0); ++row) {
    const double factor = norm_factor(x, row * n, n, eps);
    for (int64_t c = 0; c < n; ++c) {
      Sum value;
      value.add(element(x, row * n + c) * factor * element(weight, c));
      append(out, value);
    }
  }
  return out;
}

Results add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual) {
  Results out = rms_norm(x, weight, eps);
  for (int64_t i = 0; i < residual.numel(); ++i) {
    out.values[at(i)] += element(residual, i);
    out.magnitudes[at(i)] += std::fabs(element(residual, i));
  }
  return out;
}

Results matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& old) {
  const int64_t n = w.dim(0);
  Results out = products(a, w, n, {a.dim(0)});
  for (int64_t i = 0; i < std::ssize(out.values); ++i) {
    Sum sum{out.values[at(i)], out.magnitudes[at(i)]};
    if (bias) sum.add(element(bias, i % n));
    if (old) sum.add(element(old, i));
    out.values[at(i)] = sum.value, out.magnitudes[at(i)] = sum.magnitude;
  }
  return out;
}

Results grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets) {
  return products(a, w, w.dim(1), ends_of(expert_offsets));
}

Results matmul_swiglu(const Tensor& a, const Tensor& w) {
  return swiglu(products(a, w, w.dim(0), {a.dim(0)}), w.dim(0) / 2);
}

Results grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets) {
  return swiglu(grouped_matmul(a, w, expert_offsets), w.dim(1) / 2);
}

Results short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch) {
  const int64_t hidden = bcz.dim(1) / 3, length = weight.row_numel();
  const auto part = [&](int64_t t, int64_t which, int64_t c) { return element(bcz, (3 * t + which) * hidden + c); };
  Results out;
  for (int64_t t = 0; t < bcz.dim(0); ++t)
    for (int64_t c = 0; c < hidden; ++c) {
      Sum sum;
      if (bias) sum.add(element(bias, c));
      for (int64_t back = 0; back < length && back <= batch.positions.as<int32_t>()[t]; ++back)
        sum.add(element(weight, c * length + length - 1 - back) * part(t - back, 0, c) * part(t - back, 2, c));
      append(out, {part(t, 1, c) * sum.value, std::fabs(part(t, 1, c)) * sum.magnitude});
    }
  return out;
}

Results qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                     AttentionShape shape, const Batch& batch) {
  const int64_t d = shape.head_dim, half = d / 2;
  Results out{elements(qkv), std::vector<double>(at(qkv.numel()))};
  for (int64_t token = 0; token < qkv.dim(0); ++token)
    for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
      const Tensor& weight = head < shape.heads ? q_weight : k_weight;
      const int64_t first = token * shape.qkv_columns() + head * d;
      const double factor = norm_factor(qkv, first, d, eps);
      for (int64_t i = 0; i < half; ++i) {
        const auto angle = static_cast<double>(rope_angle(batch.positions.as<int32_t>()[token], rope, i, d));
        const double x = element(qkv, first + i) * factor * element(weight, i);
        const double y = element(qkv, first + half + i) * factor * element(weight, half + i);
        out.values[at(first + i)] = x * std::cos(angle) - y * std::sin(angle);
        out.values[at(first + half + i)] = y * std::cos(angle) + x * std::sin(angle);
        out.magnitudes[at(first + i)] = out.magnitudes[at(first + half + i)] = std::hypot(x, y);
      }
    }
  return out;
}

AttentionRow attention(const std::vector<double>& qkv, AttentionShape shape, int64_t first, int64_t token) {
  const int64_t d = shape.head_dim, columns = shape.qkv_columns();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  if (shape.window > 0) first = std::max(first, token + 1 - shape.window);
  AttentionRow row;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t query = token * columns + head * d, kv = head / (shape.heads / shape.kv_heads);
    std::vector<double> weights;  // scores, then their exponentials
    double largest = -HUGE_VAL, magnitude = 0, total = 0;
    for (int64_t s = first; s <= token; ++s) {
      Sum score;
      for (int64_t i = 0; i < d; ++i) score.add(qkv[at(query + i)] * qkv[at(s * columns + (shape.heads + kv) * d + i)]);
      weights.push_back(score.value * scale);
      largest = std::max(largest, weights.back());
      magnitude = std::max(magnitude, score.magnitude * scale);
    }
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    std::vector<Sum> sums(at(d));
    for (int64_t s = first; s <= token; ++s)
      for (int64_t i = 0; i < d; ++i)
        sums[at(i)].add(weights[at(s - first)] / total *
                        qkv[at(s * columns + (shape.heads + shape.kv_heads + kv) * d + i)]);
    for (const Sum& sum : sums) append(row.out, sum);
    row.magnitude.push_back(magnitude);
  }
  return row;
}

Results gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) {
  Results gated;
  for (int64_t i = 0; i < out.numel(); ++i) {
    const int64_t head = i / shape.head_dim;
    const double gate = element(qkv, (head / shape.heads + 1) * shape.qkv_columns() - shape.heads + head % shape.heads);
    Sum value;
    value.add(element(out, i) * sigmoid(gate));
    append(gated, value);
  }
  return gated;
}

Scores route(const Tensor& logits, const Tensor& bias) {
  const int64_t experts = logits.dim(1);
  Scores out;
  for (int64_t token = 0; token < logits.dim(0); ++token) {
    std::vector<double> scores;
    for (int64_t e = 0; e < experts; ++e)
      scores.push_back(sigmoid(element(logits, token * experts + e)) + (bias ? element(bias, e) : 0));
    std::vector<int64_t> order(at(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[at(a)] > scores[at(b)]; });
    out.scores.insert(out.scores.end(), scores.begin(), scores.end());
    out.order.insert(out.order.end(), order.begin(), order.end());
  }
  return out;
}

std::vector<double> route_weights(const Tensor& logits, const Tensor& ids, RouterRule rule) {
  std::vector<double> out;
  for (int64_t token = 0; token < logits.dim(0); ++token) {
    const auto p = [&](int64_t j) {
      return sigmoid(element(logits, token * logits.dim(1) + ids.as<int32_t>()[token * rule.top_k + j]));
    };
    double sum = 1e-6;
    for (int64_t j = 0; j < rule.top_k; ++j) sum += p(j);
    for (int64_t j = 0; j < rule.top_k; ++j)
      out.push_back(p(j) / (rule.normalize ? sum : 1) * static_cast<double>(rule.scale));
  }
  return out;
}

Groups group_by_expert(const Tensor& ids, int64_t experts) {
  const int64_t assignments = ids.numel(), top_k = ids.dim(1);
  Groups out{{}, std::vector<double>(at(assignments)), {0}};
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < assignments; ++i) {
      if (ids.as<int32_t>()[i] != e) continue;
      out.rows[at(i)] = static_cast<double>(out.sources.size());
      out.sources.push_back(static_cast<double>(i / top_k));
    }
    out.expert_offsets.push_back(static_cast<double>(out.sources.size()));
  }
  return out;
}

Results combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual) {
  const int64_t hidden = residual.dim(1), top_k = routing.weights.dim(1);
  Results out;
  for (int64_t t = 0; t < residual.dim(0); ++t)
    for (int64_t c = 0; c < hidden; ++c) {
      Sum sum;
      sum.add(element(residual, t * hidden + c));
      for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i)
        sum.add(element(routing.weights, i) * element(y, routing.rows.as<int32_t>()[i] * hidden + c));
      append(out, sum);
    }
  return out;
}

}  // namespace lfm2::reference
