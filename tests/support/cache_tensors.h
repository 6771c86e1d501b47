// The tensors of a cache of keys and values, which begin with all bits set: NaN in every type, and no scale.
#pragma once

#include "kernels/ops.h"
#include "support/host_tensor.h"

namespace lfm2::test {

// Held: HostTensor, or DeviceTensor of cuda/gpu.h.
template <class Held>
struct CacheTensors {
  CacheTensors(AttentionShape shape, DType act, int64_t pages, int64_t page_size)
      : keys(heads(shape, act, pages, page_size)),
        values(heads(shape, act, pages, page_size)),
        key_scales(scales(shape, pages, page_size)),
        value_scales(scales(shape, pages, page_size)),
        fp8(shape.fp8_cache) {}
  KeyValueCache cache() const {
    if (!fp8) return {keys, values};
    return {keys, values, key_scales->template as<uint8_t>(), value_scales->template as<uint8_t>()};
  }

  Held keys, values;              // [pages, page_size, kv_heads, head_dim]
  Held key_scales, value_scales;  // [pages, page_size, kv_heads] bytes
  bool fp8;

 private:
  static HostTensor heads(AttentionShape shape, DType act, int64_t pages, int64_t page_size) {
    return HostTensor(shape.fp8_cache ? DType::kF8 : act, {pages, page_size, shape.kv_heads, shape.head_dim});
  }
  static HostTensor scales(AttentionShape shape, int64_t pages, int64_t page_size) {
    return HostTensor(DType::kF8, {shape.fp8_cache ? pages : 0, page_size, shape.kv_heads});
  }
};

}  // namespace lfm2::test
