// Tensors are laid out here and filled by the reader threads.
#include "stage/shard_weights.h"

#include <algorithm>

namespace lfm2 {

DType held_dtype(DType stored, DType compute, bool keep_fp32) {
  if (keep_fp32) return DType::kF32;
  return compute == DType::kF32 ? stored : compute;
}

ShardWeights::ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress, int readers)
    : shards_(shards), backend_(backend), compute_(compute), memory_(backend), progress_(progress) {
  for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { reader_loop(); });
}

ShardWeights::~ShardWeights() {
  stop(nullptr);
  for (std::thread& reader : readers_)
    if (reader.joinable()) reader.join();
}

Tensor ShardWeights::load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) {
  std::vector<const ShardTensor*> parts;
  DType dtype = DType::kF32;
  for (const std::string& name : names) {
    const ShardTensor& part = shards_.find(name);
    const DType held = held_dtype(part.dtype, compute_, part.spec.keep_fp32);
    if (parts.empty()) dtype = held;
    if (held != dtype) dtype = DType::kF32;  // parts of different types: fp32 holds both exactly
    parts.push_back(&part);
  }
  const Tensor tensor = memory_.allocate(dtype, dims);
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    Task task{parts[i], tensor, {}};
    const auto count = static_cast<int64_t>(numel(parts[i]->spec.dims));
    if (rows == Rows::kBehindOneAnother) {
      task.place = {.first = first};
      first += count;
    } else {
      const int64_t columns = tensor.dim(tensor.rank - 1), block = kGateUpBlock * columns;
      const bool up = i % 2 == 1;
      task.place = {.first = first + (up ? block : 0), .block = block, .stride = 2 * block};
      if (up) first += 2 * count;
    }
    asked_for_.insert(parts[i]->spec.name);
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  expect(first == tensor.numel(), "ShardWeights::load: the parts do not fill the tensor");
  return tensor;
}

void ShardWeights::finish() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
    changed_.notify_all();
  }
  for (std::thread& reader : readers_) reader.join();
  if (error_) std::rethrow_exception(error_);
}

void ShardWeights::stop(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  complete_ = true;
  tasks_.clear();
  changed_.notify_all();
}

bool ShardWeights::take(Task& task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return complete_ || !tasks_.empty(); });
  if (tasks_.empty()) return false;
  task = std::move(tasks_.front());
  tasks_.pop_front();
  return true;
}

void ShardWeights::reader_loop() try {
  const std::unique_ptr<Loader> loader = backend_.create_loader();
  for (Task task; take(task);) read(task, *loader);
  loader->finish();
} catch (...) {
  stop(std::current_exception());
}

void ShardWeights::read(const Task& task, Loader& loader) {
  const auto element_bytes = static_cast<int64_t>(size_bytes(task.source->dtype));
  Checksum checksum;
  const auto total = static_cast<int64_t>(numel(task.source->spec.dims));
  const int64_t unit = std::max<int64_t>(task.place.block, 1);
  const int64_t most = static_cast<int64_t>(Loader::kPieceBytes) / element_bytes / unit * unit;
  if (most == 0)
    throw Error(ExitCode::kData, fmt::format("tensor {}: {} rows are longer than the {} bytes of a piece",
                                             task.source->spec.name, kGateUpBlock, Loader::kPieceBytes));
  for (int64_t done = 0; done < total; done += most) {
    const int64_t count = std::min(most, total - done);
    const std::span<std::byte> bytes = loader.piece().first(static_cast<size_t>(count * element_bytes));
    shards_.read(*task.source, static_cast<uint64_t>(done * element_bytes), bytes);
    checksum.add(bytes);
    loader.put(task.target, task.place, done, task.source->dtype, count);
    const std::lock_guard lock(mutex_);
    progress_.add(bytes.size());
  }
  shards_.expect_checksum(*task.source, checksum);
}

void ShardWeights::expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const {
  for (const ShardTensor* tensor : tensors)
    if (!asked_for_.contains(tensor->spec.name))
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

uint64_t held_bytes(const std::vector<const ShardTensor*>& tensors, DType compute) {
  uint64_t bytes = 0;
  for (const ShardTensor* tensor : tensors)
    bytes += numel(tensor->spec.dims) * size_bytes(held_dtype(tensor->dtype, compute, tensor->spec.keep_fp32));
  return bytes;
}

}  // namespace lfm2
