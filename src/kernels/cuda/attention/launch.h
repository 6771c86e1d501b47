// The launchers of the kernels in this folder: each takes raw device pointers and sizes that CudaOps has checked,
// enqueues on `stream` and returns; none allocates or waits, so that steps can be recorded as graphs. Mathematics:
// kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace lfm2 {

// The cache of a batch of sequences and the batch's arrays, which no kernel writes.
struct KeyPages {
  void *keys, *values;         // [pages, page, kv_heads, head_dim]
  const int32_t* page_table;   // [sequences, max_pages]
  const int32_t* sequence_of;  // [tokens]
  const int32_t* offsets;      // [sequences + 1]
  int max_pages, page;
  int64_t singles;  // so many sequences at the front have one token each
};

struct AppendKeysValuesArgs {
  const void* qkv;           // [tokens, (heads + 2 kv_heads) head_dim]
  const int32_t* positions;  // [tokens]; the host's: no kernel writes them (dependent_launch.cuh)
  KeyPages pages;
  int64_t tokens;
  int heads, kv_heads, head_dim;
};
void launch_append_keys_values(cudaStream_t stream, const AppendKeysValuesArgs& args, DType act);

struct AttentionArgs {
  const void* qkv;           // [tokens, (heads + 2 kv_heads) head_dim]
  const int32_t* positions;  // [tokens]
  void* out;                 // [tokens, heads head_dim]
  int64_t tokens;
  int heads, kv_heads, head_dim;
  float scale;  // 1 / sqrt(head_dim)
  // Without pages: whole samples, keys and values in qkv. With them: the tokens from pages.singles on.
  KeyPages pages = {};
};
void launch_attention_mma(cudaStream_t stream, const AttentionArgs& args, DType act);  // bf16, fp16
void launch_attention_simt(cudaStream_t stream, const AttentionArgs& args);            // fp32

// cached_attention of the first pages.singles tokens, which are a sequence each.
struct CachedAttentionDecodeArgs {
  AttentionArgs attention;
  int64_t max_length;  // of a sequence
  // Where results of parts of long sequences meet: kDecodePartialFloats floats, and kDecodeCounters counters, which are
  // 0 between launches.
  float* partials;
  int32_t* counters;
  int multiprocessors;
};
constexpr int64_t kDecodePartialFloats = int64_t{8} << 20;
constexpr int64_t kDecodeCounters = int64_t{1} << 16;
void launch_cached_attention_decode_mma(cudaStream_t stream, const CachedAttentionDecodeArgs& args,
                                        DType act);                                                    // bf16, fp16
void launch_cached_attention_decode_simt(cudaStream_t stream, const CachedAttentionDecodeArgs& args);  // fp32

}  // namespace lfm2
