// The operators of the model: the interface that the CPU and CUDA backends implement. The forward (src/stage) is
// written once, over it.
//
// Activations are packed: [tokens, ...] of all samples of a micro-batch, back to back, without padding. An output
// element depends on its own sample only. The model's dimensions alone decide the order of its operations, never the
// number of tokens, the threads or other samples of the batch: results are batch-invariant and deterministic.
//
// Types: "act" is the compute type (fp32, bf16, fp16), "weight" the type in which a weight is stored (any of the three;
// its values are used exactly). Every operator computes in fp32 and rounds once, when it stores. The mathematics is
// that of Hugging Face transformers, Lfm2 and Lfm2Moe.
//
// The four plain products (matmul, matmul_swiglu, grouped_matmul, grouped_swiglu) also accept fp8 operands with scales,
// if both a and w are fp8; the result is that of the scaled values. Four fused operators accept fp8 w:
// norm_route_swiglu with fp8 sorted, matmul_combine_experts if rounds_operand(), norm_matmul and
// norm_project_short_conv if fuses_norm(). They round normed and a as quantize does, and normed is memory in type act.
//
// Some outputs may be fp8: out of rms_norm, sorted of norm_route, normed of combine_experts_norm, and, if
// rounds_short_conv(), out of short_conv and cached_short_conv. They hold the result in type act, rounded as quantize
// does.
#pragma once

#include <cstdint>

#include "kernels/gate_up.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"

namespace lfm2 {

// The index arrays of one packed micro-batch of whole samples, or, with caches, of the next tokens of sequences whose
// past is cached.
struct Batch {
  Tensor positions;  // [tokens] int32: token t's position in its sample; a whole sample starts at t - positions[t]
  Tensor offsets;    // [sequences + 1] int32: first token of each sequence, then tokens
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t max_length = 0;  // length of the longest sample, including its cached past
  // Attention must write the results of the last `output_tokens` tokens of each sequence, and may write those of
  // others. 0: all.
  int64_t output_tokens = 0;

  // Set only with caches:
  int64_t singles = 0;  // number of sequences with exactly one token in this batch; they come first
  // Whether no sequence after the singles has a cached past: all of them begin in this batch. Read only with an fp8
  // cache.
  bool all_begin = false;
  Tensor sequence_of{};  // [tokens] int32: the sequence of each token
  // [sequences, largest number of pages] int32: the pages of each sequence in order. The rest of a row is not read.
  Tensor page_table{};
  // [sequences, 2] int32: the rows of the conv states before and after these tokens.
  Tensor states{};
  // [sequences] int32: how many rows directly before a sequence's first row continue the same text: rows of a draft
  // block, each of which is a sequence with one token. All rows of a block name the state before the block. Empty:
  // none.
  Tensor here{};
};

// The keys and values of all sequences in one attention layer. Position p of a sequence is row p % page_size of the
// sequence's page number p / page_size.
struct KeyValueCache {
  Tensor keys, values;  // [pages, page_size, kv_heads, head_dim] act, or, with AttentionShape::fp8_cache, fp8
  // With fp8: the scale bytes of each position's key heads (kernels/fp8_cache.h).  [pages, page_size, kv_heads]
  uint8_t *key_scales = nullptr, *value_scales = nullptr;
};

// The states from which one short convolution continues: each holds u of the last L − 1 positions, oldest first.
struct ConvCache {
  Tensor states{};  // [rows, L − 1, hidden] fp32
  // The state at the end of page i is row first_page_row + i. page_size: positions of a page; 0: no such states are
  // kept.
  int64_t first_page_row = 0, page_size = 0;
};

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool fp8_cache = false;  // keys and values are rounded to fp8 (kernels/fp8_cache.h), also those of whole samples
  int64_t window = 0;      // a token reads the last `window` positions, its own included; 0: all up to its own
  bool gated = false;      // qkv has a gate for each query head and token, in `heads` columns after the value heads
  // Columns of qkv: query heads, key heads, value heads, gates.
  int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim + (gated ? heads : 0); }
};

// The rotation of queries and keys: pair i, elements i and i + head_dim / 2, turns by position · theta^(-2i / head_dim)
// / factor. Frequencies and angles are rounded to fp32 as in transformers; cosine and sine stay fp32.
struct Rope {
  float theta = 0;
  int64_t pairs = 0;  // only the first `pairs` pairs turn; 0: all of them
  float factor = 1;
  bool operator==(const Rope&) const = default;
};

struct RouterRule {
  int64_t top_k = 0;
  bool normalize = false;  // divides the chosen weights by (their sum + 1e-6)
  float scale = 1.0f;
};

// The expert that each (token, choice) goes to, and the same assignments sorted by expert (stable: token, then choice).
struct Routing {
  Tensor ids;             // [tokens, top_k] int32, best first
  Tensor weights;         // [tokens, top_k] fp32
  Tensor sources;         // [tokens * top_k] int32: the token of each sorted row
  Tensor rows;            // [tokens, top_k] int32: the sorted row of each assignment
  Tensor expert_offsets;  // [experts + 1] int32: first sorted row of each expert, then tokens * top_k
};

// What each sequence slot keeps for rules that adjust logits. A tensor is empty if no rule needs it.
struct Adjustments {
  Tensor counts{};  // [slots, vocab] int32: see kInPrompt; only rows of sequences whose rules count are ever written
  Tensor edits{};   // [slots, largest number of edits, kEditWords] int32: LogitEdits
  // For rows of draft blocks: the drafts up to a row, which it counts as text, besides the counts of its slot.
  Tensor ids{};      // [any] int32: token ids
  Tensor drafted{};  // [rows, 2] int32: the first of the row's drafts in `ids`, and the end of them; empty: none
};

enum class Write { kStore, kAdd };  // kStore: out = value; kAdd: out = out + value, rounded once

class Ops {
 public:
  // `max_fused_norm_rows`: norm_matmul and norm_project_short_conv fuse the norm of at most this number of 16-bit rows.
  explicit Ops(int64_t max_fused_norm_rows = 0) : max_fused_norm_rows_(max_fused_norm_rows) {}
  virtual ~Ops() = default;

  // Whether rms_norm(x) should be fused into the following product, rather than into the operator that produces x. The
  // results are the same.
  bool fuses_norm(const Tensor& x) const { return x.dtype != DType::kF32 && x.dim(0) <= max_fused_norm_rows_; }
  int64_t max_fused_norm_rows() const { return max_fused_norm_rows_; }
  // Whether matmul or grouped_matmul should round a [rows, k] act itself, as quantize does, before it multiplies with
  // this fp8 w. The results are those of a separate quantize. Only if this is true may a be in type act; out then has
  // the same type.
  virtual bool rounds_operand(const Tensor& /*a*/, const Tensor& /*w*/) const { return false; }

  // out[t] = table[ids[t]].  ids [tokens] int32, table [vocab, hidden] weight, out [tokens, hidden] act
  virtual void embed(const Tensor& ids, const Tensor& table, const Tensor& out) = 0;

  // ids[t] = drawn[-1 - ids[t]] where ids[t] < 0. Such a token was drawn on the device, and the host did not know it
  // when it wrote ids. Operands: ids [tokens] int32, changed in place, drawn [n] int32
  virtual void insert_drawn(const Tensor& ids, const Tensor& drawn) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight for each row.  x [rows, n] act, weight [n] weight, out [rows, n] act or
  // fp8; out may be x if it is act
  virtual void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) = 0;

  // Rounds rows to fp8 with their own scales, as dynamic quantisation of activations does (compressed-tensors,
  // DeepGEMM). Each group of out.scales.group elements, or the whole row, has the scale s = max|x| / 448 (1 if that is
  // 0) and out = E4M3(x / s). NaN stays NaN, and infinities become NaN.
  // Operands: x [rows, k] act, out [rows, k] fp8 with a row of scales for each row
  virtual void quantize(const Tensor& x, const Tensor& out) = 0;

  // residual += rms_norm(x); then, if next_weight is not empty, normed = rms_norm(residual), with the bits of rms_norm.
  // Nothing overlaps.
  // Operands: x, residual [rows, n] act, weight, next_weight [n] weight, normed [rows, n] act or fp8
  virtual void add_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& residual,
                        const Tensor& next_weight, float next_eps, const Tensor& normed) = 0;

  // out[:, first … first + n) = x.  x [rows, n], out [rows, any], same type
  virtual void put_columns(const Tensor& x, int64_t first, const Tensor& out) = 0;

  // out (+)= a wᵀ + bias.  a [m, k] act, w [n, k] weight, bias [n] weight or empty, out [m, n] act or fp32
  virtual void matmul(const Tensor& a, const Tensor& w, const Tensor& bias, const Tensor& out, Write write) = 0;

  // normed = rms_norm(x), then matmul of normed to out, with the same bits. normed is scratch, which may stay
  // unwritten. None of x, normed and out overlap.
  // Operands: x, normed [m, k] act, norm_weight [k] weight, w [n, k] weight, bias [n] weight or empty, out [m, n] act
  virtual void norm_matmul(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& w, const Tensor& bias,
                           const Tensor& normed, const Tensor& out) = 0;

  // Whether short_conv and cached_short_conv may write fp8 rows, with these bcz and weight, which lie on 16 bytes.
  virtual bool rounds_short_conv(const Tensor& /*bcz*/, const Tensor& /*weight*/) const { return false; }

  // The gated short convolution between its two projections. B, C and z are the thirds of bcz's columns:
  //   u = B ∘ z, zero before the sample starts
  //   v[t, c] = bias[c] + Σ_j weight[c, j] · u[t − (L−1) + j, c]
  //   out = C ∘ v
  // Operands: bcz [tokens, 3 hidden] act, weight [hidden, L] weight, bias [hidden] weight or empty, out [tokens,
  // hidden] act
  virtual void short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                          const Tensor& out) = 0;

  // RMSNorm over the head dimension of every query and key head, then the rotation, in place. With shape.fp8_cache,
  // keys and values, which are of type act, are then rounded to values of fp8 (kernels/fp8_cache.h). Operands: qkv
  // [tokens, shape.qkv_columns()] act, weights [head_dim] weight
  virtual void qk_norm_rope(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                            const Rope& rope, AttentionShape shape, const Batch& batch) = 0;

  // Causal softmax(q kᵀ / √head_dim) v within each sample; query head h reads key-value head h / (heads / kv_heads).
  // With shape.window, only the keys within it.
  // Operands: qkv as above, out [tokens, heads head_dim] act
  virtual void attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const Tensor& out) = 0;

  // Writes keys and values of qkv, after qk_norm_rope, to their positions in the cache; with shape.fp8_cache, as fp8.
  virtual void append_keys_values(const Tensor& qkv, AttentionShape shape, const Batch& batch,
                                  const KeyValueCache& cache) = 0;

  // qk_norm_rope, then append_keys_values, with the same bits.
  virtual void qk_norm_rope_append(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, float eps,
                                   const Rope& rope, AttentionShape shape, const Batch& batch,
                                   const KeyValueCache& cache) = 0;

  // Attention of each token over its sequence's positions in the cache, up to its own. The bits are those of attention
  // over the whole sample, for any page size and any cut of the sample into batches. The cache already holds the
  // batch's own keys and values, and qkv holds the same values (rounded, if the cache is fp8).
  virtual void cached_attention(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache,
                                const Tensor& out) = 0;

  // out[t, h] *= sigmoid(gate of token t and head h), in place.
  // Operands: qkv [tokens, shape.qkv_columns()] act, with gates; out [tokens, heads head_dim] act
  virtual void gate_heads(const Tensor& qkv, AttentionShape shape, const Tensor& out) = 0;

  // short_conv for sequences whose u of the last L − 1 positions is kept between batches, with the same bits. A
  // sequence reads one row of cache.states and writes another one (batch.states). If cache.page_size is not 0, the
  // state after the last position of each page is also written to that page's row.
  virtual void cached_short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                                 const ConvCache& cache, const Tensor& out) = 0;

  // matmul of x and in_proj to bcz, then cached_short_conv, with the same bits. bcz is scratch, which may stay
  // unwritten.
  // Operands: x [tokens, k] act, in_proj [3 hidden, k] weight, in_bias [3 hidden] weight or empty
  virtual void project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor& in_bias, const Tensor& weight,
                                  const Tensor& bias, const Batch& batch, const ConvCache& cache, const Tensor& bcz,
                                  const Tensor& out) = 0;

  // normed = rms_norm(x), then project_short_conv of normed, with the same bits. normed is scratch, which may stay
  // unwritten, and overlaps nothing.
  // Operands: x, normed [tokens, k] act, norm_weight [k] weight
  virtual void norm_project_short_conv(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& in_proj,
                                       const Tensor& in_bias, const Tensor& weight, const Tensor& bias,
                                       const Batch& batch, const ConvCache& cache, const Tensor& normed,
                                       const Tensor& bcz, const Tensor& out) = 0;

  // out = silu(gate) ∘ up. Both are columns of a wᵀ; their rows alternate in w (kGateUpBlock).
  // Operands: a [m, k] act, w [2 ffn, k] weight, out [m, ffn] act
  virtual void matmul_swiglu(const Tensor& a, const Tensor& w, const Tensor& out) = 0;

  // p = sigmoid(logits). Chooses the top_k of p + bias, ties to the lower id. The weights are p of the chosen experts,
  // normalized and scaled by the rule.
  // Operands: logits [tokens, experts] fp32, bias [experts] fp32 or empty; writes routing.ids and .weights
  virtual void route(const Tensor& logits, const Tensor& bias, RouterRule rule, const Routing& routing) = 0;

  // All operators that precede the products of experts, in as few launches as possible: normed = rms_norm(x), logits =
  // normed gateᵀ in fp32, route(logits), group_by_expert, and sorted = gather_rows(normed, routing.sources).
  // Operands: x, normed [tokens, hidden] act, norm_weight [hidden] weight, gate [experts, hidden] weight; normed may be
  // x;
  // sorted [tokens top_k, hidden] act, or fp8: then normed is scratch, and not x
  virtual void norm_route(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate, const Tensor& bias,
                          RouterRule rule, const Tensor& normed, const Routing& routing, const Tensor& sorted) = 0;

  // Sorts the assignments by expert: writes routing.sources, .rows and .expert_offsets from routing.ids.
  virtual void group_by_expert(const Routing& routing) = 0;

  // out[i] = x[rows[i]].  x [any, n], rows [count] int32, out [count, n], same type, and not fp8
  virtual void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out) = 0;

  // Rows expert_offsets[e] … expert_offsets[e + 1] of a times w[e]ᵀ.
  // Operands: a [rows, k] act, w [experts, n, k] weight, out [rows, n] act
  virtual void grouped_matmul(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) = 0;

  // matmul_swiglu with the rows and the matrix of each expert.  w [experts, 2 ffn, k] weight, out [rows, ffn] act
  virtual void grouped_swiglu(const Tensor& a, const Tensor& w, const Tensor& expert_offsets, const Tensor& out) = 0;

  // norm_route, then grouped_swiglu of sorted and w to out, with the same bits. The routing is written. normed and
  // sorted are scratch, which may stay unwritten. None of x, normed, sorted and out overlap.
  // Operands: x, normed [tokens, hidden] act, w [experts, 2 ffn, hidden] weight, sorted [tokens top_k, hidden], out
  // [tokens top_k, ffn] act
  virtual void norm_route_swiglu(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& gate,
                                 const Tensor& bias, RouterRule rule, const Tensor& w, const Tensor& normed,
                                 const Routing& routing, const Tensor& sorted, const Tensor& out) = 0;

  // residual[t] += Σ_j routing.weights[t, j] · y[routing.rows[t, j]], in the order of j.
  // Operands: y [tokens top_k, hidden], residual [tokens, hidden] act
  virtual void combine_experts(const Tensor& y, const Routing& routing, const Tensor& residual) = 0;

  // combine_experts, then normed = rms_norm(residual), with the same bits in one pass.
  // Operands: norm_weight [hidden] weight, normed [tokens, hidden] act or fp8
  virtual void combine_experts_norm(const Tensor& y, const Routing& routing, const Tensor& residual,
                                    const Tensor& norm_weight, float eps, const Tensor& normed) = 0;

  // grouped_matmul of a and w to y, then combine_experts, with the same bits. y is scratch, which may stay unwritten.
  // None of a, y and residual overlap. Of the routing, weights, rows and expert_offsets are read.
  // Operands: a [tokens top_k, k] act, w [experts, hidden, k] weight, y [tokens top_k, hidden], residual [tokens,
  // hidden] act
  virtual void matmul_combine_experts(const Tensor& a, const Tensor& w, const Routing& routing, const Tensor& y,
                                      const Tensor& residual) = 0;

  // No token can be drawn from a row if one of its logits is NaN or +infinity, or if all are -infinity. For such a row
  // the operators below write NaN as every log-probability, on CPU and GPU alike, and meaningless ids below vocab.

  // The k largest of log_softmax(logits), ties to the lower id.
  // Operands: logits [rows, vocab] fp32; ids [rows, k] int32, log_probs [rows, k] fp32
  virtual void top_log_probs(const Tensor& logits, const Tensor& ids, const Tensor& log_probs) = 0;

  // log_softmax(logits) at one given token of each row. is_greedy is 1 if that token is the top-1 of its row: no logit
  // is larger, and no equal logit has a lower id. Otherwise it is 0. A NaN makes all log-probabilities of its row NaN,
  // and counts as -infinity among the logits.
  // Operands: logits [rows, vocab] fp32, targets [rows] int32; log_probs [rows] fp32, is_greedy [rows] int32
  virtual void target_log_probs(const Tensor& logits, const Tensor& targets, const Tensor& log_probs,
                                const Tensor& is_greedy) = 0;

  // Adds the batch's tokens to the counts of their sequences. At its first token, a sequence's counts start again at 0.
  // Operands: ids [tokens] int32; keepers [sequences, 2] int32: the sequence slot, or -1 if nothing is counted, and the
  // number of tokens of the prompt
  virtual void count_tokens(const Tensor& ids, const Tensor& keepers, const Batch& batch, const Tensor& counts) = 0;

  // out = the logits as adjusted by their rows' rules (kernels/sampling.h). Rows of out whose rules adjust nothing at
  // their places are not written.
  // Operands: logits, out [rows, vocab] fp32; draws, rules: see sample; slots [rows] int32: the row of Adjustments;
  // masks [rows, mask_words(vocab)] int32, empty if no rule is constrained
  virtual void adjust_logits(const Tensor& logits, const Tensor& draws, const Tensor& rules, const Tensor& slots,
                             const Adjustments& adjustments, const Tensor& masks, const Tensor& out) = 0;

  // Draws one token for each row by the row's rule, and writes its log_softmax(logits). A draw depends only on the
  // row's own rule, logits and `draws`; a rule that adjusts logits draws from the row of `adjusted`. A log-probability
  // is NaN exactly where no token can be drawn from the row's logits. Operands:
  //   logits, adjusted [rows, vocab] fp32; adjusted may be empty if no rule adjusts
  //   draws [rows, 2] int32: the sample's number and the token's place in it
  //   rules [rows, kRuleWords] int32: a SamplingRule each, on 8 bytes
  //   ids [rows] int32, log_probs [rows] fp32
  virtual void sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules,
                      const Tensor& ids, const Tensor& log_probs) = 0;

 private:
  int64_t max_fused_norm_rows_;
};

}  // namespace lfm2
