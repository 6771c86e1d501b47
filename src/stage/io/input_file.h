// The samples of a job: read from .bin, .h5 or .jsonl, or made at random. Rank 0 reads; the first rank of every other
// pipeline gets its share from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "stage/io/sample_names.h"
#include "stage/io/sample_offsets.h"
#include "stage/io/token_ids.h"

namespace lfm2 {

struct Samples {
  TokenIds ids;  // of all samples, back to back
  SampleOffsets offsets;
  SampleNames names = {};      // .jsonl: each sample's "id", where any has one
  SampleNumbers numbers = {};  // in the whole job, where some are left out

  int64_t count() const { return offsets.samples(); }
  // The ids of tokens [first, first + count).
  std::span<const int32_t> tokens(int64_t first, int64_t count) const {
    return std::span<const int32_t>(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
};

struct InputLimits {
  int64_t vocab = 0;          // ids lie in [0, vocab)
  int64_t max_positions = 0;  // no sample is longer
  int64_t max_samples = 0;    // take the first ones; 0: all
};

// The ending chooses the form. Error(kNoInput) for a missing file; Error(kData) naming file, sample (or line), found
// and expected for anything that is not exactly as interface and limits say; Error(kUsage) for another ending.
Samples read_samples(const std::filesystem::path& path, const InputLimits& limits);

// The built-in job: `count` samples of `length` ids, uniform in [0, vocab). Sample i depends on `seed` and i alone.
Samples random_samples(int64_t count, int64_t length, uint64_t seed, int64_t vocab);

}  // namespace lfm2
