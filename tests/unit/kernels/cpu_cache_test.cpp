// The operators of the CPU backend that continue cached sequences have the bits of the operators on whole samples,
// however samples are cut into batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "support/cached_steps.h"

namespace lfm2 {
namespace {

using namespace test;

struct CacheFixture : ::testing::Test {
  ThreadPool pool{3};
  CpuOps ops{pool, *available_simd().front()};
};
using AppendKeysValuesTest = CacheFixture;
using CachedShortConvTest = CacheFixture;
using ProjectShortConvTest = CacheFixture;

struct CachedAttentionTest : CacheFixture {
  // Expects attention over a cache that is filled step by step to have the bits of attention over whole samples, whose
  // keys and values are rounded as the cache's are.
  void check(DType act, AttentionShape shape, const Simd& simd) {
    const PackedBatch samples({1, 300, 17, 2, 33, 64});
    ThreadPool one(1);
    HostTensor qkv(act, {samples.tokens(), shape.qkv_columns()}), rounded(act, {samples.tokens(), qkv->dim(1)});
    HostTensor expected(act, {samples.tokens(), shape.heads * shape.head_dim});
    qkv.fill_random(1, 1.5f);
    rounded.fill(shape.fp8_cache ? reference::fp8_keys_values(qkv, shape) : qkv.values());
    CpuOps(pool, simd).attention(rounded, shape, samples.batch, expected);
    for (const StepCut& cut : kStepCuts) {
      ThreadPool& threads = cut.seed % 2 == 0 ? one : pool;
      CpuOps some(threads, simd);
      HostTensor out(act, {samples.tokens(), shape.heads * shape.head_dim});
      const CacheTensors<HostTensor> tensors(shape, act, pages_of(samples, cut.page_size), cut.page_size);
      for_each_step(samples, cut, [&](const CacheStep& step) {
        const HostTensor some_qkv = step.take(qkv);
        HostTensor some_out(act, {step.batch.tokens, out->dim(1)});
        some.append_keys_values(some_qkv, shape, step.batch, tensors.cache());
        some.cached_attention(some_qkv, shape, step.batch, tensors.cache(), some_out);
        step.give(some_out, out);
        Batch last_two = step.batch;
        last_two.output_tokens = 2;
        HostTensor last(act, {step.batch.tokens, out->dim(1)});
        some.cached_attention(some_qkv, shape, last_two, tensors.cache(), last);
        for (size_t i = 1; i < step.offsets.size(); ++i) {
          const int32_t count = std::min(2, step.offsets[i] - step.offsets[i - 1]);
          EXPECT_TRUE(
              same_bits(last->rows(step.offsets[i] - count, count), some_out->rows(step.offsets[i] - count, count)));
        }
      });
      EXPECT_TRUE(same_bits(out, expected))
          << name(act) << ", heads of " << shape.head_dim << ", pages of " << cut.page_size << ", chunks up to "
          << cut.max_chunk << ", " << threads.threads() << " threads, " << simd.name;
    }
  }
};

TEST_F(CachedAttentionTest, HasTheBitsOfWholeSamples) {
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{8, 2, 24},
                                       {4, 1, 64},
                                       {3, 3, 10},
                                       {4, 2, 16, false, 1},
                                       {4, 2, 16, false, 7, true},
                                       {4, 2, 16, false, 29},
                                       {3, 1, 10, false, 100, true}})
      for (const Simd* simd : available_simd()) check(act, shape, *simd);
}

TEST_F(CachedAttentionTest, OfFp8HasTheBitsOfRoundedSamples) {
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape :
         {AttentionShape{8, 2, 24, true}, {4, 1, 64, true}, {3, 3, 10, true}, {4, 2, 16, true, 9, true}})
      for (const Simd* simd : available_simd()) check(act, shape, *simd);
}

// Rows of one token each share the keys that they read in common: those of a block, and the first pages of two samples
// that begin alike, of which the second one has its own pages from the second one on.
TEST_F(CachedAttentionTest, RowsThatShareKeysHaveTheBitsOfWholeSamples) {
  constexpr int32_t kLength = 50, kPage = 4, kPages = (kLength + kPage - 1) / kPage;
  const PackedBatch samples({kLength, kLength});
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {4, 2, 16, false, 7, true}, {3, 3, 10, true}}) {
      HostTensor qkv(act, {2 * kLength, shape.qkv_columns()}), rounded(act, {2 * kLength, qkv->dim(1)});
      HostTensor expected(act, {2 * kLength, shape.heads * shape.head_dim});
      qkv.fill_random(1, 1.5f);
      std::memcpy(qkv->rows(kLength, kPage).data, qkv->rows(0, kPage).data, qkv->rows(0, kPage).bytes());
      rounded.fill(shape.fp8_cache ? reference::fp8_keys_values(qkv, shape) : qkv.values());
      ops.attention(rounded, shape, samples.batch, expected);
      for (const bool alternate : {false, true})
        for (const int threads : {1, 3, 64}) {
          ThreadPool some_pool(threads);
          CpuOps some(some_pool, *available_simd().front());
          const CacheTensors<HostTensor> tensors(shape, act, 2 * kPages, kPage);
          HostTensor rows(act, {4 * kLength, qkv->dim(1)}), out(act, {4 * kLength, expected->dim(1)});
          std::vector<int32_t> positions, offsets{0}, sequence_of, page_table, from;
          for (int32_t row = 0; row < 4 * kLength; ++row) {  // each token twice
            const int32_t sample = alternate ? row / 2 % 2 : row / (2 * kLength);
            positions.push_back(alternate ? row / 4 : row / 2 % kLength);
            from.push_back(sample * kLength + positions.back());
            sequence_of.push_back(row);
            offsets.push_back(row + 1);
            for (int32_t page = 0; page < kPages; ++page)
              page_table.push_back(page > positions.back() / kPage ? -1 : page + (page > 0 ? sample * kPages : 0));
            std::memcpy(rows->rows(row, 1).data, qkv->rows(from.back(), 1).data, qkv->rows(0, 1).bytes());
          }
          Batch batch{.positions = ints(positions), .offsets = ints(offsets), .tokens = rows->dim(0)};
          batch.sequences = batch.singles = batch.tokens;
          batch.max_length = kLength;
          batch.sequence_of = ints(sequence_of);
          batch.page_table = ints(page_table, batch.tokens);
          some.append_keys_values(rows, shape, batch, tensors.cache());
          some.cached_attention(rows, shape, batch, tensors.cache(), out);
          for (int32_t row = 0; row < 4 * kLength; ++row)
            ASSERT_TRUE(same_bits(out->rows(row, 1), expected->rows(from[static_cast<size_t>(row)], 1)))
                << name(act) << ", row " << row << ", " << threads << " threads, alternate " << alternate;
        }
    }
}

TEST_F(CachedShortConvTest, HasTheBitsOfWholeSamples) {
  const PackedBatch samples({1, 60, 7, 2, 3, 4, 23, 5});
  const int64_t hidden = 37;
  ThreadPool one(1);
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16})
    for (const int64_t length : {1, 2, 3, 5, 7, 8})
      for (const bool with_bias : {false, true}) {
        HostTensor bcz(act, {samples.tokens(), 3 * hidden}), expected(act, {samples.tokens(), hidden});
        HostTensor weight(DType::kBf16, {hidden, 1, length}), bias(DType::kBf16, {hidden});
        bcz.fill_random(1);
        weight.fill_random(2);
        bias.fill_random(3);
        const Tensor offset = with_bias ? bias.view() : Tensor{};
        ops.short_conv(bcz, weight, offset, samples.batch, expected);
        for (const StepCut& cut : kStepCuts) {
          ThreadPool& threads = cut.seed % 2 == 0 ? one : pool;
          CpuOps some(threads, *available_simd().front());
          HostTensor out(act, {samples.tokens(), hidden});
          // The states begin as NaNs, so that reading an entry from before a sample's start would spoil the result.
          HostTensor states(DType::kF32, {2 * samples.batch.sequences, length - 1, hidden});
          for_each_step(samples, cut, [&](const CacheStep& step) {
            HostTensor some_out(act, {step.batch.tokens, hidden});
            some.cached_short_conv(step.take(bcz), weight, offset, step.batch, {states}, some_out);
            step.give(some_out, out);
          });
          EXPECT_TRUE(same_bits(out, expected)) << name(act) << ", " << length << " taps, chunks up to "
                                                << cut.max_chunk << ", " << threads.threads() << " threads";
        }
      }
}

// Samples that come as draft blocks, of which only the first rows are right. The next block begins after these, from
// the state that they left in the sample's ring of rows.
class BlockSteps {
 public:
  BlockSteps(const PackedBatch& samples, int32_t block)
      : samples_(samples), block_(block), done_(samples.lengths.size()), at_(done_) {}
  int64_t state_rows() const { return std::ssize(done_) * ring(); }
  bool finished() const { return done_ == samples_.lengths; }

  // Makes the next batch. `token` gives the row of all samples that a row feeds, `right` whether its result counts.
  void next(std::mt19937& random) {
    for (auto* list : {&positions, &offsets, &sequence_of, &states, &here, &tokens}) list->clear();
    right.clear();
    offsets.push_back(0);
    for (size_t s = 0; s < done_.size(); ++s) {
      const int32_t rows = std::min(block_, samples_.lengths[s] - done_[s]);
      if (rows == 0) continue;
      const auto accepted = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(rows));
      const auto first = static_cast<int32_t>(s) * ring();
      for (int32_t row = 0; row < rows; ++row) {
        positions.push_back(done_[s] + row);
        sequence_of.push_back(static_cast<int32_t>(offsets.size()) - 1);
        right.push_back(row < accepted);
        tokens.push_back(static_cast<int32_t>(samples_.offset(s)) + (row < accepted ? done_[s] + row : 0));
        states.insert(states.end(), {first + at_[s] % ring(), first + (at_[s] + row + 1) % ring()});
        here.push_back(row);
        offsets.push_back(static_cast<int32_t>(positions.size()));
      }
      done_[s] += accepted;
      at_[s] += accepted;
    }
    const auto count = std::ssize(positions);
    batch = {.positions = ints(positions), .offsets = ints(offsets), .tokens = count, .sequences = count};
    batch.singles = count;
    batch.sequence_of = ints(sequence_of);
    batch.states = ints(states, count);
    batch.here = ints(here);
  }

  std::vector<int32_t> tokens;  // of each row, its row among those of all samples
  std::vector<bool> right;
  Batch batch;

 private:
  int32_t ring() const { return block_ + 1; }

  const PackedBatch& samples_;
  const int32_t block_;
  std::vector<int32_t> done_, at_;  // tokens of each sample, and steps along its ring
  std::vector<int32_t> positions, offsets, sequence_of, states, here;
};

TEST_F(CachedShortConvTest, BlocksHaveTheBitsOfWholeSamples) {
  const PackedBatch samples({1, 40, 2, 3, 23, 5});
  const int64_t hidden = 37;
  std::mt19937 random(3);
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const int64_t length : {1, 2, 3, 5, 7, 8})
      for (const int32_t block : {1, 2, 3, 4, 9}) {
        HostTensor bcz(act, {samples.tokens(), 3 * hidden}), expected(act, {samples.tokens(), hidden});
        HostTensor weight(DType::kBf16, {hidden, 1, length});
        bcz.fill_random(1);
        weight.fill_random(2);
        ops.short_conv(bcz, weight, {}, samples.batch, expected);
        BlockSteps steps(samples, block);
        HostTensor states(DType::kF32, {steps.state_rows(), length - 1, hidden});
        while (!steps.finished()) {
          steps.next(random);
          HostTensor some(act, {steps.batch.tokens, 3 * hidden}), out(act, {steps.batch.tokens, hidden});
          for (size_t row = 0; row < steps.tokens.size(); ++row) {
            const Tensor from = bcz->rows(steps.tokens[row], 1);
            std::memcpy(some->rows(static_cast<int64_t>(row), 1).data, from.data, from.bytes());
          }
          ops.cached_short_conv(some, weight, {}, steps.batch, {states}, out);
          for (size_t row = 0; row < steps.tokens.size(); ++row)
            if (steps.right[row]) {
              EXPECT_TRUE(same_bits(out->rows(static_cast<int64_t>(row), 1), expected->rows(steps.tokens[row], 1)))
                  << name(act) << ", " << length << " taps, blocks of " << block;
            }
        }
      }
}

// A sequence may go on from the end of any page of a sample that was computed before.
TEST_F(CachedShortConvTest, KeepsTheStatesAtTheEndsOfPages) {
  const PackedBatch samples({1, 60, 7, 23});
  const int64_t hidden = 37, count = samples.batch.sequences;
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const int64_t length : {1, 2, 3, 5, 7, 8})
      for (const int64_t page : {1, 3, 16})
        for (const int32_t chunk : {1, 5, 100}) {
          HostTensor bcz(act, {samples.tokens(), 3 * hidden}), expected(act, {samples.tokens(), hidden});
          HostTensor weight(DType::kBf16, {hidden, 1, length});
          bcz.fill_random(1);
          weight.fill_random(2);
          ops.short_conv(bcz, weight, {}, samples.batch, expected);
          std::vector<std::vector<int32_t>> pages(at(count));
          int32_t next_page = 0;
          for (size_t s = 0; s < pages.size(); ++s)
            for (int64_t i = 0; i < samples.lengths[s]; i += page) pages[s].push_back(next_page++);
          HostTensor states(DType::kF32, {2 * count + next_page, length - 1, hidden});
          std::vector<int32_t> done(at(count), 0), counts(at(count)), rows(2 * at(count));
          std::iota(rows.begin(), rows.end(), 0);
          while (done != samples.lengths) {
            for (size_t s = 0; s < pages.size(); ++s) counts[s] = std::min(chunk, samples.lengths[s] - done[s]);
            const CacheStep step(samples, done, counts, pages, page, rows);
            HostTensor out(act, {step.batch.tokens, hidden});
            ops.cached_short_conv(step.take(bcz), weight, {}, step.batch, {states, 2 * count, page}, out);
            for (size_t s = 0; s < pages.size(); ++s) {
              done[s] += counts[s];
              if (counts[s] > 0) std::swap(rows[2 * s], rows[2 * s + 1]);
            }
          }
          for (size_t s = 0; s < pages.size(); ++s)
            for (auto begin = static_cast<int32_t>(page); begin < samples.lengths[s];
                 begin += static_cast<int32_t>(page)) {
              std::fill(counts.begin(), counts.end(), 0);
              done[s] = begin;
              counts[s] = samples.lengths[s] - begin;
              rows[2 * s] = static_cast<int32_t>(2 * count) + pages[s][at(begin / page) - 1];
              rows[2 * s + 1] = static_cast<int32_t>(2 * s);
              const CacheStep step(samples, done, counts, pages, page, rows);
              HostTensor out(act, {step.batch.tokens, hidden});
              ops.cached_short_conv(step.take(bcz), weight, {}, step.batch, {states}, out);
              EXPECT_TRUE(same_bits(out, step.take(expected)))
                  << name(act) << ", " << length << " taps, sample " << s << " from " << begin << ", pages of " << page
                  << ", chunks of " << chunk;
            }
        }
}

TEST_F(CachedShortConvTest, KeepsTheGatedInputsOldestFirst) {
  const PackedBatch samples({4});
  HostTensor bcz(DType::kF32, {4, 3}), weight(DType::kF32, {1, 4}), states(DType::kF32, {2, 3, 1});
  bcz.fill({2, 1, 10, 3, 1, 10, 4, 1, 10, 5, 1, 10});  // rows of B, C, z, so that u = 20, 30, 40, 50
  weight.fill({1, 0, 0, 0});
  const auto forward = [&](int32_t done, int32_t count, const std::vector<int32_t>& rows) {
    const CacheStep step(samples, {done}, {count}, {{0}}, 8, rows);
    HostTensor out(DType::kF32, {count, 1});
    ops.cached_short_conv(step.take(bcz), weight, {}, step.batch, {states}, out);
    return out.values();
  };
  EXPECT_EQ(forward(0, 2, {0, 1}), (std::vector<double>{0, 0}));
  EXPECT_TRUE(std::isnan(states.get(3)));  // the entry before the sample's start is neither read nor written
  EXPECT_EQ(states.get(4), 20);
  EXPECT_EQ(states.get(5), 30);
  EXPECT_EQ(forward(2, 1, {1, 0}), (std::vector<double>{0}));
  EXPECT_EQ(forward(3, 1, {0, 1}), (std::vector<double>{20}));
  EXPECT_EQ(states.values(), (std::vector<double>{20, 30, 40, 30, 40, 50}));
}

TEST_F(ProjectShortConvTest, HasTheBitsOfItsTwoOperators) {
  const PackedBatch samples({1, 9, 2, 5});
  const int64_t hidden = 37, width = 24, count = samples.batch.sequences;
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16})
    for (const bool biases : {false, true}) {
      HostTensor x(act, {samples.tokens(), width}), in_proj(act, {3 * hidden, width}), in_bias(act, {3 * hidden});
      HostTensor weight(act, {hidden, 3}), bias(act, {hidden}), scale(act, {width});
      uint32_t seed = 0;
      for (HostTensor* tensor : {&x, &in_proj, &in_bias, &weight, &bias, &scale}) tensor->fill_random(++seed);
      const Tensor product_bias = biases ? in_bias.view() : Tensor{}, conv_bias = biases ? bias.view() : Tensor{};
      const StepCut cut{3};
      HostTensor apart(DType::kF32, {2 * count + pages_of(samples, cut.page_size), 2, hidden});
      HostTensor together(DType::kF32, {apart->dim(0), 2, hidden});
      for_each_step(samples, cut, [&](const CacheStep& step) {
        HostTensor bcz(act, {step.batch.tokens, 3 * hidden}), expected(act, {step.batch.tokens, hidden});
        HostTensor scratch(act, {step.batch.tokens, 3 * hidden}), out(act, {step.batch.tokens, hidden});
        const HostTensor some = step.take(x);
        ops.matmul(some, in_proj, product_bias, bcz, Write::kStore);
        ops.cached_short_conv(bcz, weight, conv_bias, step.batch, {apart, 2 * count, cut.page_size}, expected);
        ops.project_short_conv(some, in_proj, product_bias, weight, conv_bias, step.batch,
                               {together, 2 * count, cut.page_size}, scratch, out);
        EXPECT_TRUE(same_bits(out, expected)) << name(act);
        EXPECT_TRUE(same_bits(together, apart)) << name(act) << ", the states";
        HostTensor normed(act, {step.batch.tokens, width}), own_normed(act, {step.batch.tokens, width});
        ops.rms_norm(some, scale, 1e-5f, normed);
        ops.matmul(normed, in_proj, product_bias, bcz, Write::kStore);
        ops.cached_short_conv(bcz, weight, conv_bias, step.batch, {apart, 2 * count, cut.page_size}, expected);
        ops.norm_project_short_conv(some, scale, 1e-5f, in_proj, product_bias, weight, conv_bias, step.batch,
                                    {together, 2 * count, cut.page_size}, own_normed, scratch, out);
        EXPECT_TRUE(same_bits(out, expected)) << name(act) << ", normed";
        ops.norm_matmul(some, scale, 1e-5f, in_proj, product_bias, own_normed, scratch);
        EXPECT_TRUE(same_bits(scratch, bcz)) << name(act) << ", the product after a norm";
      });
    }
}

TEST_F(AppendKeysValuesTest, WritesItsPositionsAlone) {
  const PackedBatch samples({3, 7});
  const AttentionShape shape{2, 2, 4};
  for (const DType act : {DType::kF32, DType::kBf16, DType::kF16}) {
    HostTensor qkv(act, {10, shape.qkv_columns()}), keys(act, {6, 2, 2, 4}), values(act, {6, 2, 2, 4});
    qkv.fill_random(1);
    // Sample 0 begins; sample 1 continues from position 3, in the middle of its second page.
    const CacheStep step(samples, {0, 3}, {1, 3}, {{4}, {5, 0, 2}}, 2, {0, 1, 2, 3});
    ops.append_keys_values(step.take(qkv), shape, step.batch, {keys, values});
    // For each place of the cache, the token that is written to it; -1: none.
    std::vector<int64_t> from(12, -1);
    from[8] = 0;  // page 4, place 0
    from[1] = 3 + 3, from[4] = 3 + 4, from[5] = 3 + 5;
    for (int64_t place = 0; place < 12; ++place)
      for (size_t i = 0; i < 8; ++i) {
        const size_t target = at(place) * 8 + i;
        if (from[at(place)] < 0) {
          EXPECT_TRUE(std::isnan(keys.get(target)) && std::isnan(values.get(target))) << place;
          continue;
        }
        const size_t row = at(from[at(place)] * shape.qkv_columns());
        EXPECT_EQ(keys.get(target), qkv.get(row + 8 + i)) << place;
        EXPECT_EQ(values.get(target), qkv.get(row + 16 + i)) << place;
      }
  }
}

TEST_F(CachedAttentionTest, RefusesWhatIsOutside) {
  const PackedBatch samples({4});
  const AttentionShape shape{2, 1, 4};
  HostTensor qkv(DType::kF32, {4, 16}), out(DType::kF32, {4, 8}), keys(DType::kF32, {2, 2, 1, 4}),
      values(DType::kF32, {2, 2, 1, 4});
  qkv.fill_random(1);
  const KeyValueCache cache{keys, values};
  for (const int page : {2, -1}) {
    const CacheStep step(samples, {0}, {4}, {{0, page}}, 2, {0, 1});
    EXPECT_THROW(ops.append_keys_values(qkv, shape, step.batch, cache), Error);
    EXPECT_THROW(ops.cached_attention(qkv, shape, step.batch, cache, out), Error);
  }
  CacheStep step(samples, {0}, {4}, {{0, 1}}, 2, {0, 1});
  ops.append_keys_values(qkv, shape, step.batch, cache);
  ops.cached_attention(qkv, shape, step.batch, cache, out);
  step.positions[3] = 4;
  // A position beyond max_length.
  EXPECT_THROW(ops.cached_attention(qkv, shape, step.batch, cache, out), Error);
  step.positions[3] = 1;
  // A position that does not follow the one before.
  EXPECT_THROW(ops.cached_attention(qkv, shape, step.batch, cache, out), Error);
}

TEST_F(CachedShortConvTest, RefusesOneRowForBothStates) {
  const PackedBatch samples({2});
  HostTensor bcz(DType::kF32, {2, 6}), weight(DType::kF32, {2, 3}), out(DType::kF32, {2, 2}),
      states(DType::kF32, {2, 2, 2});
  bcz.fill_random(1);
  weight.fill_random(2);
  for (const std::vector<int32_t>& rows : {std::vector<int32_t>{0, 0}, {0, 2}, {-1, 0}}) {
    const CacheStep step(samples, {0}, {2}, {{0}}, 2, rows);
    EXPECT_THROW(ops.cached_short_conv(bcz, weight, {}, step.batch, {states}, out), Error);
  }
}

TEST_F(CachedAttentionTest, NoTokens) {
  const PackedBatch none({});
  const AttentionShape shape{2, 1, 4};
  const CacheStep step(none, {}, {}, {}, 2, {});
  HostTensor qkv(DType::kF32, {0, 16}), out(DType::kF32, {0, 8}), keys(DType::kF32, {1, 2, 1, 4}),
      values(DType::kF32, {1, 2, 1, 4});
  HostTensor bcz(DType::kF32, {0, 6}), weight(DType::kF32, {2, 3}), mixed(DType::kF32, {0, 2}),
      states(DType::kF32, {2, 2, 2});
  ops.append_keys_values(qkv, shape, step.batch, {keys, values});
  ops.cached_attention(qkv, shape, step.batch, {keys, values}, out);
  ops.cached_short_conv(bcz, weight, {}, step.batch, {states}, mixed);
}

}  // namespace
}  // namespace lfm2
