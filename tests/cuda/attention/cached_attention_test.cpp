// cached_attention on the GPU gives the bits of whole samples, however those are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sequences.h"

namespace lfm2 {
namespace {

using namespace test;

class CudaCachedAttentionTest : public ::testing::Test {
 protected:
  void start(Sequences& sequences, int64_t page, AttentionShape shape, DType act, const HostTensor& qkv) {
    shape_ = shape;
    keys_ = std::make_unique<DeviceTensor>(nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim}));
    values_ = std::make_unique<DeviceTensor>(nans(act, {sequences.pages(), page, shape.kv_heads, shape.head_dim}));
    expected_ =
        std::make_unique<HostTensor>(act, std::initializer_list<int64_t>{qkv->dim(0), shape.heads * shape.head_dim});
    const DeviceTensor device(qkv), out(*expected_);
    on_gpu([&](Ops& ops) { ops.attention(device, shape, sequences.packed.device, out); });
    out.fetch(*expected_);
  }
  // Whether the batch has the bits of the whole samples. `bound` is the upper bound for its longest sequence; 0 gives
  // the exact length.
  bool step(Sequences& sequences, const HostTensor& qkv, int64_t bound = 0) {
    const HostTensor rows = sequences.take(qkv), expected = sequences.take(*expected_);
    HostTensor out = nans(qkv->dtype, {expected->dim(0), expected->dim(1)});
    const DeviceTensor device(rows), device_out(out);
    const KeyValueCache cache{*keys_, *values_};
    Batch batch = sequences.batch;
    batch.max_length = std::max(batch.max_length, bound);
    on_gpu([&](Ops& ops) {
      ops.append_keys_values(device, shape_, batch, cache);
      ops.cached_attention(device, shape_, batch, cache, device_out);
    });
    device_out.fetch(out);
    if (same_bits(out, expected)) return true;
    for (size_t i = 0; i < out.size(); ++i)
      if (out.get(i) != expected.get(i)) {
        const size_t row = i / at(out->dim(1));
        ADD_FAILURE() << "token " << row << " of " << sequences.tokens.size() << " (" << sequences.singles
                      << " singles), position " << sequences.packed.places[at(sequences.tokens[row])] << ", column "
                      << i % at(out->dim(1)) << ": " << out.get(i) << ", whole sample " << expected.get(i);
        break;
      }
    return false;
  }

  // Runs samples whose tokens come in random portions of up to `most`, or, with a single sample, in these `portions`.
  void in_portions(const std::vector<int64_t>& lengths, int64_t page, AttentionShape shape, DType act, uint32_t seed,
                   int64_t most, const std::vector<int64_t>& bounds, size_t plain = 0,
                   const std::vector<int64_t>& portions = {}) {
    SCOPED_TRACE(
        fmt::format("{} heads {} {} {}, pages of {}", name(act), shape.heads, shape.kv_heads, shape.head_dim, page));
    Sequences sequences(lengths, page, seed);
    HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()});
    qkv.fill_random(seed, 1.5f);
    start(sequences, page, shape, act, qkv);
    for (size_t turn = 0; !sequences.finished();) {
      const auto parts =
          portions.empty() ? sequences.random_parts(most) : std::vector<Sequences::Part>{{0, portions[turn]}};
      if (parts.empty()) continue;
      sequences.next(parts, plain);
      const auto count = static_cast<int64_t>(bounds.size());
      ASSERT_TRUE(step(sequences, qkv, bounds[portions.empty() ? at(sequences.random(count) - 1) : turn % at(count)]));
      ++turn;
    }
  }

  AttentionShape shape_;
  std::unique_ptr<DeviceTensor> keys_, values_;
  std::unique_ptr<HostTensor> expected_;
};

TEST_F(CudaCachedAttentionTest, EveryTypeShapeAndPageInRandomPortions) {
  const std::vector<int64_t> lengths = {1, 200, 2, 63, 64, 65, 130, 33, 1, 90};
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 2, 8},
                                       {32, 8, 64},
                                       {4, 4, 16},
                                       {6, 1, 24},
                                       {3, 3, 82},
                                       {8, 1, 128},
                                       {2, 1, 256},
                                       {40, 1, 128},
                                       {12, 1, 64},
                                       {5, 1, 2}})
      for (const int64_t page : {1, 16, 256, 50}) {
        ++seed;
        in_portions(lengths, page, shape, act, seed, 100, {0}, seed % 3);
      }
}

// Runs every kernel and the merging of splits once, quickly enough for compute-sanitizer.
TEST_F(CudaCachedAttentionTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16}) {
    in_portions({1, 70, 33}, 16, {8, 2, 64}, act, 1, 60, {0});
    in_portions({40, 3}, 16, {3, 3, 82}, act, 2, 60, {0});
    in_portions({2060}, 256, {4, 1, 64}, act, 3, 2048, {4096, int64_t{1} << 26}, 0, {2056, 1, 1, 1, 1});
  }
}

TEST_F(CudaCachedAttentionTest, LongSamplesInRandomPortions) {
  const std::vector<int64_t> lengths = {5000, 1023, 1024, 1025, 2049, 2100, 70};
  uint32_t seed = 100;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 1, 64}, {3, 1, 128}, {2, 1, 256}, {6, 2, 16}})
      for (const int64_t page : {1, 16, 256}) {
        if (page == 1 && shape.head_dim != 64) continue;
        // The bound decides which blocks compute what. It is exact, rounded up, or so long that the workspace does not
        // hold the parts.
        in_portions(lengths, page, shape, act, ++seed, 1500, {0, 16384, int64_t{1} << 26});
      }
}

TEST_F(CudaCachedAttentionTest, ManySequencesOfOneToken) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) lengths.push_back(i % 50 == 0 ? 1100 + i : 1 + i * 37 % 180);
  for (const DType act : kFloatTypes)
    for (const int64_t count : {3, 30, 90, 300}) {
      SCOPED_TRACE(fmt::format("{}, {} sequences", name(act), count));
      const AttentionShape shape{32, 8, 64};
      Sequences sequences({lengths.begin(), lengths.begin() + count}, 16, 7);
      HostTensor qkv(act, {sequences.packed.tokens(), shape.qkv_columns()});
      qkv.fill_random(3, 1.5f);
      start(sequences, 16, shape, act, qkv);
      std::vector<Sequences::Part> most, last;
      for (int64_t s = 0; s < count; ++s) {
        if (lengths[at(s)] > 3) most.push_back({s, lengths[at(s)] - 3});
        last.push_back({s, 1});
      }
      sequences.next(most);
      ASSERT_TRUE(step(sequences, qkv));
      for (const int64_t bound : {int64_t{0}, int64_t{2048}, int64_t{1} << 26}) {
        std::erase_if(last, [&](const auto& part) { return sequences.left(part.sequence) == 0; });
        sequences.next(last);
        ASSERT_TRUE(step(sequences, qkv, bound));
      }
    }
}

}  // namespace
}  // namespace lfm2
