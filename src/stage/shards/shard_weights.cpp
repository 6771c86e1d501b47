// Lays tensors out in device memory, and fills them on reader threads.
#include "stage/shards/shard_weights.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/gate_up.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/fp8_weights.h"
#include "stage/shards/overflow.h"

namespace lfm2 {

namespace {

// Reads a tensor from its beginning to its end. A chunked tensor is read ahead, because the library decompresses a
// whole chunk for every part of it.
class SequentialReader {
 public:
  SequentialReader(const ShardSet& shards, const ShardTensor& tensor) : shards_(shards), tensor_(tensor) {}

  void next(std::span<std::byte> into) {
    if (tensor_.contiguous) {
      shards_.read(tensor_, done_, into);
      done_ += into.size();
      return;
    }
    while (!into.empty()) {
      if (left_.empty()) {
        ahead_.resize(std::min(kAheadBytes, tensor_.bytes - done_));
        shards_.read(tensor_, done_, ahead_);
        done_ += ahead_.size();
        left_ = ahead_;
      }
      const size_t count = std::min(into.size(), left_.size());
      std::copy_n(left_.begin(), count, into.begin());
      left_ = left_.subspan(count);
      into = into.subspan(count);
    }
  }

 private:
  static constexpr uint64_t kAheadBytes = uint64_t{8} << 20;
  const ShardSet& shards_;
  const ShardTensor& tensor_;
  uint64_t done_ = 0;
  std::vector<std::byte> ahead_;
  std::span<const std::byte> left_;
};

}  // namespace

DType held_dtype(const ShardSet& shards, const ShardTensor& tensor, DType compute) {
  if (tensor.spec.keep_fp32) return DType::kF32;
  if (shards.config().fp8_weights.contains(tensor.spec.name)) return DType::kF8;
  return compute == DType::kF32 && tensor.dtype != DType::kF8 ? tensor.dtype : compute;
}

ShardWeights::ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress, int readers)
    : shards_(shards), backend_(backend), compute_(compute), memory_(backend), progress_(progress) {
  try {
    for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { reader_loop(); });
  } catch (...) {  // no more threads
    end_readers();
    throw;
  }
}

ShardWeights::~ShardWeights() { end_readers(); }

void ShardWeights::end_readers() {
  stop(nullptr);
  for (std::thread& reader : readers_)
    if (reader.joinable()) reader.join();
}

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
  add({nullptr, tensor, {}, std::numeric_limits<int64_t>::max(), weights, rows});
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
  if (padding == 0) return add({&part, tensor, {.first = first}, count});
  const auto columns = static_cast<int64_t>(part.spec.dims.back()), held = tensor.k();
  add({&part, tensor, {.first = first, .block = columns, .stride = held}, count});
  add({nullptr, tensor, {.first = first + columns, .block = held - columns, .stride = held}, padding});
}

// Writes the part's rows to every other gate/up block from element `first` on; zeros pad the last block.
void ShardWeights::add_gate_or_up(const ShardTensor& part, const Tensor& tensor, int64_t first) {
  const auto count = static_cast<int64_t>(numel(part.spec.dims)), padding = static_cast<int64_t>(part.spec.padding);
  const int64_t block = kGateUpBlock * tensor.k();
  add({&part, tensor, {.first = first, .block = block, .stride = 2 * block}, count});
  if (padding > 0) add({nullptr, tensor, {.first = first + count / block * 2 * block + count % block}, padding});
}

void ShardWeights::add(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.emplace(task.count, std::move(task));
  changed_.notify_one();
}

void ShardWeights::finish() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
    changed_.notify_all();
  }
  for (std::thread& reader : readers_) reader.join();
  if (error_) std::rethrow_exception(error_);
  backend_.prepack(tiled_);
  tiled_.clear();
}

void ShardWeights::stop(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  complete_ = true;
  tasks_.clear();
  changed_.notify_all();
}

bool ShardWeights::pop(Task& task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return complete_ || !tasks_.empty(); });
  if (tasks_.empty()) return false;
  task = std::move(tasks_.begin()->second);  // the largest first, so that none is left to one reader at the end
  tasks_.erase(tasks_.begin());
  return true;
}

void ShardWeights::reader_loop() try {
  const std::unique_ptr<Loader> loader = backend_.create_loader();
  for (Task task; pop(task);)
    if (!task.scaled.empty())
      read_scales(task, *loader);
    else if (task.source == nullptr)
      clear(task, *loader);
    else
      read(task, *loader);
  loader->finish();
} catch (...) {
  stop(std::current_exception());
}

// Reads at a time the whole blocks that fit into a piece, or the part of a larger block that fits. An incomplete last
// block is read separately.
void ShardWeights::read(const Task& task, Loader& loader) {
  const bool dequantizes = task.source->dtype == DType::kF8 && task.target.dtype != DType::kF8;
  const DType given = dequantizes ? task.target.dtype : task.source->dtype;  // to the loader
  const auto element_bytes = static_cast<int64_t>(size_bytes(given));
  SequentialReader reader(shards_, *task.source);
  const std::optional<Fp8Scales> scales = dequantizes ? std::optional(scales_of(shards_, *task.source)) : std::nullopt;
  if (dequantizes) {
    const std::lock_guard lock(mutex_);
    progress_.add(shards_.scale_of(*task.source)->bytes);
  }
  std::vector<std::byte> stored;
  Checksum checksum;
  std::optional<std::string> overflow;
  const int64_t unit = std::max<int64_t>(task.place.block, 1), whole = task.count / unit * unit;
  const int64_t fitting = static_cast<int64_t>(Loader::kPieceBytes) / element_bytes, most = fitting / unit * unit;
  for (int64_t done = 0, count = 0; done < task.count; done += count) {
    const bool blocks = most > 0 && done < whole;
    const int64_t in_block = done % unit;
    count = blocks ? std::min(most, whole - done) : std::min({fitting, unit - in_block, task.count - done});
    const std::span<std::byte> bytes = loader.piece().first(static_cast<size_t>(count * element_bytes));
    if (dequantizes) stored.resize(static_cast<size_t>(count));
    const std::span<std::byte> read = dequantizes ? std::span<std::byte>(stored) : bytes;
    reader.next(read);
    checksum.add(read);
    const auto first = static_cast<uint64_t>(done);
    if (dequantizes) {
      const size_t infinite = with_float_type(given, [&](auto zero) {
        return dequantize(*scales, first, read, reinterpret_cast<decltype(zero)*>(bytes.data()));
      });
      if (infinite < read.size() && !overflow)
        overflow =
            overflow_text(task.source->spec, scales->value(first + infinite, read[infinite]), first + infinite, given);
    } else if (!overflow) {
      overflow =
          find_overflow(task.source->spec, given, task.target.dtype, first, bytes.data(), static_cast<size_t>(count));
    }
    if (blocks)
      loader.put(task.target, task.place, done, given, count);
    else
      loader.put(task.target, {.first = task.place.first + done / unit * task.place.stride + in_block}, 0, given,
                 count);
    const std::lock_guard lock(mutex_);
    progress_.add(read.size());
  }
  shards_.expect_checksum(*task.source, checksum);
  if (overflow)
    throw Error(ExitCode::kData, fmt::format("{}: {}", shards_.files()[task.source->file].path().string(), *overflow));
}

// Writes the stored scales to the places of each weight's rows; padding rows have scale 0.
void ShardWeights::read_scales(const Task& task, Loader& loader) {
  const Tensor& tensor = task.target;
  const Scales& layout = tensor.scales;
  const int64_t groups = layout.groups(tensor.k());
  const int64_t matrix_rows = tensor.dim(tensor.rank - 2), matrices = tensor.numel() / tensor.k() / matrix_rows;
  std::vector<float> values(static_cast<size_t>(matrices * groups * layout.stride));
  int64_t first = 0;  // row of the tensor
  for (size_t i = 0; i < task.scaled.size(); ++i) {
    const ShardTensor& weight = *task.scaled[i];
    const Fp8Scales stored = scales_of(shards_, weight);
    const auto n = static_cast<int64_t>(weight.spec.dims[0]);
    for (int64_t row = 0; row < n; row += layout.rows) {
      const int64_t at =
          task.rows == Rows::kBehindOneAnother
              ? first + row
              : first + (row / kGateUpBlock * 2 + static_cast<int64_t>(i) % 2) * kGateUpBlock + row % kGateUpBlock;
      for (int64_t group = 0; group < groups; ++group)
        values[static_cast<size_t>((at / matrix_rows * groups + group) * layout.stride +
                                   at % matrix_rows / layout.rows)] =
            stored.values[static_cast<uint64_t>(row) / stored.rows * stored.groups() + static_cast<uint64_t>(group)];
    }
    if (task.rows == Rows::kBehindOneAnother) first += n;
    if (task.rows == Rows::kGateUp && i % 2 == 1) first += 2 * padded_ffn(n);
    const std::lock_guard lock(mutex_);
    progress_.add(shards_.scale_of(weight)->bytes);
  }
  const Tensor target(layout.data, DType::kF32, {std::ssize(values)});
  const auto most = static_cast<int64_t>(Loader::kPieceBytes / sizeof(float));
  for (int64_t done = 0, count = 0; done < target.numel(); done += count) {
    count = std::min(most, target.numel() - done);
    std::memcpy(loader.piece().data(), values.data() + done, static_cast<size_t>(count) * sizeof(float));
    loader.put(target, {}, done, DType::kF32, count);
  }
}

// Writes zeros in the type of the target, so that the loader converts nothing.
void ShardWeights::clear(const Task& task, Loader& loader) {
  const DType dtype = task.target.dtype;
  const int64_t unit = std::max<int64_t>(task.place.block, 1);
  const int64_t most = static_cast<int64_t>(Loader::kPieceBytes / size_bytes(dtype)) / unit * unit;
  for (int64_t done = 0, count = 0; done < task.count; done += count) {
    count = std::min(most, task.count - done);
    const std::span<std::byte> bytes = loader.piece().first(static_cast<size_t>(count) * size_bytes(dtype));
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    loader.put(task.target, task.place, done, dtype, count);
  }
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
