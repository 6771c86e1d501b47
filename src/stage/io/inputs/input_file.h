// The samples of a job: read from files or from lines, or random. Rank 0 reads them and sends the first rank of every
// other pipeline its share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "openai/sample_rules.h"
#include "stage/io/samples/sample_errors.h"
#include "stage/io/samples/sample_names.h"
#include "stage/io/samples/sample_offsets.h"
#include "stage/io/samples/token_ids.h"

namespace lfm2 {

struct Samples {
  TokenIds ids;  // of all samples, back to back
  SampleOffsets offsets;
  SampleNames names = {};      // .jsonl and .h5: each sample's "id", if any has one
  SampleNumbers numbers = {};  // numbers in the whole job, if some samples are left out
  // Of lines, by their numbers in the whole job: their generation fields, and the errors of refused lines, which have
  // no ids.
  RuleTable rules = {};
  SampleErrors errors = {};
  std::string source = {};  // of lines: the checksum of the input
  // Of several input files: the name of each, and the number of its first sample.
  std::vector<std::pair<std::string, int64_t>> files = {};
  // With --score (find_scored): prefix sums of the number of scored tokens at the end of each sample. On rank 0 also
  // prefix sums of the bytes of their text, and the number of its words, -1 without a tokenizer.
  SampleOffsets scored = {}, scored_bytes = {};
  int64_t scored_words = -1;
  // Lines of /v1/embeddings, as prefix sums: the number of inputs of each line, the tokens of each input, and 1 for
  // each line that asks for base64.
  SampleOffsets inputs = {}, input_tokens = {}, in_base64 = {};

  int64_t count() const { return offsets.samples(); }
  // Names a sample in a message: "FILE: sample 3", by its number in that file. `input` names a single input.
  std::string where(int64_t sample, const std::string& input) const;
  // The ids of tokens [first, first + count).
  std::span<const int32_t> tokens(int64_t first, int64_t count) const {
    return std::span<const int32_t>(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
};

struct InputLimits {
  int64_t vocab = 0;          // ids lie in [0, vocab)
  int64_t max_positions = 0;  // no sample has more tokens
  int64_t max_samples = 0;    // uses only the first ones; 0: all
  bool scores = false;        // --score
};

// Reads .bin, .h5 or .npy files one after the other, by the ending. Error(kNoInput) for a missing file; Error(kData)
// naming file, sample (or line), found and expected for any violation of the form or the limits; Error(kUsage) for
// another ending. `pulse` is called after every piece that was read, and may throw to end the reading.
Samples read_samples(
    const std::vector<std::filesystem::path>& paths, const InputLimits& limits,
    const std::function<void()>& pulse = [] {});
inline Samples read_samples(
    const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse = [] {}) {
  return read_samples(std::vector{path}, limits, pulse);
}

// The built-in job: `count` samples of `length` ids, uniform in [0, vocab). Sample i depends only on `seed` and `i`.
Samples random_samples(int64_t count, int64_t length, uint64_t seed, int64_t vocab);

}  // namespace lfm2
