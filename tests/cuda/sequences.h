// Samples whose tokens come in portions, and the batches with caches that they make. For the tests of operators with
// caches.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/gpu.h"
#include "support/index_cast.h"

namespace lfm2::test {

inline HostTensor ints(const std::vector<double>& values, int64_t rows, int64_t columns = 0) {
  HostTensor tensor = columns > 0 ? HostTensor(DType::kI32, {rows, columns}) : HostTensor(DType::kI32, {rows});
  tensor.fill(values);
  return tensor;
}

// The pages of a cache, which sequences get in random order as they grow.
class SequencePages {
 public:
  SequencePages(const std::vector<int64_t>& lengths, int64_t page_size, std::mt19937& generator)
      : page_size_(page_size), of_(lengths.size()) {
    constexpr int64_t kUnused = 3;
    for (const int64_t length : lengths) {
      max_pages_ = std::max(max_pages_, (length + page_size - 1) / page_size);
      pages_ += (length + page_size - 1) / page_size;
    }
    pages_ += kUnused;
    free_.resize(at(pages_));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), generator);
  }

  int64_t page_size() const { return page_size_; }
  int64_t pages() const { return pages_; }
  int64_t max_pages() const { return max_pages_; }  // of a sequence
  void extend(int64_t sequence, int64_t positions) {
    auto& pages = of_[at(sequence)];
    while (std::ssize(pages) * page_size_ < positions) {
      pages.push_back(free_.back());
      free_.pop_back();
    }
  }
  // Adds the sequence's row of a page table; its first `forgotten` pages are not in the table.
  void add_row(int64_t sequence, int64_t forgotten, std::vector<double>& table) const {
    const auto& pages = of_[at(sequence)];
    for (int64_t i = 0; i < max_pages_; ++i)
      table.push_back(i >= forgotten && i < std::ssize(pages) ? static_cast<double>(pages[at(i)]) : 2e9);
  }
  int64_t cache_row(size_t sequence, int64_t position) const {
    return of_[sequence][at(position / page_size_)] * page_size_ + position % page_size_;
  }

 private:
  int64_t page_size_, pages_ = 0, max_pages_ = 0;
  std::vector<int64_t> free_;
  std::vector<std::vector<int64_t>> of_;  // each sequence
};

// Samples of given lengths whose tokens come in any portions, and the batches of these.
class Sequences {
 public:
  Sequences(const std::vector<int64_t>& lengths, int64_t page, uint32_t seed)
      : packed(lengths),
        lengths_(lengths),
        generator_(seed),
        done_(lengths.size()),
        states_(lengths.size()),
        pages_(lengths, page, generator_) {}

  int64_t pages() const { return pages_.pages(); }
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  bool finished() const {
    for (size_t s = 0; s < done_.size(); ++s)
      if (done_[s] < lengths_[s]) return false;
    return true;
  }
  int64_t left(int64_t s) const { return lengths_[at(s)] - done_[at(s)]; }
  int64_t random(int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(generator_); }

  // Rows of convolution states of each sequence. A batch moves along this ring by a row or, with a block, by its rows.
  static constexpr int64_t kStateRows = 9, kMaxBlock = kStateRows - 1;

  // The next tokens of a sequence; as a block, each of them is a single.
  struct Part {
    int64_t sequence, count;
    bool block = false;
  };
  // Parts of some unfinished sequences: one token, a few or many of each, or a block.
  std::vector<Part> random_parts(int64_t most, bool blocks = false) {
    std::vector<Part> parts;
    for (int64_t s = 0; s < slots(); ++s) {
      if (left(s) == 0) continue;
      const int64_t kind = random(5);
      if (kind == 1) continue;
      const bool block = blocks && kind == 3;
      parts.push_back({s,
                       block       ? std::min(left(s), random(kMaxBlock))
                       : kind <= 3 ? 1
                                   : std::min(left(s), random(kind == 4 ? 5 : most)),
                       block});
    }
    std::shuffle(parts.begin(), parts.end(), generator_);
    return parts;
  }

  // Makes a batch of the next tokens of these sequences. The parts with one token come first and are singles, except
  // for the last `plain` of them. Pages wholly before a `window` of these tokens are not in the table: a kernel must
  // not read their entries.
  void next(std::vector<Part> parts, size_t plain = 0, int64_t window = 0) {
    const auto decodes = [](const Part& part) { return part.count == 1 || part.block; };
    std::stable_sort(parts.begin(), parts.end(), [&](Part a, Part b) { return decodes(a) > decodes(b); });
    int64_t single_parts = 0;
    for (const Part& part : parts) single_parts += decodes(part) ? part.count : 0;
    std::vector<double> positions, offsets{0}, sequence_of, table, states, here;
    tokens.clear();
    rows_of.clear();
    int64_t longest = 0;
    bool all_begin = true;
    singles = 0;
    for (const Part& part : parts) {
      int64_t& done = done_[at(part.sequence)];
      const int64_t forgotten = window == 0 ? 0 : std::max<int64_t>(done + 1 - window, 0) / pages_.page_size();
      const bool is_single = decodes(part) && singles + static_cast<int64_t>(plain) < single_parts;
      all_begin = all_begin && (is_single || done == 0);
      longest = std::max(longest, done + part.count);
      pages_.extend(part.sequence, done + part.count);
      int& turn = states_[at(part.sequence)];
      const auto state = [&](int64_t forward) {
        return static_cast<double>(kStateRows * part.sequence + (turn + forward) % kStateRows);
      };
      const int64_t rows = part.block ? part.count : 1, of_row = part.count / rows;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < of_row; ++i, ++done) {
          positions.push_back(static_cast<double>(done));
          sequence_of.push_back(static_cast<double>(offsets.size() - 1));
          tokens.push_back(static_cast<int64_t>(packed.starts[at(part.sequence)]) + done);
        }
        pages_.add_row(part.sequence, forgotten, table);
        rows_of.push_back({std::ssize(tokens) - of_row, std::ssize(tokens)});
        offsets.push_back(static_cast<double>(positions.size()));
        states.insert(states.end(), {state(0), state(row + 1)});
        here.push_back(static_cast<double>(row));
        if (is_single) ++singles;
      }
      turn = static_cast<int>((turn + rows) % kStateRows);
    }
    const auto count = static_cast<int64_t>(positions.size()), sequences = std::ssize(offsets) - 1;
    memory_.clear();
    for (const auto& host : {ints(positions, count), ints(offsets, sequences + 1), ints(sequence_of, count)})
      memory_.push_back(std::make_unique<DeviceTensor>(host));
    memory_.push_back(std::make_unique<DeviceTensor>(ints(table, sequences, pages_.max_pages())));
    memory_.push_back(std::make_unique<DeviceTensor>(ints(states, sequences, 2)));
    const bool any_block = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.block; });
    memory_.push_back(std::make_unique<DeviceTensor>(ints(here, sequences)));
    batch = {.positions = *memory_[0],
             .offsets = *memory_[1],
             .tokens = count,
             .sequences = sequences,
             .max_length = longest,
             .singles = singles,
             .all_begin = all_begin,
             .sequence_of = *memory_[2],
             .page_table = *memory_[3],
             .states = *memory_[4]};
    if (any_block) batch.here = *memory_[5];
  }

  // The row of the cache that keeps the batch's token i, where rows are the positions of all pages, page by page.
  int64_t cache_row(size_t i) const {
    const auto token = static_cast<double>(tokens[i]);
    size_t sequence = 0;
    while (packed.starts[sequence + 1] <= token) ++sequence;
    return pages_.cache_row(sequence, tokens[i] - static_cast<int64_t>(packed.starts[sequence]));
  }

  // The batch's rows of a tensor over all tokens; put() writes them back.
  HostTensor take(const HostTensor& all) const {
    HostTensor rows(all->dtype, {static_cast<int64_t>(tokens.size()), all->dim(1)});
    const size_t bytes = all->rows(0, 1).bytes();
    for (size_t i = 0; i < tokens.size(); ++i)
      std::memcpy(rows->data + i * bytes, all->data + at(tokens[i]) * bytes, bytes);
    return rows;
  }
  void put(const HostTensor& rows, const HostTensor& all) const {
    const size_t bytes = all->rows(0, 1).bytes();
    for (size_t i = 0; i < tokens.size(); ++i)
      std::memcpy(all->data + at(tokens[i]) * bytes, rows->data + i * bytes, bytes);
  }

  PackedSamples packed;
  Batch batch;
  std::vector<int64_t> tokens;  // the batch's tokens, as numbers in `packed`
  struct Rows {
    int64_t first, end;
  };
  std::vector<Rows> rows_of;  // of each of the batch's sequences
  int64_t singles = 0;

 private:
  std::vector<int64_t> lengths_;
  std::mt19937 generator_;
  std::vector<int64_t> done_;
  std::vector<int> states_;
  SequencePages pages_;
  std::vector<std::unique_ptr<DeviceTensor>> memory_;
};

// A tensor with all bits set, which are NaN in every float type.
inline HostTensor nans(DType dtype, std::initializer_list<int64_t> shape) {
  HostTensor tensor(dtype, shape);
  std::memset(tensor->data, 0xff, tensor->bytes());
  return tensor;
}

}  // namespace lfm2::test
