// A short queue of large pieces between two threads: the disk writes one piece while the next is read and hashed.
#include "weights-tools/model/copy.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "stage/shards/fp8_tensors.h"
#include "stage/shards/overflow.h"
#include "weights-tools/model/interrupt.h"

namespace lfm2 {

namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;
constexpr size_t kPieces = 4;

struct Piece {
  std::vector<std::byte> bytes = std::vector<std::byte>(kPieceBytes);
  size_t used = 0;
  size_t target = 0;
  uint64_t first_byte = 0;
  std::string checksum;  // checksum of the whole tensor; set with its last piece
  bool last = false;
};

// A ring of pieces between one producer and one consumer.
class PieceRing {
 public:
  // Waits for an empty piece; null once stop() was called.
  Piece* wait_free() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || filled_ - taken_ < kPieces; });
    return stopped_ ? nullptr : &pieces_[filled_ % kPieces];
  }
  void push() { advance(filled_); }
  // Waits for a full piece; null once the producer stopped and all pieces were consumed.
  Piece* wait_filled() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || taken_ < filled_; });
    return taken_ < filled_ ? &pieces_[taken_ % kPieces] : nullptr;
  }
  void pop() { advance(taken_); }
  void stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  void advance(size_t& count) {
    const std::scoped_lock lock(mutex_);
    ++count;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Piece pieces_[kPieces];
  size_t filled_ = 0, taken_ = 0;
  bool stopped_ = false;
};

void read_tensor(const ModelSource& source, const TargetTensor& tensor, size_t target, PieceRing& ring,
                 NonFinite& non_finite) {
  TensorReader reader(source, tensor.source, tensor.dtype, &non_finite);
  Checksum checksum;
  for (uint64_t done = 0; reader.left_bytes() > 0;) {
    throw_if_interrupted();
    Piece* piece = ring.wait_free();
    if (piece == nullptr) return;
    piece->target = target;
    piece->first_byte = done;
    piece->used = reader.next(piece->bytes);
    checksum.add(std::span(piece->bytes).first(piece->used));
    done += piece->used;
    piece->last = reader.left_bytes() == 0;
    if (piece->last) piece->checksum = checksum.hex();
    ring.push();
  }
}

}  // namespace

TensorReader::TensorReader(const ModelSource& source, size_t tensor, DType dtype, NonFinite* non_finite)
    : source_(source), tensor_(tensor), non_finite_(non_finite), from_(source.tensors()[tensor].dtype), to_(dtype) {
  total_bytes_ = source.tensors()[tensor].bytes / size_bytes(from_) * size_bytes(to_);
  if (!source.tensors()[tensor].checksum.empty()) checksum_.emplace();
}

std::string NonFinite::text() const {
  return count == 0
             ? ""
             : fmt::format("{} element{} NaN or infinite, the first in {}", count, count == 1 ? " is" : "s are", first);
}

void TensorReader::look_at(std::span<const std::byte> raw) {
  const TensorSpec& spec = source_.tensors()[tensor_].spec;
  const uint64_t first = done_bytes_ / size_bytes(to_);
  const size_t count = raw.size() / size_bytes(from_);
  if (!refused_) refused_ = find_overflow(spec, from_, to_, first, raw.data(), count);
  if (!refused_ && is_scale(spec))
    if (const std::string bad = bad_scale(spec, from_, first, raw.data(), count); !bad.empty())
      refused_ = fmt::format("tensor {} is {}, expected positive scales", spec.name, bad);
  if (non_finite_ == nullptr) return;
  const ElementRange range = non_finite_range(from_);
  const uint64_t found = count_in(range, from_, raw.data(), count);
  if (found > 0 && non_finite_->count == 0)
    non_finite_->first =
        fmt::format("tensor {} at {}", spec.name, index_text(first + first_in(range, from_, raw.data()), spec.dims));
  non_finite_->count += found;
}

size_t TensorReader::next(std::span<std::byte> into) {
  const size_t wanted = std::min<uint64_t>(into.size() / size_bytes(to_) * size_bytes(to_), left_bytes());
  const size_t elements = wanted / size_bytes(to_);
  const uint64_t first = done_bytes_ / size_bytes(to_) * size_bytes(from_);
  std::span<std::byte> raw = into.first(wanted);
  if (from_ != to_) {
    unconverted_.resize(elements * size_bytes(from_));
    raw = unconverted_;
  }
  source_.read(tensor_, first, raw);
  if (checksum_) checksum_->add(raw);
  look_at(raw);
  if (from_ != to_) convert(from_, raw.data(), to_, into.data(), elements);
  done_bytes_ += wanted;
  if (left_bytes() > 0) return wanted;
  const SourceTensor& tensor = source_.tensors()[tensor_];
  const std::string file = source_.file_of(tensor_);
  if (checksum_)
    if (const std::string found = checksum_->hex(); found != tensor.checksum)
      throw Error(ExitCode::kData, fmt::format("{}: tensor {} is damaged: checksum {}, expected {}", file,
                                               tensor.spec.name, found, tensor.checksum));
  // Last, so that a damaged tensor is reported as damaged.
  if (refused_) throw Error(ExitCode::kData, fmt::format("{}: {}", file, *refused_));
  return wanted;
}

NonFinite copy_model(const ModelSource& source, ModelWriter& writer, Progress& progress) {
  PieceRing ring;
  NonFinite non_finite;
  std::exception_ptr read_error;
  {
    const std::jthread reading([&] {
      try {
        for (size_t target = 0; target < writer.tensors().size(); ++target)
          read_tensor(source, writer.tensors()[target], target, ring, non_finite);
      } catch (...) {
        read_error = std::current_exception();
      }
      ring.stop();
    });
    try {
      while (Piece* piece = ring.wait_filled()) {
        writer.write(piece->target, piece->first_byte, std::span(piece->bytes).first(piece->used));
        if (piece->last) writer.finish(piece->target, piece->checksum);
        progress.add(piece->used);
        ring.pop();
      }
    } catch (...) {
      ring.stop();
      throw;  // the reading thread notices the stop, and is joined during unwinding
    }
  }
  if (read_error) std::rethrow_exception(read_error);
  throw_if_interrupted();
  writer.commit();
  return non_finite;
}

}  // namespace lfm2
