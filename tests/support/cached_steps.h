// Samples whose tokens come step by step, and the batches and caches of those. For the tests of the CPU operators with
// caches.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "support/cache_tensors.h"
#include "support/index_cast.h"
#include "support/ops_under_test.h"

namespace lfm2::test {

// A view of these numbers as one row, or as several rows of the same length.
inline Tensor ints(std::vector<int32_t>& values) {
  return Tensor(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
}
inline Tensor ints(std::vector<int32_t>& values, int64_t rows) {
  return ints(values).reshape({rows, rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows});
}

// The next `counts[s]` tokens of sample s, of which `done[s]` are cached. A count of zero leaves the sample out;
// samples with one token come first.
struct CacheStep {
  CacheStep(const PackedBatch& samples, const std::vector<int32_t>& done, const std::vector<int32_t>& counts,
            const std::vector<std::vector<int32_t>>& pages, int64_t page, const std::vector<int32_t>& state_rows) {
    size_t width = 1;  // one more than any sample needs
    for (const auto& list : pages) width = std::max(width, list.size() + 1);
    for (const bool single : {true, false})
      for (size_t s = 0; s < counts.size(); ++s) {
        if (counts[s] == 0 || (counts[s] == 1) != single) continue;
        for (int32_t i = 0; i < counts[s]; ++i) {
          positions.push_back(done[s] + i);
          tokens.push_back(samples.offset(s) + done[s] + i);
          sequence_of.push_back(static_cast<int32_t>(batch.sequences));
        }
        offsets.push_back(static_cast<int32_t>(tokens.size()));
        const auto used = static_cast<size_t>((done[s] + counts[s] + page - 1) / page);
        // Entries after the used ones are not read.
        for (size_t i = 0; i < width; ++i) page_table.push_back(i < used ? pages[s][i] : -1);
        states.insert(states.end(), {state_rows[2 * s], state_rows[2 * s + 1]});
        batch.max_length = std::max<int64_t>(batch.max_length, done[s] + counts[s]);
        batch.singles += single ? 1 : 0;
        ++batch.sequences;
      }
    batch.tokens = static_cast<int64_t>(tokens.size());
    batch.positions = ints(positions), batch.offsets = ints(offsets), batch.sequence_of = ints(sequence_of);
    batch.page_table = ints(page_table, batch.sequences), batch.states = ints(states, batch.sequences);
  }
  CacheStep(const CacheStep&) = delete;  // the batch refers to the members
  // take() copies the rows of these tokens out of the rows of all samples; give() copies them back.
  HostTensor take(const HostTensor& all) const {
    HostTensor some(all->dtype, {batch.tokens, all->dim(1)});
    copy(all, some, false);
    return some;
  }
  void give(const HostTensor& some, HostTensor& all) const { copy(all, some, true); }
  void copy(const Tensor& all, const Tensor& some, bool back) const {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Tensor whole = all.rows(tokens[i], 1), part = some.rows(static_cast<int64_t>(i), 1);
      std::memcpy(back ? whole.data : part.data, back ? part.data : whole.data, part.bytes());
    }
  }
  std::vector<int64_t> tokens;  // for each token, its row among those of all samples
  std::vector<int32_t> positions, offsets{0}, sequence_of, page_table, states;
  Batch batch;
};

// How for_each_step cuts samples into steps, at random.
struct StepCut {
  int64_t page_size = 16;
  int max_chunk = 8;
  uint32_t seed = 1;
};
inline int64_t pages_of(const PackedBatch& samples, int64_t page) {
  int64_t count = 1;  // one page that no sample gets
  for (const int32_t length : samples.lengths) count += (length + page - 1) / page;
  return count;
}
inline void for_each_step(const PackedBatch& samples, const StepCut& cut,
                          const std::function<void(const CacheStep&)>& f) {
  std::mt19937 generator(cut.seed);
  const auto random = [&](int below) { return std::uniform_int_distribution<int32_t>(0, below - 1)(generator); };
  std::vector<int32_t> free_pages(at(pages_of(samples, cut.page_size))), rows(2 * samples.lengths.size());
  std::iota(free_pages.begin(), free_pages.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(free_pages.begin(), free_pages.end(), generator);
  std::shuffle(rows.begin(), rows.end(), generator);
  std::vector<std::vector<int32_t>> pages(samples.lengths.size());
  for (size_t s = 0; s < pages.size(); ++s)
    for (int64_t i = 0; i < samples.lengths[s]; i += cut.page_size) {
      pages[s].push_back(free_pages.back());
      free_pages.pop_back();
    }
  std::vector<int32_t> done(pages.size(), 0), counts(pages.size());
  while (done != samples.lengths) {
    for (size_t s = 0; s < pages.size(); ++s) {
      const int kind = random(4);  // the sample rests, gets one token, or several
      counts[s] = kind == 0 ? 0 : std::min(samples.lengths[s] - done[s], kind == 1 ? 1 : 1 + random(cut.max_chunk));
    }
    if (std::accumulate(counts.begin(), counts.end(), 0) == 0) continue;
    f(CacheStep(samples, done, counts, pages, cut.page_size, rows));
    for (size_t s = 0; s < pages.size(); ++s) {
      done[s] += counts[s];
      if (counts[s] > 0) std::swap(rows[2 * s], rows[2 * s + 1]);
    }
  }
}

inline const std::vector<StepCut> kStepCuts = {{1, 1, 1},   {1, 9, 2},    {16, 3, 3},   {16, 40, 4},
                                               {5, 500, 5}, {256, 20, 6}, {256, 500, 7}};

}  // namespace lfm2::test
