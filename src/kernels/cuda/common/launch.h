// The launchers, one per kernel: raw device pointers and sizes that CudaOps has checked. Each enqueues on `stream` and
// returns; none allocates or waits, so all can be captured in a graph. Shapes and mathematics: kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/limits.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/dtype.h"
#include "kernels/sampling.h"

namespace lfm2 {

// An array of any float type, chosen at run time: weights and tables.
struct AnyArray {
  const void* data = nullptr;  // null: none
  DType dtype = DType::kF32;
};

// What cudaFuncGetAttributes says of one of our kernels: an error where this build has no code for the GPU.
cudaError_t probe_kernels();

void launch_convert(cudaStream_t stream, AnyArray source, void* target, DType to, int64_t count);

void launch_embed(cudaStream_t stream, const int32_t* ids, int64_t tokens, AnyArray table, int64_t vocab,
                  int64_t hidden, void* out, DType act);

void launch_rms_norm(cudaStream_t stream, const void* x, AnyArray weight, float eps, int64_t rows, int64_t n, void* out,
                     DType act);

// Batch positions, here and below, are the host's: no kernel writes them (dependent_launch.cuh).
struct ShortConvArgs {
  const void* bcz;           // [tokens, 3 hidden]
  AnyArray weight, bias;     // [hidden, taps], [hidden] or none
  const int32_t* positions;  // [tokens]
  void* out;                 // [tokens, hidden]
  int64_t tokens, hidden, taps;
};
void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act);

// Inverse frequencies, rounded as transformers rounds them; travels as a kernel argument.
struct RopeFrequencies {
  float values[kMaxHeadDim / 2];
};

struct QkNormRopeArgs {
  void* qkv;  // [tokens, (heads + 2 kv_heads) head_dim], changed in place
  AnyArray q_weight, k_weight;
  const int32_t* positions;
  float eps;
  int64_t tokens;
  int heads, kv_heads, head_dim;
};
void launch_qk_norm_rope(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies,
                         DType act);

struct CachedConvArgs {
  const int32_t *sequence_of, *offsets;  // [tokens], [sequences + 1]
  const int32_t* rows;                   // [sequences, 2]: read from, written to
  float* states;                         // [rows, taps - 1, hidden]
};
void launch_cached_short_conv(cudaStream_t stream, const ShortConvArgs& args, const CachedConvArgs& cache, DType act);

// A batch of sequences with a cache: kernels/ops.h. No kernel writes its arrays.
struct KeyPages {
  void *keys, *values;         // [pages, page, kv_heads, head_dim]
  const int32_t* page_table;   // [sequences, most_pages]
  const int32_t* sequence_of;  // [tokens]
  const int32_t* offsets;      // [sequences + 1]
  int most_pages, page;
  int64_t singles;
};

struct AppendArgs {
  const void* qkv;
  const int32_t* positions;
  KeyPages pages;
  int64_t tokens;
  int heads, kv_heads, head_dim;
};
void launch_append_keys_values(cudaStream_t stream, const AppendArgs& args, DType act);

struct AttentionArgs {
  const void* qkv;
  const int32_t* positions;
  void* out;  // [tokens, heads head_dim]
  int64_t tokens;
  int heads, kv_heads, head_dim;
  float scale;  // 1 / sqrt(head_dim)
  // Without pages: whole samples, keys and values in qkv. With them: the tokens from pages.singles on.
  KeyPages pages = {};
};
void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act);  // bf16, fp16
void launch_attention_simt(cudaStream_t stream, const AttentionArgs& args);            // fp32

// The first pages.singles tokens, a sequence each.
struct DecodeArgs {
  AttentionArgs attention;
  int64_t max_length;  // of a sequence, at most
  // Results of parts of long sequences: [kDecodePartialFloats], [kDecodeCounters], the latter 0 between launches.
  float* partials;
  int32_t* counters;
  int multiprocessors;
};
constexpr int64_t kDecodePartialFloats = int64_t{8} << 20;
constexpr int64_t kDecodeCounters = int64_t{1} << 16;
void launch_decode_attention_mma(cudaStream_t stream, const DecodeArgs& args, DType act);  // bf16, fp16
void launch_decode_attention_simt(cudaStream_t stream, const DecodeArgs& args);            // fp32

struct RouteArgs {
  const float* logits;  // [tokens, experts]
  const float* bias;    // [experts] or null
  int32_t* ids;         // [tokens, top_k]
  float* weights;       // [tokens, top_k]
  int64_t tokens;
  int experts, top_k;
  bool normalize;
  float scale;
};
void launch_route(cudaStream_t stream, const RouteArgs& args);

// The router in one: logits = x gateᵀ in fp32, then route. With normed, x is normed first, to the bits of
// launch_rms_norm.
struct RouterArgs {
  const void* x;      // [tokens, hidden]
  AnyArray gate;      // [experts, hidden]
  const float* bias;  // [experts] or null
  int32_t* ids;       // [tokens, top_k]
  float* weights;     // [tokens, top_k]
  int64_t tokens, hidden;
  int experts, top_k;
  bool normalize;
  float scale;
  void* normed = nullptr;     // [tokens, hidden] or none; may be x
  AnyArray norm_weight = {};  // [hidden]
  float eps = 0;
};
void launch_router(cudaStream_t stream, const RouterArgs& args, DType act);

struct GroupByExpertArgs {
  const int32_t* ids;  // [assignments]
  int32_t* sources;    // [assignments]
  int32_t* rows;       // [assignments]
  int32_t* offsets;    // [experts + 1]
  int32_t* workspace;  // kGroupWorkspaceInts
  int64_t assignments;
  int experts, top_k;
};
constexpr int kMaxGroupBlocks = 256;
constexpr int64_t kGroupWorkspaceInts = int64_t{kMaxGroupBlocks} * kMaxExperts;
void launch_group_by_expert(cudaStream_t stream, const GroupByExpertArgs& args);

void launch_gather_rows(cudaStream_t stream, const void* x, int64_t x_rows, const int32_t* rows, int64_t count,
                        int64_t row_bytes, void* out);

struct CombineExpertsArgs {
  const void* y;         // [tokens top_k, hidden]
  const int32_t* rows;   // [tokens, top_k]
  const float* weights;  // [tokens, top_k]
  void* residual;        // [tokens, hidden]
  int64_t tokens, hidden;
  int top_k;
  // With normed: normed = rms_norm(residual), of the new, rounded residual, the bits that launch_rms_norm gives.
  void* normed = nullptr;     // [tokens, hidden] or none
  AnyArray norm_weight = {};  // [hidden]
  float eps = 0;
};
void launch_combine_experts(cudaStream_t stream, const CombineExpertsArgs& args, DType act);

void launch_top_log_probs(cudaStream_t stream, const float* logits, int64_t rows, int64_t vocab, int64_t k,
                          int32_t* ids, float* log_probs);

struct SampleArgs {
  const float* logits;        // [rows, vocab]
  const int32_t* draws;       // [rows, 2]
  const SamplingRule* rules;  // [rows]
  int32_t* ids;               // [rows]
  float* log_probs;           // [rows]
  int64_t rows, vocab;
};
void launch_sample(cudaStream_t stream, const SampleArgs& args);

// Matrix products: of every row, or of expert e's rows offsets[e] … offsets[e + 1] with w[e].
struct GemmArgs {
  const void* a;           // [m, k]
  AnyArray w;              // [groups, n, k]
  AnyArray bias;           // [n] or none
  void* out;               // [m, n]; [m, n / 2] after kSwiglu
  const int32_t* offsets;  // [groups + 1] on the device, or null: one group of m rows
  int64_t m, n, k;
  int64_t groups;
  Epilogue epilogue;
};
void launch_gemm_mma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);  // act 16 bits, w as act
// sm_90a alone; n and k in octets (kSwiglu: n in sixteens), all on 16 bytes.
void launch_gemm_wgmma(cudaStream_t stream, const GemmArgs& args, DType act, DType out);  // act 16 bits, w as act
// As launch_gemm_wgmma, with its bits, for prefers_few_rows().
void launch_gemm_few_rows(cudaStream_t stream, const GemmArgs& args, DType act, DType out);
void launch_gemm_planes_wgmma(cudaStream_t stream, const GemmArgs& args);  // a and out fp32, w bf16 or fp32
void launch_gemm_planes(cudaStream_t stream,
                        const GemmArgs& args);  // a and out fp32, w bf16, k in octets, all on 16 bytes
void launch_gemm_simt(cudaStream_t stream, const GemmArgs& args);  // a and out fp32, w any type

}  // namespace lfm2
