// What each reader thread does: bytes go through a piece of its Loader into the checksum and to the device.
#include "stage/shards/weight_readers.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/gate_up.h"
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

// Writes zeros in the type of the target, so that the loader converts nothing.
void clear(const WeightRead& task, Loader& loader) {
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

}  // namespace

WeightReaders::WeightReaders(const ShardSet& shards, Backend& backend, Progress& progress, int threads)
    : shards_(shards), backend_(backend), progress_(progress) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { reader_loop(); });
  } catch (...) {  // no more threads
    stop(nullptr);
    join();
    throw;
  }
}

WeightReaders::~WeightReaders() {
  stop(nullptr);
  join();
}

void WeightReaders::add(WeightRead read) {
  const std::lock_guard lock(mutex_);
  left_.emplace(read.count, std::move(read));
  changed_.notify_one();
}

void WeightReaders::finish() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
    changed_.notify_all();
  }
  join();
  if (error_) std::rethrow_exception(error_);
}

void WeightReaders::join() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void WeightReaders::stop(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  complete_ = true;
  left_.clear();
  changed_.notify_all();
}

bool WeightReaders::pop(WeightRead& read) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return complete_ || !left_.empty(); });
  if (left_.empty()) return false;
  read = std::move(left_.begin()->second);  // the largest first, so that none is left to one thread at the end
  left_.erase(left_.begin());
  return true;
}

void WeightReaders::note_progress(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  progress_.add(bytes);
}

void WeightReaders::reader_loop() try {
  const std::unique_ptr<Loader> loader = backend_.create_loader();
  for (WeightRead next; pop(next);)
    if (!next.scaled.empty())
      read_scales(next, *loader);
    else if (next.source == nullptr)
      clear(next, *loader);
    else
      read(next, *loader);
  loader->finish();
} catch (...) {
  stop(std::current_exception());
}

// Reads at a time the whole blocks that fit into a piece, or the part of a larger block that fits. An incomplete last
// block is read separately.
void WeightReaders::read(const WeightRead& task, Loader& loader) {
  const bool dequantizes = task.source->dtype == DType::kF8 && task.target.dtype != DType::kF8;
  const DType given = dequantizes ? task.target.dtype : task.source->dtype;  // to the loader
  const auto element_bytes = static_cast<int64_t>(size_bytes(given));
  SequentialReader reader(shards_, *task.source);
  const std::optional<Fp8Scales> scales = dequantizes ? std::optional(scales_of(shards_, *task.source)) : std::nullopt;
  if (dequantizes) note_progress(shards_.scale_of(*task.source)->bytes);
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
    note_progress(read.size());
  }
  shards_.expect_checksum(*task.source, checksum);
  if (overflow)
    throw Error(ExitCode::kData, fmt::format("{}: {}", shards_.files()[task.source->file].path().string(), *overflow));
}

// Writes the stored scales to the places of each weight's rows; padding rows have scale 0.
void WeightReaders::read_scales(const WeightRead& task, Loader& loader) {
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
          task.rows == WeightSource::Rows::kBehindOneAnother
              ? first + row
              : first + (row / kGateUpBlock * 2 + static_cast<int64_t>(i) % 2) * kGateUpBlock + row % kGateUpBlock;
      for (int64_t group = 0; group < groups; ++group)
        values[static_cast<size_t>((at / matrix_rows * groups + group) * layout.stride +
                                   at % matrix_rows / layout.rows)] =
            stored.values[static_cast<uint64_t>(row) / stored.rows * stored.groups() + static_cast<uint64_t>(group)];
    }
    if (task.rows == WeightSource::Rows::kBehindOneAnother) first += n;
    if (task.rows == WeightSource::Rows::kGateUp && i % 2 == 1) first += 2 * padded_ffn(n);
    note_progress(shards_.scale_of(weight)->bytes);
  }
  const Tensor target(layout.data, DType::kF32, {std::ssize(values)});
  const auto most = static_cast<int64_t>(Loader::kPieceBytes / sizeof(float));
  for (int64_t done = 0, count = 0; done < target.numel(); done += count) {
    count = std::min(most, target.numel() - done);
    std::memcpy(loader.piece().data(), values.data() + done, static_cast<size_t>(count) * sizeof(float));
    loader.put(target, {}, done, DType::kF32, count);
  }
}

}  // namespace lfm2
