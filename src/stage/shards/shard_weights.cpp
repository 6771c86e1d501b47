// Lays tensors out in device memory, and asks the reader threads to fill them.
#include "stage/shards/shard_weights.h"

#include <algorithm>
#include <limits>

#include "kernels/gate_up.h"
#include "stage/shards/fp8_tensors.h"

namespace lfm2 {

DType held_dtype(const ShardSet& shards, const ShardTensor& tensor, DType compute) {
  if (tensor.spec.keep_fp32) return DType::kF32;
  if (shards.config().fp8_weights.contains(tensor.spec.name)) return DType::kF8;
  return compute == DType::kF32 && tensor.dtype != DType::kF8 ? tensor.dtype : compute;
}

ShardWeights::ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress, int readers)
    : shards_(shards),
      backend_(backend),
      compute_(compute),
      memory_(backend),
      readers_(shards, backend, progress, readers) {}

Tensor ShardWeights::load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) {
  std::vector<const ShardTensor*> parts;
  DType dtype = DType::kF32;
  for (const std::string& name : names) {
    const ShardTensor& part = shards_.find(name);
    const DType held = held_dtype(shards_, part, compute_);
    if (parts.empty()) dtype = held;
    expect((held == DType::kF8) == (dtype == DType::kF8), "ShardWeights::load: fp8 beside other types");
    if (held != dtype) dtype = DType::kF32;  // if the parts have different types, fp32 holds each exactly
    parts.push_back(&part);
    asked_for_.insert(name);
    if (const ShardTensor* scale = shards_.scale_of(part)) asked_for_.insert(scale->spec.name);
  }
  Tensor tensor = memory_.allocate(dtype, dims);
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t room = static_cast<int64_t>(held_elements(parts[i]->spec));
    if (rows == Rows::kBehindOneAnother) {
      add_part(*parts[i], tensor, first);
      first += room;
    } else {
      const bool up = i % 2 == 1;
      add_gate_or_up(*parts[i], tensor, first + (up ? kGateUpBlock * tensor.k() : 0));
      if (up) first += 2 * room;
    }
  }
  expect(first == tensor.numel(), "ShardWeights::load: the parts do not fill the tensor");
  if (dtype == DType::kF8) add_scales(parts, tensor, rows);
  return tensor;
}

bool ShardWeights::load_together(const std::vector<std::string>& names) const {
  return are_loaded_together(shards_.config(), names);
}

// A stored scale of 128 rows becomes one scale for each 8 rows, so that rows of several weights, and blocks of gate and
// up rows, can be joined. Scales are read before the weights in the queue.
void ShardWeights::add_scales(const std::vector<const ShardTensor*>& weights, Tensor& tensor, Rows rows) {
  const bool by_block = shards_.config().quantization.scheme == Quantization::Scheme::kBlock;
  const bool in_eights = std::all_of(weights.begin(), weights.end(), [&](const ShardTensor* weight) {
    return rows == Rows::kGateUp || weight->spec.dims[0] % kGateUpBlock == 0;
  });
  tensor.scales.rows = by_block && in_eights ? kGateUpBlock : 1;
  tensor.scales.group = by_block ? kScaleBlock : 0;
  tensor.scales.stride = tensor.dim(tensor.rank - 2) / tensor.scales.rows;
  const int64_t matrices = tensor.rank < 3 ? 1 : tensor.dim(0);
  tensor.scales.data =
      memory_.allocate(DType::kF32, {matrices, tensor.scales.groups(tensor.k()), tensor.scales.stride}).as<float>();
  readers_.add({nullptr, tensor, {}, std::numeric_limits<int64_t>::max(), weights, rows});
}

Tensor ShardWeights::load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                                       Rows rows) {
  const Tensor tensor = backend_.prepacked(load(names, dims, rows));
  if (tensor.tiled) tiled_.push_back(tensor);
  return tensor;
}

// Writes the part's rows from element `first` of the tensor on. If rows of the tensor are longer, zeros follow each
// row.
void ShardWeights::add_part(const ShardTensor& part, const Tensor& tensor, int64_t first) {
  const auto count = static_cast<int64_t>(numel(part.spec.dims)), padding = static_cast<int64_t>(part.spec.padding);
  if (padding == 0) return readers_.add({&part, tensor, {.first = first}, count});
  const auto columns = static_cast<int64_t>(part.spec.dims.back()), held = tensor.k();
  readers_.add({&part, tensor, {.first = first, .block = columns, .stride = held}, count});
  readers_.add({nullptr, tensor, {.first = first + columns, .block = held - columns, .stride = held}, padding});
}

// Writes the part's rows to every other gate/up block from element `first` on; zeros pad the last block.
void ShardWeights::add_gate_or_up(const ShardTensor& part, const Tensor& tensor, int64_t first) {
  const auto count = static_cast<int64_t>(numel(part.spec.dims)), padding = static_cast<int64_t>(part.spec.padding);
  const int64_t block = kGateUpBlock * tensor.k();
  readers_.add({&part, tensor, {.first = first, .block = block, .stride = 2 * block}, count});
  if (padding > 0)
    readers_.add({nullptr, tensor, {.first = first + count / block * 2 * block + count % block}, padding});
}

void ShardWeights::finish() {
  readers_.finish();
  backend_.prepack(tiled_);
  tiled_.clear();
}

void ShardWeights::expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const {
  for (const ShardTensor* tensor : tensors)
    if (!asked_for_.contains(tensor->spec.name))
      throw Error(ExitCode::kSoftware, fmt::format("tensor {} was never read", tensor->spec.name));
}

std::vector<const ShardTensor*> stage_tensors(const ShardSet& shards, std::span<const LayerRange> pieces) {
  const ModelConfig& config = shards.config();
  const bool first_stage = pieces.front().has_mixer(0), last_stage = pieces.back().has_feed_forward(config.layers - 1);
  const int64_t head = shards.stages().back().end();  // of the whole model, even if only its first layers run
  const bool has_head = last_stage && config.end == ModelEnd::kLmHead;
  const bool has_norm = last_stage && config.end != ModelEnd::kLastLayer;
  const auto held = [&](const TensorSpec& spec) {
    return std::any_of(pieces.begin(), pieces.end(), [&](const LayerRange& piece) {
      return in_feed_forward(spec) ? piece.has_feed_forward(spec.layer) : piece.has_mixer(spec.layer);
    });
  };
  std::vector<const ShardTensor*> tensors;
  for (const ShardTensor& tensor : shards.tensors()) {
    const int64_t layer = tensor.spec.layer;
    const bool needed = layer == kEmbeddingLayer ? first_stage || (has_head && config.tied_embedding)
                        : layer == head          ? (tensor.spec.name == kFinalNormName ? has_norm : has_head)
                                                 : held(tensor.spec);
    if (needed) tensors.push_back(&tensor);
  }
  return tensors;
}

uint64_t held_bytes(const ShardSet& shards, const std::vector<const ShardTensor*>& tensors, DType compute) {
  uint64_t bytes = 0;
  for (const ShardTensor* tensor : tensors) {
    if (is_scale(tensor->spec)) continue;  // counted with its weight
    const DType held = held_dtype(shards, *tensor, compute);
    bytes += held_elements(tensor->spec) * size_bytes(held);
    if (held == DType::kF8) bytes += sizeof(float) * held_scales(tensor->spec, shards.config().quantization.scheme);
  }
  return bytes;
}

}  // namespace lfm2
