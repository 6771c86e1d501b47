// The index arrays of a batch: a micro-batch of scoring or a step of a generation. Either is some sequences with a
// past: none of a whole sample, the parts before of a long one, the cached tokens of one that grows. The arrays are
// listed once, in for_each_array() of the source file: clearing, measuring, laying out and filling them visits that
// list. Sizes of the largest batch are numbers alone, because plans are measured before memory is checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "stage/model/token_pruning.h"

namespace lfm2 {

// Lays out arrays of 4-byte values one after the other in one piece of memory, so that a single copy moves them all.
class ArrayLayout {
 public:
  // Where `memory` is null, the layout only adds up bytes().
  explicit ArrayLayout(std::byte* memory) : memory_(memory) {}

  // The array after those that were allocated before.
  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, dims);
    bytes_ += bytes_for(tensor.numel());
    return tensor;
  }
  Tensor allocate_ints(std::initializer_list<int64_t> dims) { return allocate(DType::kI32, dims); }
  size_t bytes() const { return bytes_; }

  // The bytes that an array of `values` values takes: every array begins at a multiple of 16 bytes.
  static constexpr size_t bytes_for(int64_t values) {
    constexpr int64_t kAligned = 4;
    return static_cast<size_t>((values + kAligned - 1) / kAligned * kAligned) * sizeof(int32_t);
  }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

// The arrays, as lists of values (BatchArrays) or as numbers of 4-byte values (BatchSizes).
template <class Ints, class Rules>
struct BatchLists {
  Ints positions = {}, offsets = {};
  int64_t table_width = 0;
  // Of sequences that continue cached ones; see Batch. `page_table` is [sequences, table_width].
  Ints sequence_of = {}, page_table = {}, states = {};
  // The tokens that are kept after the last attention layer, as a separate batch with the same sequences: see
  // TokenPruning of model/token_pruning.h. `rows` are theirs in the whole batch. Empty where all tokens are kept.
  struct Tails {
    Ints rows = {}, positions = {}, offsets = {};
    Ints sequence_of = {};  // where the tails continue cached sequences
  } tails = {};
  // Among the tokens that are kept: the newest one of each sequence whose result is wanted.
  Ints last_rows = {};
  // Of a generation, for each of last_rows: (Request::rng_stream, number of tokens drawn before), sequence slot and
  // sampling rule.
  Ints draws = {}, draw_slots = {};
  Rules draw_rules = {};
  Ints keepers = {};  // [sequences, 2], see Ops::count_tokens
  // The rows before the tokens that are scored, and these tokens; the rows whose hidden states are wanted.
  Ints scored_rows = {}, targets = {}, hidden_rows = {};
};

struct BatchSizes : BatchLists<int64_t, int64_t> {
  size_t bytes(int64_t ids) const;  // of the arrays, with this number of token ids
};

// On the host, as they are built.
struct BatchArrays : BatchLists<std::vector<int32_t>, std::vector<SamplingRule>> {
  int64_t tokens = 0, singles = 0, max_length = 0;
  bool all_begin = true;  // see Batch

  int64_t tail_tokens() const { return std::ssize(tails.rows); }
  int64_t sequences() const { return std::max<int64_t>(0, std::ssize(offsets) - 1); }
  // The tokens after the last attention layer.
  int64_t tokens_left() const { return tail_tokens() > 0 ? tail_tokens() : tokens; }

  // Adds the next `count` tokens of a sequence, after `past` others. With caches: `pages` are those of the sequence,
  // and its convolutions read the row `before` of their states and write the row `after`.
  void add(int64_t past, int64_t count);
  void add_cached(int64_t past, int64_t count, std::span<const int32_t> pages, int32_t before, int32_t after);
  // Keeps the last `count` tokens of this sequence, at positions from `first` on. To be called for each in turn.
  void keep_tail(int64_t sequence, int64_t count, int64_t first);
  void clear();
};

// Where they lie in one piece of memory, on the device or on their way to it. Arrays without elements are empty
// tensors.
struct BatchTensors {
  Tensor ids;  // [tokens], where the tokens are embedded or counted
  Batch batch;
  TokenPruning tail;  // without its residual; no tokens where all of them are kept
  Tensor last_rows, draws, draw_slots, rules, keepers, scored_rows, targets, hidden_rows;
  size_t bytes = 0;
  // Lays them out. Where `memory` is null, this only adds up `bytes`.
  BatchTensors(const BatchArrays& arrays, std::span<const int32_t> own_ids, std::byte* memory);
  BatchTensors() = default;
};

// Fills `host` with them and says where they will lie in `device`, which it is to be copied to. Error(kSoftware) where
// they do not fit.
BatchTensors fill_arrays(const BatchArrays& arrays, std::span<const int32_t> ids, std::span<std::byte> host,
                         std::byte* device);

}  // namespace lfm2
