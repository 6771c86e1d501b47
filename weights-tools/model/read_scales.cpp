#include "weights-tools/model/read_scales.h"

#include "base/error.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/model/copy.h"

namespace lfm2 {

Fp8Scales read_scales(const ModelSource& source, size_t weight) {
  const TensorSpec& spec = source.tensors().at(weight).spec;
  Fp8Scales scales(spec.dims, source.config().quantization.scheme);
  expect(source.tensors().at(weight + 1).spec.name == scale_name(spec.name), "read_scales: no scales follow");
  TensorReader reader(source, weight + 1, DType::kF32);
  std::span<std::byte> left = std::as_writable_bytes(std::span(scales.values));
  expect(left.size() == reader.left_bytes(), "read_scales: scales of another shape");
  while (!left.empty()) left = left.subspan(reader.next(left));
  return scales;
}

}  // namespace lfm2
