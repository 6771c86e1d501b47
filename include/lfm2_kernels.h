/* General tensor operators on CPU and CUDA: concat, bias, map, zip, reduce, matmul, causal convolution.
 *
 * Every function returns a status: LFM2_OK, or the reason why nothing was done (lfm2_status_string gives a line of
 * text). Tensors are views of memory that the caller owns; only lfm2_allocate allocates memory of a GPU. Calls with
 * tensors of a GPU are queued on `stream` (a cudaStream_t; NULL: the default stream) and return at once; they may be
 * captured into a CUDA graph. Calls with tensors of the CPU ignore `stream`. All tensors of a call have one dtype and
 * one device. Elements are computed in fp32 (some sums on the CPU in double) and rounded once, to nearest even. Results
 * have the same bits in every run.
 *
 * The library keeps no state; every function may be called from any thread. */
#ifndef LFM2_KERNELS_H
#define LFM2_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LFM2_API
#else
#define LFM2_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---- */

enum {
  LFM2_OK = 0,
  LFM2_INVALID = 1,        /* a null pointer, or a dtype, device, layout, rank, axis or function that is not allowed */
  LFM2_SHAPE_MISMATCH = 2, /* each tensor is well formed, but their shapes do not belong together */
  LFM2_NO_CUDA = 3,        /* a tensor is on a GPU, but the library was built without CUDA */
  LFM2_NO_MEMORY = 4,      /* not enough memory on the host */
  LFM2_TOO_LARGE = 5,      /* a GPU would need more than 2^31 - 1 thread blocks in one launch */
  LFM2_CUDA_ERROR = 1000   /* LFM2_CUDA_ERROR + n: error n of CUDA, from a launch, a copy or an allocation */
};

LFM2_API const char* lfm2_status_string(int status); /* never NULL */
LFM2_API const char* lfm2_kernels_version(void);     /* "0.1.0" */

/* ---- tensors ---- */

enum { LFM2_FP32 = 0, LFM2_BF16 = 1, LFM2_FP16 = 2 }; /* dtype */
enum { LFM2_CPU = -1 };                               /* device; 0, 1, ... is a GPU as CUDA numbers them */
enum { LFM2_MAX_RANK = 8 };

/* Element (i0, i1, ...) lies at data + (i0 strides[0] + i1 strides[1] + ...) elements. Strides may be zero or negative;
 * in tensors that are written, no two elements may share a place. "Dense" means row-major without gaps. data may be
 * NULL where an extent is 0, and must be aligned to the size of its elements. */
typedef struct lfm2_tensor {
  void* data;
  int32_t dtype;
  int32_t device;
  int32_t rank; /* 0 to LFM2_MAX_RANK */
  int64_t dims[LFM2_MAX_RANK];
  int64_t strides[LFM2_MAX_RANK]; /* in elements */
} lfm2_tensor;

/* Fills a dense tensor. */
LFM2_API int lfm2_tensor_dense(lfm2_tensor* tensor, void* data, int dtype, int device, int rank, const int64_t* dims);
/* The index of the element with this row-major number, and the position of an index in elements from data. index:
 * [rank] */
LFM2_API int lfm2_index(const lfm2_tensor* tensor, int64_t ordinal, int64_t* index);
LFM2_API int lfm2_position(const lfm2_tensor* tensor, const int64_t* index, int64_t* position);
/* The shape of a (op) b by NumPy's rules. dims: [LFM2_MAX_RANK] */
LFM2_API int lfm2_broadcast_shape(const lfm2_tensor* a, const lfm2_tensor* b, int* rank, int64_t* dims);

/* ---- concat: rank 1 to 4, dense ---- */

/* output = the n inputs, one after the other along `axis` (0 <= axis < rank). */
LFM2_API int lfm2_concat(const lfm2_tensor* inputs, int64_t n, const lfm2_tensor* output, int axis, void* stream);

enum { LFM2_ADD = 0, LFM2_OVERWRITE = 1 }; /* mode */
/* input_gradients[i] += its slice of output_gradient; with LFM2_OVERWRITE = instead of +=. */
LFM2_API int lfm2_concat_backward(const lfm2_tensor* output_gradient, const lfm2_tensor* input_gradients, int64_t n,
                                  int axis, int mode, void* stream);

/* ---- bias: [rows, columns], dense ---- */

enum { LFM2_NONE = 0, LFM2_RELU = 1, LFM2_SILU = 2, LFM2_GELU = 3 }; /* activation */
/* output[r, c] = activation(input[r, c] + bias[c])                         where rows_per_sample is 0: row-wise
 *              = activation(input[r, c] + bias[r mod rows_per_sample])     otherwise: column-wise
 * The output may be the input. rows must be a multiple of rows_per_sample, or the status is LFM2_SHAPE_MISMATCH. */
LFM2_API int lfm2_bias(const lfm2_tensor* input, const lfm2_tensor* bias, const lfm2_tensor* output,
                       int64_t rows_per_sample, int activation, void* stream);
/* Gradients with no activation: input_gradient (may be NULL, or output_gradient itself) = output_gradient;
 * bias_gradient = its sum over the elements that share a bias. workspace: see "workspaces". */
LFM2_API int lfm2_bias_backward(const lfm2_tensor* output_gradient, const lfm2_tensor* input_gradient,
                                const lfm2_tensor* bias_gradient, int64_t rows_per_sample, void* workspace,
                                size_t workspace_bytes, void* stream);
LFM2_API int lfm2_bias_backward_workspace(const lfm2_tensor* output_gradient, int64_t rows_per_sample, size_t* bytes);

/* ---- map, zip: any strides, rank 0 to 8, NumPy broadcasting to the output's shape ---- */

enum { /* unary */
       LFM2_IDENTITY = 0,
       LFM2_NEG,
       LFM2_ABS,
       LFM2_SIGN,
       LFM2_SQUARE,
       LFM2_SQRT,
       LFM2_RSQRT,
       LFM2_INV,
       LFM2_EXP,
       LFM2_LOG,
       LFM2_SIN,
       LFM2_COS,
       LFM2_TANH,
       LFM2_SIGMOID,
       LFM2_MAP_RELU,
       LFM2_MAP_SILU,
       LFM2_MAP_GELU
};
LFM2_API int lfm2_map(int function, const lfm2_tensor* input, const lfm2_tensor* output, void* stream);

enum { /* binary; comparisons give 1 or 0 */
       LFM2_PLUS = 0,
       LFM2_MINUS,
       LFM2_TIMES,
       LFM2_DIVIDE,
       LFM2_MAXIMUM,
       LFM2_MINIMUM,
       LFM2_POWER,
       LFM2_LT,
       LFM2_LE,
       LFM2_GT,
       LFM2_GE,
       LFM2_EQ,
       LFM2_NE
};
LFM2_API int lfm2_zip(int function, const lfm2_tensor* a, const lfm2_tensor* b, const lfm2_tensor* output,
                      void* stream);

/* ---- reduce: any strides; the axes of a bit mask (bit 0: axis 0) ---- */

enum { LFM2_SUM = 0, LFM2_PROD, LFM2_MAX, LFM2_MIN, LFM2_MEAN }; /* function */
/* output: the input's shape with extents of 1 along the reduced axes, or without them. Without elements, sum is 0,
 * prod is 1 and mean is NaN; max and min give LFM2_INVALID. */
LFM2_API int lfm2_reduce(int function, const lfm2_tensor* input, const lfm2_tensor* output, uint32_t axes,
                         void* workspace, size_t workspace_bytes, void* stream);
LFM2_API int lfm2_reduce_workspace(const lfm2_tensor* input, uint32_t axes, size_t* bytes);

/* ---- matmul: any strides, rank 2 to 8, leading axes broadcast ---- */

/* output[..., i, j] = sum over l of a[..., i, l] b[..., l, j]; a transposed operand is a view with exchanged strides.
 */
LFM2_API int lfm2_matmul(const lfm2_tensor* a, const lfm2_tensor* b, const lfm2_tensor* output, void* stream);

/* ---- causal convolution, depthwise: x, y [samples, channels, time]; w [channels, filter]; bias [channels] or NULL
 * ---- */

/* y[n, c, t] = activation(bias[c] + sum over j of w[c, j] x[n, c, t - (filter - 1) + j]), x being 0 before time 0. */
LFM2_API int lfm2_causal_conv1d(const lfm2_tensor* x, const lfm2_tensor* w, const lfm2_tensor* bias,
                                const lfm2_tensor* y, int activation, void* stream);
/* The same, computed as a matrix product, for dense tensors only; needs a workspace on either device. The sums are
 * rounded to the dtype before bias and activation, and again after them. An infinity or NaN of x reaches all channels
 * at its times, through 0 * x. */
LFM2_API int lfm2_causal_conv1d_gemm(const lfm2_tensor* x, const lfm2_tensor* w, const lfm2_tensor* bias,
                                     const lfm2_tensor* y, int activation, void* workspace, size_t workspace_bytes,
                                     void* stream);
LFM2_API int lfm2_causal_conv1d_gemm_workspace(const lfm2_tensor* x, const lfm2_tensor* w, size_t* bytes);
/* The two operands of that product: unfolded [samples, time, filter channels], element [n, t, j channels + c] = x[n, c,
 * t - (filter - 1) + j]; expanded [channels, filter channels], element [c, j channels + c] = w[c, j], zero elsewhere.
 */
LFM2_API int lfm2_causal_conv1d_unfold(const lfm2_tensor* x, int64_t filter, const lfm2_tensor* unfolded, void* stream);
LFM2_API int lfm2_causal_conv1d_expand(const lfm2_tensor* w, const lfm2_tensor* expanded, void* stream);

/* ---- workspaces ----
 * A workspace is memory on the tensors' device, aligned to 16 bytes, and at least as large as the function's
 * ..._workspace says, which depends only on shape, strides, dtype and device. It may be NULL where that is 0. It may be
 * used for something else when the call's work on the stream is done. */

/* ---- devices, for callers that do not use CUDA themselves ---- */

LFM2_API int lfm2_device_count(void); /* the number of GPUs; 0 without CUDA */
/* Memory of a GPU, or of the CPU with LFM2_CPU, aligned to 256 bytes. */
LFM2_API int lfm2_allocate(int device, size_t bytes, void** memory);
LFM2_API int lfm2_release(int device, void* memory);
/* Copies between `device` and the host, in any direction; returns when the bytes are there. */
LFM2_API int lfm2_copy(int device, void* target, const void* source, size_t bytes, void* stream);
LFM2_API int lfm2_synchronize(int device, void* stream);
/* The GPU that holds a pointer's memory, or LFM2_CPU. */
LFM2_API int lfm2_pointer_device(const void* pointer, int* device);

#ifdef __cplusplus
}
#endif

#endif /* LFM2_KERNELS_H */
