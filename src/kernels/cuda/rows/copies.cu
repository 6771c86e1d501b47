// Kernels that only move elements, converting where types differ: convert, embed, gather_rows.
#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"

namespace lfm2 {

namespace {

template <class T>
__global__ void convert_kernel(AnyArray source, T* target, int64_t count, bool vector) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kOctet;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kOctet; i < count; i += step) {
    const bool whole = vector && i + kOctet <= count;
    store_octet(target + i, load_octet(source, i, count - i, whole), count - i, whole);
  }
}

// One block a token, where the table has another type.
template <class T>
__global__ void embed_kernel(const int32_t* ids, AnyArray table, int64_t vocab, int64_t hidden, T* out, bool vector) {
  const int64_t token = blockIdx.x;
  wait_for_previous();
  let_next_start();
  const int64_t id = ids[token];
  device_expect(id >= 0 && id < vocab);
  for (int64_t c = threadIdx.x * kOctet; c < hidden; c += blockDim.x * kOctet)
    store_octet(out + token * hidden + c, load_octet(table, id * hidden + c, hidden - c, vector), hidden - c, vector);
}

// A warp takes a row, counted in words of the widest type that divides it, and has kRowWords of each lane in flight.
constexpr int kRowWarps = 8, kRowWords = 8;
template <class Word>
__global__ void __launch_bounds__(kRowWarps * 32)
    gather_rows_kernel(const Word* x, int64_t x_rows, const int32_t* rows, int64_t count, int64_t words, Word* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  wait_for_previous();
  let_next_start();
  if (i >= count) return;
  const int64_t row = rows[i];
  device_expect(row >= 0 && row < x_rows);
  for (int64_t first = threadIdx.x % 32; first < words; first += 32 * kRowWords) {
    Word flying[kRowWords];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k)
      if (first + 32 * k < words) flying[k] = x[row * words + first + 32 * k];
#pragma unroll
    for (int k = 0; k < kRowWords; ++k)
      if (first + 32 * k < words) out[i * words + first + 32 * k] = flying[k];
  }
}

template <class Word>
void launch_gather_words(cudaStream_t stream, const void* x, int64_t x_rows, const int32_t* rows, int64_t count,
                         int64_t row_bytes, void* out) {
  launch_dependent("gather_rows_kernel", gather_rows_kernel<Word>,
                   {static_cast<unsigned>(ceil_divide(count, kRowWarps)), kRowWarps * 32}, stream,
                   static_cast<const Word*>(x), x_rows, rows, count, row_bytes / static_cast<int64_t>(sizeof(Word)),
                   static_cast<Word*>(out));
}

}  // namespace

cudaError_t probe_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, convert_kernel<float>);
}

void launch_convert(cudaStream_t stream, AnyArray source, void* target, DType to, int64_t count) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  const bool vector = on_16_bytes(source.data) && on_16_bytes(target);
  const int64_t blocks = std::min<int64_t>(ceil_divide(count, kThreads * kOctet), 65536);
  with_device_type(to, [&](auto zero) {
    using T = decltype(zero);
    convert_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(source, static_cast<T*>(target), count,
                                                                           vector);
  });
  check_launch("convert_kernel");
}

void launch_embed(cudaStream_t stream, const int32_t* ids, int64_t tokens, AnyArray table, int64_t vocab,
                  int64_t hidden, void* out, DType act) {
  if (tokens == 0 || hidden == 0) return;
  if (table.dtype == act)
    return launch_gather_rows(stream, table.data, vocab, ids, tokens, hidden * static_cast<int64_t>(size_bytes(act)),
                              out);
  const bool vector = hidden % kOctet == 0 && on_16_bytes(table.data) && on_16_bytes(out);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("embed_kernel", embed_kernel<T>,
                     {static_cast<unsigned>(tokens), row_threads(ceil_divide(hidden, kOctet))}, stream, ids, table,
                     vocab, hidden, static_cast<T*>(out), vector);
  });
}

void launch_gather_rows(cudaStream_t stream, const void* x, int64_t x_rows, const int32_t* rows, int64_t count,
                        int64_t row_bytes, void* out) {
  if (count == 0 || row_bytes == 0) return;
  if (row_bytes % 16 == 0 && on_16_bytes(x) && on_16_bytes(out))
    launch_gather_words<uint4>(stream, x, x_rows, rows, count, row_bytes, out);
  else
    launch_gather_words<uint16_t>(stream, x, x_rows, rows, count, row_bytes, out);
}

}  // namespace lfm2
