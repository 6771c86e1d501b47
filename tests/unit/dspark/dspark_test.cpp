// The forward of a drafter against goldens of a NumPy implementation (tests/golden/dspark).
#include "stage/dspark/dspark.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "stage/dspark/dspark_weights.h"
#include "stage/generation/draft_maker.h"
#include "stage/model/memory_plan.h"
#include "support/golden.h"
#include "support/loaded_stage.h"

namespace lfm2::test {
namespace {

// The random drafter of tiny-dense and its target, in fp32.
class DsparkTest : public testing::Test {
 protected:
  static constexpr int64_t kPage = 4;

  std::filesystem::path golden() const { return folder_ / "golden.h5"; }
  static float error_of(const float* found, const Array& expected, int64_t first, int64_t count) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double value = expected.values[static_cast<size_t>(first + i)];
      worst = std::max(worst, std::abs(static_cast<double>(found[i]) - value));
      largest = std::max(largest, std::abs(value));
    }
    return static_cast<float>(worst / largest);
  }

  // The target's hidden states of a text, [taps, tokens, hidden].
  Tensor taps_of(const std::vector<int32_t>& ids) {
    const ModelConfig& config = target_.shards.config();
    const auto tokens = std::ssize(ids);
    const Tensor residual = memory_.allocate(DType::kF32, {tokens, config.hidden});
    const Tensor rows = memory_.allocate(DType::kF32, {std::ssize(files_.config.taps), tokens, config.hidden});
    positions_.resize(ids.size());
    std::iota(positions_.begin(), positions_.end(), 0);
    offsets_ = {0, static_cast<int32_t>(tokens)};
    const Batch batch{.positions = Tensor(positions_.data(), DType::kI32, {tokens}),
                      .offsets = Tensor(offsets_.data(), DType::kI32, {2}),
                      .tokens = tokens,
                      .sequences = 1,
                      .max_length = tokens};
    const LayerRange all{.first = 0, .count = config.layers};
    Scratch scratch(
        target_.backend.allocate(stage_memory(config, all, DType::kF32, DType::kF32, tokens, tokens).scratch_bytes));
    std::vector<int32_t> values = ids;
    const Taps taps{.layers = files_.config.taps, .rows = rows};
    target_.stage().embed(target_.backend.ops(), Tensor(values.data(), DType::kI32, {tokens}), residual);
    target_.stage().forward(
        {.ops = target_.backend.ops(), .scratch = scratch, .residual = residual, .batch = batch, .taps = &taps});
    return rows;
  }
  static std::vector<int32_t> row(const Array& ids, int64_t text) {
    const auto first = ids.values.begin() + text * ids.dim(1);
    return {first, first + ids.dim(1)};
  }

  std::filesystem::path folder_ = golden_dir() / "dspark" / "tiny-dense";
  LoadedStage target_{"tiny-dense", LayerRange{.first = 0, .count = 5}, DType::kF32};
  DsparkFiles files_ = DsparkFiles::open(folder_);
  DsparkWeights weights_{files_, target_.backend, DType::kF32, target_.stage().embedding(), target_.stage().lm_head()};
  Dspark drafter_{weights_, files_.config};
  TensorMemory memory_{target_.backend};
  std::vector<int32_t> positions_, offsets_;
};

TEST_F(DsparkTest, ContextIsThatOfTheGoldens) {
  weights_.finish();
  const Array texts = read_array(golden(), "texts"), expected = read_array(golden(), "context");
  const int64_t length = texts.dim(1), hidden = files_.config.blocks.hidden;
  Scratch scratch(target_.backend.allocate(dspark_scratch_bytes(files_.config, DType::kF32, length, 1)));
  for (int64_t text = 0; text < texts.dim(0); ++text) {
    const Tensor found = drafter_.context(target_.backend.ops(), scratch, taps_of(row(texts, text)));
    EXPECT_LE(error_of(found.as<const float>(), expected, text * length * hidden, length * hidden), 1e-4f);
    scratch.reset();
  }
}

// Blocks of several texts at a time, after contexts that come in two steps. Fewer drafts are the first of a block.
TEST_F(DsparkTest, DraftsAreThoseOfTheGoldens) {
  weights_.finish();
  const Array texts = read_array(golden(), "texts"), blocks = read_array(golden(), "blocks"),
              expected = read_array(golden(), "drafts"), logits = read_array(golden(), "logits");
  const int64_t block = files_.config.block_size, length = texts.dim(1), pages = pages_for(length, kPage);
  for (const int64_t count : {block, int64_t{2}}) {
    const CacheShape caches{
        .slots = blocks.dim(0), .pages = blocks.dim(0) * pages, .page_size = kPage, .max_drafts = count};
    DraftMaker maker(target_.backend, drafter_,
                     {.caches = caches, .longest = length, .tokens = length, .texts = blocks.dim(0)}, DType::kF32);
    std::vector<DraftMaker::Text> wanted;
    std::vector<std::vector<int32_t>> own_pages(static_cast<size_t>(blocks.dim(0)));
    for (int64_t i = 0; i < blocks.dim(0); ++i) {
      const auto start = static_cast<int64_t>(blocks.values[static_cast<size_t>(2 * i + 1)]);
      const std::vector<int32_t> ids = row(texts, static_cast<int64_t>(blocks.values[static_cast<size_t>(2 * i)]));
      auto& own = own_pages[static_cast<size_t>(i)];
      own.resize(static_cast<size_t>(pages));
      std::iota(own.begin(), own.end(), static_cast<int32_t>(i * pages));
      std::vector<int32_t> fed(ids.begin(), ids.begin() + start);
      const Tensor taps = taps_of(fed);
      for (int64_t first = 0, end = (start + 1) / 2; first < start; first = end, end = start) {
        BatchArrays arrays;
        arrays.table_width = pages;
        arrays.add_cached(first, end - first, own, 0, 0);
        std::vector<std::byte> memory(BatchTensors(arrays, {}, nullptr).bytes);
        const BatchTensors batch = fill_arrays(arrays, {}, memory, memory.data());
        const Tensor rows = memory_.allocate(DType::kF32, {taps.dim(0), end - first, taps.dim(2)});
        for (int64_t tap = 0; tap < taps.dim(0); ++tap)
          std::memcpy(rows.at(tap).data, taps.at(tap).rows(first, end - first).data, rows.at(tap).bytes());
        maker.append(rows, batch.batch);
      }
      wanted.push_back(
          {.token = ids[static_cast<size_t>(start)], .slot = static_cast<int32_t>(i), .position = start, .pages = own});
    }
    for (int time = 0; time < 2; ++time) {  // a block leaves the context as it was
      maker.enqueue(wanted, kUntagged);
      while (!maker.done()) {
      }
      for (int64_t i = 0; i < blocks.dim(0); ++i) {
        const std::vector<int32_t> found = maker.drafts(static_cast<size_t>(i));
        const auto first = expected.values.begin() + i * block;
        EXPECT_EQ(found, std::vector<int32_t>(first, first + count)) << "block " << i;
        const int64_t vocab = files_.config.blocks.vocab;
        for (int64_t place = 0; place < count; ++place)
          EXPECT_LE(error_of(maker.logits().rows(place * blocks.dim(0) + i, 1).as<const float>(), logits,
                             (i * block + place) * vocab, vocab),
                    1e-4f);
      }
    }
  }
}

}  // namespace
}  // namespace lfm2::test
