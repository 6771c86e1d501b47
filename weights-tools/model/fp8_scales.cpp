#include "weights-tools/model/fp8_scales.h"

#include "base/error.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/model/copy.h"

namespace lfm2 {

Fp8Scales::Fp8Scales(const std::vector<uint64_t>& weight, Quantization::Scheme scheme) : columns(weight.at(1)) {
  const bool block = scheme == Quantization::Scheme::kBlock;
  rows = block ? kScaleBlock : 1;
  group = block ? kScaleBlock : columns;
  values.resize(((weight.at(0) - 1) / rows + 1) * ((columns - 1) / group + 1));
}

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
