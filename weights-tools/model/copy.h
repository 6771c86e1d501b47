// Moves a model from a source to a writer in bounded memory: one thread reads, checks and converts, one writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "stage/support/checksum.h"
#include "stage/support/progress.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// Writes every tensor of `writer`, converted to the type that it has there, and commits. Where the source carries
// checksums they are checked before the commit: Error(kData). Error(kStopped) on an interrupt.
void copy_model(const ModelSource& source, ModelWriter& writer, Progress& progress);

// Reads one tensor from front to back, converted to `dtype`. Compares the source's checksum at the end.
class TensorReader {
 public:
  TensorReader(const ModelSource& source, size_t tensor, DType dtype);
  uint64_t left_bytes() const { return total_bytes_ - done_bytes_; }  // in the converted type
  // Fills the front of `into` and returns the number of bytes, at least those of one element while any is left.
  size_t next(std::span<std::byte> into);

 private:
  const ModelSource& source_;
  size_t tensor_;
  DType from_, to_;
  uint64_t total_bytes_, done_bytes_ = 0;
  std::vector<std::byte> unconverted_;
  std::optional<Checksum> checksum_;
};

}  // namespace lfm2
