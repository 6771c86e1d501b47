// Copies a model from a source to a writer in bounded memory: one thread reads, checks and converts, another writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/progress.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// Elements that are NaN or infinite.
struct NonFinite {
  uint64_t count = 0;
  std::string first;         // such as "tensor NAME at [3, 17]"
  std::string text() const;  // the count and the first; empty if there are none
};

// Writes every tensor of `writer`, converted to its type there, and commits. If the source has checksums they are
// checked before the commit: Error(kData), also for what TensorReader refuses. Error(kStopped) on an interrupt.
NonFinite copy_model(const ModelSource& source, ModelWriter& writer, Progress& progress);

// Reads one tensor from front to back, converted to `dtype`. At its end, compares the source's checksum, and throws
// Error(kData) if a finite element became infinite or a scale is not positive and finite. Adds the source's NaN and
// infinite elements to `non_finite`, unless that is null.
class TensorReader {
 public:
  TensorReader(const ModelSource& source, size_t tensor, DType dtype, NonFinite* non_finite = nullptr);
  uint64_t left_bytes() const { return total_bytes_ - done_bytes_; }  // counted in the converted type
  // Writes to the front of `into` and returns the number of bytes, at least one element's while any is left.
  size_t next(std::span<std::byte> into);

 private:
  void look_at(std::span<const std::byte> raw);

  const ModelSource& source_;
  size_t tensor_;
  NonFinite* non_finite_;
  DType from_, to_;
  uint64_t total_bytes_, done_bytes_ = 0;
  std::vector<std::byte> unconverted_;
  std::optional<Checksum> checksum_;
  // The first element that became infinite, or the first scale that is not positive and finite.
  std::optional<std::string> refused_;
};

}  // namespace lfm2
