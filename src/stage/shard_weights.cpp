// Reads tensors piece by piece, checks them, hands them to the backend.
#include "stage/shard_weights.h"

namespace lfm2 {

DType held_dtype(DType stored, DType compute, bool keep_fp32) {
  if (keep_fp32) return DType::kF32;
  return compute == DType::kF32 ? stored : compute;
}

Tensor ShardWeights::load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims) {
  std::vector<const ShardTensor*> parts;
  DType dtype = DType::kF32;
  for (const std::string& name : names) {
    const ShardTensor& part = shards_.find(name);
    const DType held = held_dtype(part.dtype, compute_, part.spec.keep_fp32);
    if (parts.empty()) dtype = held;
    if (held != dtype) dtype = DType::kF32;  // parts of different types: fp32 holds both exactly
    parts.push_back(&part);
  }
  Tensor tensor(nullptr, dtype, dims);
  buffers_.push_back(backend_.allocate(tensor.bytes()));
  tensor.data = buffers_.back().data();
  int64_t first = 0;
  for (const ShardTensor* part : parts) {
    const auto element = static_cast<int64_t>(size_bytes(part->dtype));
    shards_.read(*part, [&](uint64_t first_byte, std::span<const std::byte> bytes) {
      backend_.upload(tensor, first + static_cast<int64_t>(first_byte) / element, part->dtype, bytes.data(),
                      static_cast<int64_t>(bytes.size()) / element);
      progress_.add(bytes.size());
    });
    first += static_cast<int64_t>(numel(part->spec.dims));
    loaded_.insert(part->spec.name);
  }
  expect(first == tensor.numel(), "ShardWeights::load: the parts do not fill the tensor");
  bytes_ += tensor.bytes();
  return tensor;
}

void ShardWeights::expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const {
  for (const ShardTensor* tensor : tensors)
    if (!loaded_.contains(tensor->spec.name))
      throw Error(ExitCode::kSoftware, fmt::format("tensor {} was never read", tensor->spec.name));
}

std::vector<const ShardTensor*> stage_tensors(const ShardSet& shards, LayerRange layers, bool first_stage,
                                              bool last_stage) {
  std::vector<const ShardTensor*> tensors;
  for (const ShardTensor& tensor : shards.tensors()) {
    const int64_t layer = tensor.spec.layer;
    const bool needed = layer == kEmbeddingLayer ? first_stage || (last_stage && shards.config().tied_embedding)
                        : layer == head_layer(shards.config()) ? last_stage
                                                               : layer >= layers.first && layer < layers.end();
    if (needed) tensors.push_back(&tensor);
  }
  return tensors;
}

}  // namespace lfm2
