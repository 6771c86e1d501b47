// The specification of the operators: each as plain loops in double precision, with its name in Ops. The tests compare
// both backends with it; no program uses it. If a rounding to fp32 or an integer decides the result (angles, adjusted
// logits, masses of sampling), it is part of the specification.
//
// The operators over caches have the bits of those over whole samples, and the fused ones those of their parts, so they
// need no separate specification. The mathematics is that of transformers (models/lfm2, models/lfm2_moe) and of
// OpenAI's penalties; kernels/ops.h has the shapes of all operands.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace lfm2::reference {

// Results, and for each result the same sum over the absolute values of its terms: the error of a sum in fp32 is a
// share of that.
struct Results {
  std::vector<double> values, magnitudes;
};

std::vector<double> elements(const Tensor& x);

// out[t] = table[ids[t]]: embed of ids, gather_rows of rows.  [tokens, hidden]
std::vector<double> embed(const Tensor& ids, const Tensor& table);
// ids, each negative one replaced by drawn[-1 - id].  [tokens]
std::vector<double> insert_drawn(const Tensor& ids, const Tensor& drawn);

// out = x / sqrt(mean(x^2) + eps) ∘ weight.  [rows, n].  Lfm2RMSNorm
Results rms_norm(const Tensor& x, const Tensor& weight, float eps);

// residual + rms_norm(x).  [rows, n].  Lfm3DecoderLayer
Results add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual);

// The elements of x after they are rounded to fp8: s E4M3(x / s), with s = max|x| / 448 (1 if that is 0) of each
// `group` elements of a row, or of all (0). [rows, k]. QuantizationStrategy.TOKEN and GROUP of compressed-tensors
std::vector<double> quantized(const Tensor& x, int64_t group);

// out[i, j] = old[i, j] + bias[j] + Σ_x a[i, x] w[j, x]; bias and old may be empty.  [m, n].  torch.nn.Linear
Results matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& old);

// The same for the rows offsets[e] … offsets[e + 1] with w[e].  [rows, n].  Lfm2MoeExperts
Results grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets);

// out = silu(gate) ∘ up, with the products of gate and up rows, which alternate in w (kGateUpBlock).  [m, ffn].
// Magnitudes are those of the products, each times how fast the result grows with it: at most 1.1 |up| and
// |silu(gate)|.
// Lfm2MLP
Results matmul_swiglu(const Tensor& a, const Tensor& w);
Results grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets);

// u = B ∘ z, zero before the sample; out[t, c] = C[t, c] (bias[c] + Σ_j weight[c, j] u[t − (L − 1) + j, c]).
// [tokens, hidden].  Lfm2ShortConv
Results short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch);

// The angles are position · (1 / theta^(2 i / d) / factor), with each step rounded to fp32, and 0 for pairs that do not
// turn. In qkv, every query and key head is replaced by x = rms_norm of it, then (x_i, x_j) ← (x_i cos − x_j sin, x_j
// cos + x_i sin) for j = i + d / 2. Magnitudes are the lengths of the pairs, and 0 for what stays.  Lfm2Attention,
// Lfm2RotaryEmbedding, Lfm3RotaryEmbedding
Results qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps, const Rope& rope,
                     AttentionShape shape, const Batch& batch);

// The elements of qkv, with keys and values rounded to fp8: s E4M3(x / s). The scale s is the least power of two from
// 2^-15 to 2^7 (fp16) or 2^119 for which the head's max|x| / s rounds to at most 448.  kernels/fp8_cache.h
std::vector<double> fp8_keys_values(const Tensor& qkv, AttentionShape shape);

// One token's attention over the tokens first … token of qkv, whose elements() these are, or with shape.window over the
// last ones of them.  Lfm2Attention, Lfm3Attention
//   out[h] = Σ_s softmax_s(q[h] · k[s, g] / √d) v[s, g],  g = h / (heads / kv_heads)
struct AttentionRow {
  Results out;                    // [heads, head_dim]
  std::vector<double> magnitude;  // [heads]: the largest Σ |q_i k_i| / √d of its scores
};
AttentionRow attention(const std::vector<double>& qkv, AttentionShape shape, int64_t first, int64_t token);

// out[t, h] · sigmoid(gate[t, h]); the gates are the last `heads` columns of qkv.  [tokens, heads head_dim].
// Lfm3Attention
Results gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out);

// p = sigmoid(logits); the experts by p + bias, the highest first, ties to the lower id.  Lfm2MoeSparseMoeBlock
struct Scores {
  std::vector<double> scores;  // [tokens, experts]: p + bias
  std::vector<int64_t> order;  // [tokens, experts]
};
Scores route(const Tensor& logits, const Tensor& bias);
// weights[t, j] = scale p[ids[t, j]], divided by (Σ_j p + 1e-6) if the rule normalizes.  [tokens, top_k]
std::vector<double> route_weights(const Tensor& logits, const Tensor& ids, RouterRule rule);

// A stable sort of the assignments by expert.
struct Groups {
  std::vector<double> sources, rows, expert_offsets;
};
Groups group_by_expert(const Tensor& ids, int64_t experts);

// residual[t] + Σ_j weights[t, j] y[rows[t, j]].  [tokens, hidden]
Results combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual);

// log_softmax; NaN throughout a row that has a NaN or +infinity, or nothing but -infinity.  [rows, vocab]
std::vector<double> log_softmax(const Tensor& logits);
// The ids of a row by descending logit, ties to the lower id; a NaN counts as -infinity.
std::vector<int32_t> descending(const float* logits, int64_t vocab);

// A row of logits as its rule adjusts it before the token at `place` of the text is drawn, in fp32:
//   - biases are added;
//   - tokens of prompt and text are divided by the repetition penalty (negative ones multiplied, as transformers does);
//   - tokens of the text lose frequency_penalty · times + presence_penalty (OpenAI);
//   - bans before min_tokens give -infinity.
struct Before {
  std::vector<int32_t> prompt, text;
};
// For each token of the vocabulary: kInText for each time that the text has it, and kInPrompt if the prompt has it.
std::vector<double> count_tokens(const Before& before, int64_t vocab);
std::vector<float> adjust_logits(std::vector<float> logits, const SamplingRule& rule, const Before& before,
                                 const std::vector<LogitEdit>& edits, int64_t place);

// The token that kernels/sampling.h defines, by sorting; `logits` are adjusted.
int32_t sample(const float* logits, int64_t vocab, const SamplingRule& rule, int32_t sample, int32_t place);

}  // namespace lfm2::reference
