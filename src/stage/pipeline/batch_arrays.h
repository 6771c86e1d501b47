// The index arrays of a batch: a micro-batch of scoring or a step of a generation. A batch consists of sequences, each
// with a number of past tokens: none for a whole sample, the earlier parts of a long sample, or the cached tokens in a
// generation. The arrays are listed once, in for_each_array() of the source file, which all functions visit. BatchSizes
// has only the arrays' lengths, because plans are sized before memory is checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "stage/model/token_pruning.h"

namespace lfm2 {

// Lays out arrays of 4-byte values one after another in one buffer, so that a single copy moves them all.
class ArrayLayout {
 public:
  // If `memory` is null, the layout only adds up bytes().
  explicit ArrayLayout(std::byte* memory) : memory_(memory) {}

  // Allocates the next array.
  Tensor allocate(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, dims);
    bytes_ += bytes_for(tensor.numel());
    return tensor;
  }
  Tensor allocate_ints(std::initializer_list<int64_t> dims) { return allocate(DType::kI32, dims); }
  size_t bytes() const { return bytes_; }

  // The bytes of an array of `values` values. Every array begins at a multiple of 16 bytes.
  static constexpr size_t bytes_for(int64_t values) {
    constexpr int64_t kAligned = 4;
    return static_cast<size_t>((values + kAligned - 1) / kAligned * kAligned) * sizeof(int32_t);
  }

 private:
  std::byte* memory_;
  size_t bytes_ = 0;
};

// The arrays, as lists of values (BatchArrays) or as counts of 4-byte values (BatchSizes).
template <class Ints, class Rules>
struct BatchLists {
  Ints positions = {}, offsets = {};
  int64_t table_width = 0;
  // For sequences with caches; see Batch. `page_table` is [sequences, table_width], and so is `window_table`, that of
  // layers with a window, unless it is empty. `here` is empty without drafts.
  Ints sequence_of = {}, page_table = {}, window_table = {}, states = {}, here = {};
  // The tokens that are kept after the last attention layer, as a separate batch with the same sequences: see
  // TokenPruning of model/token_pruning.h. `rows` are their rows in the whole batch. Empty if all tokens are kept.
  struct Tails {
    Ints rows = {}, positions = {}, offsets = {};
    Ints sequence_of = {};  // if the kept tokens continue cached sequences
  } tails = {};
  // Rows among the kept tokens: the newest token of each sequence with a result.
  Ints last_rows = {};
  // In a generation, for each of last_rows: (Request::rng_stream, number of tokens drawn before), sequence slot and
  // sampling rule.
  Ints draws = {}, draw_slots = {};
  Ints drafted = {};  // [draws, 2], see Adjustments: indices of the batch's token ids; empty without drafts
  Rules draw_rules = {};
  Ints keepers = {};  // [sequences, 2], see Ops::count_tokens
  // The rows that predict scored tokens, and these tokens; the rows whose hidden states are results.
  Ints scored_rows = {}, targets = {}, hidden_rows = {};
};

struct BatchSizes : BatchLists<int64_t, int64_t> {
  size_t bytes(int64_t ids) const;  // of all arrays, with this number of token ids
};

// The arrays on the host, as they are built.
struct BatchArrays : BatchLists<std::vector<int32_t>, std::vector<SamplingRule>> {
  int64_t tokens = 0, singles = 0, max_length = 0;
  bool all_begin = true;  // see Batch

  int64_t tail_tokens() const { return std::ssize(tails.rows); }
  int64_t sequences() const { return std::max<int64_t>(0, std::ssize(offsets) - 1); }
  // The number of tokens after the last attention layer.
  int64_t tokens_left() const { return tail_tokens() > 0 ? tail_tokens() : tokens; }

  // Adds the next `count` tokens of a sequence that has `past` earlier tokens. With caches: `pages` are the sequence's
  // pages, and its convolutions read row `before` of their states and write row `after`. Where sequences may draft,
  // `rows_before` is its element of `here`.
  void add(int64_t past, int64_t count);
  void add_cached(int64_t past, int64_t count, std::span<const int32_t> pages, int32_t before, int32_t after,
                  std::optional<int32_t> rows_before = {});
  // Keeps the last `count` tokens of this sequence, at positions from `first` on. Called for the sequences in order.
  void keep_tail(int64_t sequence, int64_t count, int64_t first);
  void clear();
};

// The arrays as tensors in one buffer, on the device or staged on the host. Arrays without elements are empty tensors.
struct BatchTensors {
  Tensor ids;  // [tokens], if the tokens are embedded or counted
  Batch batch;
  Tensor window_table;
  TokenPruning tail;  // without its residual; empty if all tokens are kept
  Tensor last_rows, draws, draw_slots, drafted, rules, keepers, scored_rows, targets, hidden_rows;
  size_t bytes = 0;
  // Lays the arrays out. If `memory` is null, this only adds up `bytes`.
  BatchTensors(const BatchArrays& arrays, std::span<const int32_t> own_ids, std::byte* memory);
  BatchTensors() = default;
};

// Writes the arrays to `host`, and returns their tensors in `device`, to which the caller copies `host`.
// Error(kSoftware) if they do not fit.
BatchTensors fill_arrays(const BatchArrays& arrays, std::span<const int32_t> ids, std::span<std::byte> host,
                         std::byte* device);

}  // namespace lfm2
