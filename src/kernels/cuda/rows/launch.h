// The launchers of the kernels in this folder (common/launchers.h). What they compute is defined in kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/any_array.h"
#include "kernels/cuda/common/launchers.h"
#include "kernels/cuda/common/limits.h"

namespace lfm2 {

void launch_embed(cudaStream_t stream, const int32_t* ids, int64_t tokens, AnyArray table, int64_t vocab,
                  int64_t hidden, void* out, DType act);

void launch_insert_drawn(cudaStream_t stream, int32_t* ids, int64_t tokens, const int32_t* drawn, int64_t draws);

// `triggers_late`: the kernel triggers the next one after its own wait. So, before its own wait, the next kernel may
// read what was written before this kernel (Visible::kBeforeWait).
void launch_gather_rows(cudaStream_t stream, const void* x, int64_t x_rows, const int32_t* rows, int64_t count,
                        int64_t row_bytes, void* out, bool triggers_late);

// The scales of rows that are copied: one for each of `groups`, `from` [groups, from_stride] and `to` [groups,
// to_stride].
struct CopiedScales {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t from_stride = 0, to_stride = 0;
  int groups = 0;
};
// Copies row i of x [count, row] to the rows targets [count, copies] of out, with its scales if it has any. Each target
// occurs once. The kernel triggers the next one after its own wait; returns when later kernels may read what was
// written before this kernel.
Visible launch_scatter_rows(cudaStream_t stream, const void* x, const int32_t* targets, int64_t count, int copies,
                            int64_t row_bytes, void* out, const CopiedScales& scales = {});

// Copies words of 4 bytes, which lie on 4 bytes: at least one. The GPU must reach host memory, as it does that of
// Backend::allocate_host.
void launch_copy_words(cudaStream_t stream, void* to, const void* from, int words);

// With `rounded` rows, these receive the result, rounded to the type `act` and then to fp8, instead of out.
void launch_rms_norm(cudaStream_t stream, const void* x, AnyArray weight, float eps, int64_t rows, int64_t n, void* out,
                     DType act, const RoundedRows& rounded = {});

struct AddNormArgs {
  const void* x;
  AnyArray weight;
  float eps;
  void* residual;  // [rows, n], as x; changed in place, and not the memory of x
  int64_t rows, n;
  AnyArray next_weight;  // or none: then there is no second norm
  float next_eps;
  void* normed;           // [rows, n], the second norm
  RoundedRows rounded{};  // if there are elements, they receive the second norm instead, as in launch_rms_norm
};
// Adds rms_norm of x to the residual, and computes rms_norm of the result.
void launch_add_norm(cudaStream_t stream, const AddNormArgs& args, DType act);

// Copies x [rows, row_bytes] to the first columns of out [rows, out_row_bytes], a matrix that begins at any column.
void launch_put_columns(cudaStream_t stream, const void* x, int64_t rows, int64_t row_bytes, void* out,
                        int64_t out_row_bytes);

// Row i of out is x[sources[i]] rounded, or, without sources, x[i].
void launch_quantize(cudaStream_t stream, const void* x, const int32_t* sources, int64_t rows, int64_t n,
                     const RoundedRows& out, DType act);

struct ShortConvArgs {
  const void* bcz;           // [tokens, 3 hidden]
  AnyArray weight, bias;     // [hidden, taps], [hidden] or none
  const int32_t* positions;  // [tokens]; copied by the host, written by no kernel (dependent_launch.cuh)
  void* out;                 // [tokens, hidden]
  int64_t tokens, hidden, taps;
  RoundedRows rounded{};  // if there are elements, they receive the rows in fp8, and out is not written
};
// Whether `rounded` may be set for rows of `act`: three taps, and a block has room for whole rows.
bool short_conv_rounds(int64_t hidden, int64_t taps, DType act);
void launch_short_conv(cudaStream_t stream, const ShortConvArgs& args, DType act);

// The states from which the convolution of each sequence continues.
struct CachedConvArgs {
  const int32_t *sequence_of, *offsets;  // [tokens], [sequences + 1]
  const int32_t* here;                   // [sequences]: see Batch; null: all are 0
  const int32_t* rows;                   // [sequences, 2]: the row to read, the row to write
  float* states;                         // [rows, taps - 1, hidden]
  // The states at the ends of pages: see ConvCache. page_table [sequences, max_pages].
  const int32_t* page_table;
  int max_pages, page_size;  // page_size 0: no such states
  int64_t first_page_row;
};
void launch_cached_short_conv(cudaStream_t stream, const ShortConvArgs& args, const CachedConvArgs& cache, DType act);

// RoPE's inverse frequencies, rounded as transformers rounds them. The struct is passed as a kernel argument.
struct RopeFrequencies {
  float values[kMaxHeadDim / 2];
};

struct QkNormRopeArgs {
  void* qkv;        // [tokens, columns], of which the first (heads + 2 kv_heads) head_dim are changed in place
  int64_t columns;  // AttentionShape::qkv_columns()
  AnyArray q_weight, k_weight;
  const int32_t* positions;
  float eps;
  int64_t tokens;
  int heads, kv_heads, head_dim;
};
// With `rounds`, keys and values are then rounded to fp8 in place. Returns false if the caller still has to round them:
// for heads that only the kernel for any heads supports.
bool launch_qk_norm_rope(cudaStream_t stream, const QkNormRopeArgs& args, const RopeFrequencies& frequencies, DType act,
                         bool rounds);

// Converts weights to another type when they are loaded. This is not an operator.
void launch_convert(cudaStream_t stream, AnyArray source, void* target, DType to, int64_t count);

// The result of cudaFuncGetAttributes for one of our kernels: an error if this build has no code for the GPU.
cudaError_t probe_kernels();

}  // namespace lfm2
