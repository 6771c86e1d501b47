// Where the keys and values of a token are in a cache, and the checks of the operators that write and read them.
#pragma once

#include "kernels/ops.h"

namespace lfm2 {

inline void check_qkv(const Tensor& qkv, AttentionShape shape, const Batch& batch) {
  expect(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.head_dim % 2 == 0, "attention: heads");
  expect(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == shape.qkv_columns(), "attention: qkv");
  expect(batch.positions.dtype == DType::kI32 && batch.positions.numel() == batch.tokens, "attention: positions");
}

inline void check_cache(const Tensor& qkv, AttentionShape shape, const Batch& batch, const KeyValueCache& cache) {
  check_qkv(qkv, shape, batch);
  const Tensor& keys = cache.keys;
  expect(keys.rank == 4 && keys.dim(2) == shape.kv_heads && keys.dim(3) == shape.head_dim &&
             keys.dtype == (shape.fp8_cache ? DType::kF8 : qkv.dtype) && cache.values.dims == keys.dims &&
             cache.values.dtype == keys.dtype,
         "KeyValueCache: shapes");
  expect(!shape.fp8_cache || (cache.key_scales != nullptr && cache.value_scales != nullptr), "KeyValueCache: scales");
  expect(batch.offsets.numel() == batch.sequences + 1 && batch.sequence_of.numel() == batch.tokens &&
             batch.page_table.rank == 2 && batch.page_table.dim(0) == batch.sequences,
         "Batch: no caches");
}

// The row of this position in the cache, seen as [pages * page_size, kv_heads * head_dim].
inline int64_t cache_row(const Batch& batch, const KeyValueCache& cache, int64_t sequence, int64_t position) {
  const int64_t pages = cache.keys.dim(0), page_size = cache.keys.dim(1), width = batch.page_table.dim(1);
  expect(sequence >= 0 && sequence < batch.sequences, "KeyValueCache: a sequence that does not exist");
  expect(position >= 0 && position / page_size < width, "KeyValueCache: a position beyond the page table");
  const int32_t id = batch.page_table.as<const int32_t>()[sequence * width + position / page_size];
  expect(id >= 0 && id < pages, "KeyValueCache: a page that does not exist");
  return id * page_size + position % page_size;
}

}  // namespace lfm2
