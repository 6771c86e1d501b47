// The launchers of the kernels in this folder (common/launchers.h). What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "base/dtype.h"

namespace lfm2 {

// The key-value cache, and the places of a batch's sequences in it. No kernel writes the index arrays.
struct KeyPages {
  void *keys, *values;         // [pages, page_size, kv_heads, head_dim], fp8 if there are scales
  const int32_t* page_table;   // [sequences, max_pages]
  const int32_t* sequence_of;  // [tokens]
  const int32_t* offsets;      // [sequences + 1]
  int max_pages, page_size;
  int64_t pages;    // number of pages in the cache
  int64_t singles;  // number of sequences with one token each; they come first
  uint8_t *key_scales = nullptr,
          *value_scales = nullptr;  // [pages, page_size, kv_heads] (kernels/fp8_cache.h), or null
};

struct AppendKeysValuesArgs {
  void* qkv;                 // [tokens, columns]: query, key and value heads, then the gates
  int64_t columns;           // AttentionShape::qkv_columns()
  const int32_t* positions;  // [tokens]; copied by the host, written by no kernel (dependent_launch.cuh)
  KeyPages pages;
  int64_t tokens;
  int heads, kv_heads, head_dim;
};
void launch_append_keys_values(cudaStream_t stream, const AppendKeysValuesArgs& args, DType act);
// The rounding of keys and values to fp8: into the pages, or, without pages, in place.
void launch_round_keys_values(cudaStream_t stream, const AppendKeysValuesArgs& args, DType act);

constexpr int kNoWindow = std::numeric_limits<int>::max();

struct AttentionArgs {
  const void* qkv;           // [tokens, columns]: query, key and value heads, then the gates
  int64_t columns;           // AttentionShape::qkv_columns()
  const int32_t* positions;  // [tokens]
  void* out;                 // [tokens, heads head_dim]
  int64_t tokens;
  int heads, kv_heads, head_dim;
  float scale;             // 1 / sqrt(head_dim)
  int output_tokens = 0;   // Batch::output_tokens
  int window = kNoWindow;  // a token reads the last `window` positions, itself included
  // Without pages, the tokens are whole samples, and keys and values are those of qkv. With pages, the tokens from
  // pages.singles on are computed, and keys and values are those of the cache.
  KeyPages pages = {};
};
void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act);  // bf16, fp16
void launch_attention_simt(cudaStream_t stream, const AttentionArgs& args);            // fp32

// Multiplies each head of out by the sigmoid of its gate, in place.
struct GateHeadsArgs {
  const void* qkv;  // [tokens, columns], whose last `heads` columns are the gates
  int64_t columns;
  void* out;  // [tokens, heads head_dim]
  int64_t tokens;
  int heads, head_dim;
};
void launch_gate_heads(cudaStream_t stream, const GateHeadsArgs& args, DType act);

// The bits of attention_mma in less time, on Hopper, for the arrays and sizes that attention_wgmma_takes. A thread
// block on each SM takes units of work from the counter *next_unit, which is 0 between launches.
bool attention_wgmma_takes(const AttentionArgs& args);
void launch_attention_wgmma(cudaStream_t stream, const AttentionArgs& args, DType act, int multiprocessors,
                            int32_t* next_unit);
// If no sample is longer than this, attention_mma is faster or about as fast: its tiles have fewer queries.
constexpr int64_t kMaxShortSample = 32;

// For cached_attention of the first pages.singles tokens, each of which is its sequence's only one in the batch.
struct CachedAttentionDecodeArgs {
  AttentionArgs attention;
  int64_t max_length;  // no sequence is longer
  // Where the results of long sequences' splits are merged: partial_floats floats, and kDecodeCounters counters, which
  // are 0 between launches. If a sequence finds no room there, one block processes all its splits, slowly.
  float* partials;
  int partial_floats;
  int32_t* counters;
  int multiprocessors;
};
constexpr int kDecodePartialFloats = 16 << 20;
constexpr int64_t kDecodeCounters = int64_t{1} << 16;
void launch_cached_attention_decode_mma(cudaStream_t stream, const CachedAttentionDecodeArgs& args,
                                        DType act);                                                    // bf16, fp16
void launch_cached_attention_decode_simt(cudaStream_t stream, const CachedAttentionDecodeArgs& args);  // fp32

}  // namespace lfm2
