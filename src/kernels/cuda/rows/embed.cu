// embed: the rows of a table that the token ids name, in the type of the activations. Rows that have this type already
// are copied by gather_rows.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/rows/launch.h"

namespace lfm2 {

namespace {

// - operands: ids [tokens] int32, table [vocab, hidden] of any type, out [tokens, hidden] of type T.
// - block: one token.
// - thread: octets of its row, blockDim.x apart.
// - alignment: `vector`: hidden in octets, table and out on 16 bytes; otherwise any.
template <class T>
__global__ void embed_kernel(const int32_t* ids, AnyArray table, int64_t vocab, int64_t hidden, T* out, bool vector) {
  pdl_trigger();
  const int64_t token = blockIdx.x;
  pdl_wait();
  const int64_t id = ids[token];
  device_expect(id >= 0 && id < vocab);
  for (int64_t c = threadIdx.x * kOctet; c < hidden; c += blockDim.x * kOctet)
    store_octet(out + token * hidden + c, load_octet(table, id * hidden + c, hidden - c, vector), hidden - c, vector);
}

}  // namespace

void launch_embed(cudaStream_t stream, const int32_t* ids, int64_t tokens, AnyArray table, int64_t vocab,
                  int64_t hidden, void* out, DType act) {
  if (tokens == 0 || hidden == 0) return;
  if (table.dtype == act)
    return launch_gather_rows(stream, table.data, vocab, ids, tokens, hidden * static_cast<int64_t>(size_bytes(act)),
                              out, /*triggers_late=*/false);
  const bool vector = hidden % kOctet == 0 && on_16_bytes(table.data) && on_16_bytes(out);
  with_device_type(act, [&](auto zero) {
    using T = decltype(zero);
    launch_dependent("embed_kernel", embed_kernel<T>, {tokens, row_threads(ceil_divide(hidden, kOctet))}, stream, ids,
                     table, vocab, hidden, static_cast<T*>(out), vector);
  });
}

}  // namespace lfm2
