// Moves a model from a source to a writer with bounded memory: one thread reads, checks and converts, one writes.
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

// Writes every tensor of `writer`, converted to the type it has there, and commits. Where the source carries checksums
// they are checked: Error(kData) before commit. Stops with Error(kStopped) on an interrupt.
void copy_model(const ModelSource& source, ModelWriter& writer, Progress& progress);

// Reads one tensor front to back in pieces of `piece` bytes, as `dtype`, checking the source's checksum at the end.
class TensorReader {
 public:
  TensorReader(const ModelSource& source, size_t tensor, DType dtype);
  uint64_t left_bytes() const { return total_bytes_ - done_bytes_; }  // of the converted form
  // Fills the front of `into` and returns how much; at least one element while any is left.
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
