// cached_attention on the GPU gives the bits of whole samples, however those are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "cuda/sequences.h"
#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/op_checks.h"
#include "support/cache_tensors.h"

namespace lfm2 {
namespace {

using namespace test;

// The upper bound for the longest sequence of a batch, where 0 gives the exact length; and, for batches of singles, the
// size of the workspace, where it is not that of the backend.
struct Limits {
  int64_t length = 0;
  std::optional<int> partial_floats = {};
};

std::string text(DType act, AttentionShape shape) {
  return fmt::format("{} heads {} {} {}{}, window {}", name(act), shape.heads, shape.kv_heads, shape.head_dim,
                     shape.fp8_cache ? ", cache in fp8" : "", shape.window);
}

// Each shape, with a cache of the compute type and with one in fp8.
std::vector<AttentionShape> with_both_caches(const std::vector<AttentionShape>& shapes) {
  std::vector<AttentionShape> both = shapes;
  for (AttentionShape shape : shapes) {
    shape.fp8_cache = true;
    both.push_back(shape);
  }
  return both;
}

class CudaCachedAttentionTest : public ::testing::Test {
 protected:
  // As qk_norm_rope leaves it: keys and values are rounded for a cache in fp8.
  static HostTensor random_qkv(DType act, int64_t tokens, AttentionShape shape, uint32_t seed) {
    HostTensor qkv(act, {tokens, shape.qkv_columns()});
    qkv.fill_random(seed, 1.5f);
    if (shape.fp8_cache) qkv.fill(reference::fp8_keys_values(qkv, shape));
    return qkv;
  }
  void start(Sequences& sequences, int64_t page, AttentionShape shape, DType act, const HostTensor& qkv) {
    shape_ = shape;
    cache_ = std::make_unique<CacheTensors<DeviceTensor>>(shape, act, sequences.pages(), page);
    expected_ =
        std::make_unique<HostTensor>(act, std::initializer_list<int64_t>{qkv->dim(0), shape.heads * shape.head_dim});
    const DeviceTensor device(qkv), out(*expected_);
    on_gpu([&](Ops& ops) { ops.attention(device, shape, sequences.packed.device, out); });
    out.fetch(*expected_);
  }
  // Whether the batch has the bits of the whole samples.
  bool step(Sequences& sequences, const HostTensor& qkv, const Limits& limits = {}) {
    const HostTensor rows = sequences.take(qkv), expected = sequences.take(*expected_);
    HostTensor out = nans(qkv->dtype, {expected->dim(0), expected->dim(1)});
    const DeviceTensor device(rows), device_out(out);
    const KeyValueCache cache = cache_->cache();
    Batch batch = sequences.batch;
    batch.max_length = std::max(batch.max_length, limits.length);
    on_gpu([&](Ops& ops) {
      ops.append_keys_values(device, shape_, batch, cache);
      if (!limits.partial_floats) ops.cached_attention(device, shape_, batch, cache, device_out);
    });
    if (limits.partial_floats) attend_within(*limits.partial_floats, sequences, device, batch, device_out);
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

  // Whether the last `wanted` tokens of each sequence have the bits of the whole samples where no others are wanted.
  bool wanted(Sequences& sequences, const HostTensor& qkv, int64_t wanted) {
    const HostTensor rows = sequences.take(qkv), expected = sequences.take(*expected_);
    HostTensor out = nans(qkv->dtype, {expected->dim(0), expected->dim(1)});
    const DeviceTensor device(rows), device_out(out);
    Batch batch = sequences.batch;
    batch.output_tokens = wanted;
    on_gpu([&](Ops& ops) { ops.cached_attention(device, shape_, batch, cache_->cache(), device_out); });
    device_out.fetch(out);
    bool same = true;
    for (const auto& [first, end] : sequences.rows_of) {
      const int64_t count = std::min(wanted, end - first);
      same &= same_bits(out->rows(end - count, count), expected->rows(end - count, count));
    }
    return same;
  }

  // Calls the launcher with a workspace of `floats` between guard areas. It must fill the front of that with the
  // results of the sequences that have several splits, without gaps, up to the first one that finds no room.
  void attend_within(int floats, const Sequences& sequences, const DeviceTensor& qkv, const Batch& batch,
                     const DeviceTensor& out) {
    ASSERT_EQ(batch.singles, batch.tokens);
    const HostTensor partials = nans(DType::kF32, {floats});
    HostTensor counters(DType::kI32, {kDecodeCounters});
    counters.fill(std::vector<double>(at(kDecodeCounters)));
    const DeviceTensor device_partials(partials), device_counters(counters);
    CachedAttentionDecodeArgs args{.attention = attention_args(qkv, shape_, batch, out),
                                   .max_length = batch.max_length,
                                   .partials = device_partials->as<float>(),
                                   .partial_floats = floats,
                                   .counters = device_counters->as<int32_t>(),
                                   .multiprocessors = 132};
    const KeyValueCache cache = cache_->cache();
    args.attention.pages = {.keys = cache.keys.data,
                            .values = cache.values.data,
                            .page_table = batch.page_table.as<const int32_t>(),
                            .sequence_of = batch.sequence_of.as<const int32_t>(),
                            .offsets = batch.offsets.as<const int32_t>(),
                            .max_pages = static_cast<int>(batch.page_table.dim(1)),
                            .page_size = static_cast<int>(cache.keys.dim(1)),
                            .pages = cache.keys.dim(0),
                            .singles = batch.singles,
                            .key_scales = cache.key_scales,
                            .value_scales = cache.value_scales};
    on_gpu([&](Ops&) {
      cudaStream_t stream = dynamic_cast<CudaStream&>(gpu().compute()).native();
      if (qkv->dtype == DType::kF32)
        launch_cached_attention_decode_simt(stream, args);
      else
        launch_cached_attention_decode_mma(stream, args, qkv->dtype);
    });
    device_counters.fetch(counters);
    for (size_t i = 0; i < counters.size(); ++i) ASSERT_EQ(counters.get(i), 0) << "counter " << i;
    device_partials.fetch(partials);
    // A result is a row of the output, whose columns are rounded up to 64, 128 or 256, then two floats and a gap of
    // two.
    const int64_t columns = shape_.head_dim <= 64 ? 64 : shape_.head_dim <= 128 ? 128 : 256, stride = columns + 4;
    int64_t results = 0;
    for (const int64_t token : sequences.tokens) {
      const auto splits = static_cast<int64_t>(sequences.packed.places[at(token)]) / 1024 + 1;
      if (splits == 1) continue;
      if ((results + shape_.heads * splits) * stride > floats) break;
      results += shape_.heads * splits;
    }
    for (int64_t i = 0; i < floats; ++i)
      ASSERT_EQ(!std::isnan(partials.get(at(i))), i / stride < results && i % stride < columns + 2)
          << "float " << i << " of " << floats << ", of which " << results << " results of " << stride << " are used";
  }

  // Runs samples whose last tokens come one by one, as many as there are limits.
  void singles(const std::vector<int64_t>& lengths, AttentionShape shape, DType act,
               const std::vector<Limits>& all_limits) {
    const Sequences sequences(lengths, 16, 7);
    singles(lengths, shape, act, all_limits, random_qkv(act, sequences.packed.tokens(), shape, 3));
  }
  void singles(const std::vector<int64_t>& lengths, AttentionShape shape, DType act,
               const std::vector<Limits>& all_limits, const HostTensor& qkv) {
    SCOPED_TRACE(fmt::format("{}, {} sequences", text(act, shape), lengths.size()));
    Sequences sequences(lengths, 16, 7);
    start(sequences, 16, shape, act, qkv);
    const auto steps = static_cast<int64_t>(all_limits.size());
    std::vector<Sequences::Part> most, last;
    for (int64_t s = 0; s < sequences.slots(); ++s) {
      if (lengths[at(s)] > steps) most.push_back({s, lengths[at(s)] - steps});
      last.push_back({s, 1});
    }
    sequences.next(most, 0, shape.window);
    ASSERT_TRUE(step(sequences, qkv));
    for (const Limits& limits : all_limits) {
      std::erase_if(last, [&](const auto& part) { return sequences.left(part.sequence) == 0; });
      sequences.next(last, 0, shape.window);
      ASSERT_TRUE(step(sequences, qkv, limits));
    }
  }

  // Runs samples whose tokens come in random portions of up to `most`, or, with a single sample, in these `portions`.
  void in_portions(const std::vector<int64_t>& lengths, int64_t page, AttentionShape shape, DType act, uint32_t seed,
                   int64_t most, const std::vector<int64_t>& bounds, size_t plain = 0,
                   const std::vector<int64_t>& portions = {}) {
    SCOPED_TRACE(fmt::format("{}, pages of {}", text(act, shape), page));
    Sequences sequences(lengths, page, seed);
    const HostTensor qkv = random_qkv(act, sequences.packed.tokens(), shape, seed);
    start(sequences, page, shape, act, qkv);
    for (size_t turn = 0; !sequences.finished();) {
      const auto parts =
          portions.empty() ? sequences.random_parts(most) : std::vector<Sequences::Part>{{0, portions[turn]}};
      if (parts.empty()) continue;
      sequences.next(parts, plain, shape.window);
      const auto count = static_cast<int64_t>(bounds.size());
      ASSERT_TRUE(
          step(sequences, qkv, {bounds[portions.empty() ? at(sequences.random(count) - 1) : turn % at(count)]}));
      ++turn;
    }
  }

  AttentionShape shape_;
  std::unique_ptr<CacheTensors<DeviceTensor>> cache_;
  std::unique_ptr<HostTensor> expected_;
};

TEST_F(CudaCachedAttentionTest, EveryTypeShapeAndPageInRandomPortions) {
  const std::vector<int64_t> lengths = {1, 200, 2, 63, 64, 65, 130, 33, 1, 90};
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : with_both_caches({{4, 2, 8},
                                                        {32, 8, 64},
                                                        {4, 4, 16},
                                                        {6, 1, 24},
                                                        {3, 3, 82},
                                                        {8, 1, 128},
                                                        {2, 1, 256},
                                                        {40, 1, 128},
                                                        {12, 1, 64},
                                                        {5, 1, 2}}))
      for (const int64_t page : {1, 16, 256, 50}) {
        ++seed;
        in_portions(lengths, page, shape, act, seed, 100, {0}, seed % 3);
      }
}

// The table has no pages before the windows.
TEST_F(CudaCachedAttentionTest, WindowsInRandomPortions) {
  const std::vector<int64_t> lengths = {1, 200, 2, 63, 64, 65, 130, 333, 1, 90};
  uint32_t seed = 300;
  for (const DType act : kFloatTypes)
    for (const int64_t window : {1, 2, 20, 64, 100, 256})
      for (const AttentionShape shape : with_both_caches({{4, 2, 8, false, window},
                                                          {8, 2, 64, false, window},
                                                          {16, 4, 128, false, window, true},
                                                          {3, 3, 82, false, window, true},
                                                          {12, 1, 64, false, window}}))
        for (const int64_t page : {16, 50}) {
          ++seed;
          in_portions(lengths, page, shape, act, seed, 100, {0, 16384}, seed % 3);
        }
}

// Windows that begin and end anywhere in splits of 1024 keys, of one split or several.
TEST_F(CudaCachedAttentionTest, WindowsInLongSamples) {
  const std::vector<int64_t> lengths = {5000, 1023, 1024, 1025, 2049, 2100, 70};
  uint32_t seed = 400;
  for (const DType act : kFloatTypes)
    for (const int64_t window : {1, 256, 1024, 1025, 2500})
      for (const AttentionShape shape : with_both_caches({{4, 1, 64, false, window}, {4, 1, 128, false, window}}))
        in_portions(lengths, 16, shape, act, ++seed, 1500, {0, 16384, int64_t{1} << 26});
}

// Every position of a window's end in its split.
TEST_F(CudaCachedAttentionTest, WindowsOfSingles) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 90; ++i) lengths.push_back(1 + i * 37 % 2600);
  for (const DType act : kFloatTypes)
    for (const int64_t window : {64, 256, 1100})
      for (const AttentionShape shape : with_both_caches({{8, 2, 64, false, window}, {16, 4, 128, false, window}}))
        singles(lengths, shape, act, {{0}, {4096}, {int64_t{1} << 26}});
}

TEST_F(CudaCachedAttentionTest, WantedTokensHaveTheirBits) {
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : with_both_caches({{4, 2, 8}, {32, 8, 64}, {8, 1, 128}})) {
      SCOPED_TRACE(text(act, shape));
      const std::vector<int64_t> lengths = {1, 200, 2, 63, 600, 65, 130, 33, 1, 90};
      Sequences sequences(lengths, 16, 5);
      const HostTensor qkv = random_qkv(act, sequences.packed.tokens(), shape, 5);
      start(sequences, 16, shape, act, qkv);
      while (!sequences.finished()) {
        const auto parts = sequences.random_parts(300);
        if (parts.empty()) continue;
        sequences.next(parts, 1);
        ASSERT_TRUE(step(sequences, qkv));
        ASSERT_TRUE(wanted(sequences, qkv, 1));
        ASSERT_TRUE(wanted(sequences, qkv, 5));
      }
    }
}

// Runs every kernel and the merging of published splits once, quickly enough for compute-sanitizer.
TEST_F(CudaCachedAttentionTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16}) {
    in_portions({1, 70, 33}, 16, {8, 2, 64}, act, 1, 60, {0});
    in_portions({1, 70, 33}, 16, {8, 2, 64, true}, act, 1, 60, {0});
    in_portions({40, 3}, 16, {3, 3, 82}, act, 2, 60, {0});
    in_portions({40, 3}, 16, {3, 3, 82, true}, act, 2, 60, {0});
    in_portions({2060}, 256, {4, 1, 64}, act, 3, 2048, {4096}, 0, {2056, 1, 1, 1, 1});
  }
}

TEST_F(CudaCachedAttentionTest, LongSamplesInRandomPortions) {
  const std::vector<int64_t> lengths = {5000, 1023, 1024, 1025, 2049, 2100, 70};
  uint32_t seed = 100;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : with_both_caches({{4, 1, 64}, {3, 1, 128}, {2, 1, 256}, {6, 2, 16}}))
      for (const int64_t page : {1, 16, 256}) {
        if (page == 1 && shape.head_dim != 64) continue;
        // The bound decides which blocks compute what. It is exact, rounded up, or so long that most blocks are idle.
        in_portions(lengths, page, shape, act, ++seed, 1500, {0, 16384, int64_t{1} << 26});
      }
}

TEST_F(CudaCachedAttentionTest, ManySequencesOfOneToken) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) lengths.push_back(i % 50 == 0 ? 1100 + i : 1 + i * 37 % 180);
  for (const DType act : kFloatTypes)
    for (const int64_t count : {3, 30, 90, 300})
      for (const AttentionShape shape : with_both_caches({{32, 8, 64}}))
        singles({lengths.begin(), lengths.begin() + count}, shape, act, {{0}, {2048}, {int64_t{1} << 26}});
}

// Few long sequences, of different numbers of splits, among many short ones: the results of each have a place of their
// own in the workspace. With 32 key-value heads a block takes several splits, but not all; with 128 there are so many
// blocks that each takes all.
TEST_F(CudaCachedAttentionTest, FewLongSequencesAmongManyShort) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 200; ++i) lengths.push_back(1 + i * 37 % 60);
  lengths[5] = 9000;
  lengths[40] = 4000;
  lengths[41] = 2100;
  lengths[100] = 1100;
  lengths[199] = 3000;
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const AttentionShape shape : with_both_caches({{8, 2, 64}, {32, 32, 8}, {128, 128, 2}}))
      singles(lengths, shape, act, {{0}, {16384}, {int64_t{1} << 26}});
}

// Sequences whose results do not fit the workspace are computed by fewer blocks. 272 floats are a split of four heads;
// the workspace is empty, holds one sequence of the three (1 float is missing for the next), two of them, or all.
TEST_F(CudaCachedAttentionTest, WorkspaceForSomeSequences) {
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const AttentionShape shape : with_both_caches({{4, 2, 64}}))
      singles({40, 2100, 70, 1500, 3, 1100}, shape, act,
              {{0, 0}, {0, 3 * 272}, {4096, 5 * 272 - 1}, {0, 5 * 272}, {0, 7 * 272}, {4096, 8 * 272}});
}

// Keys, values and queries of a cache in fp8 that the fast products cannot take: NaN, and magnitudes that leave the
// range of the type once the powers of two are moved. Each sample has another kind, and the first none.
TEST_F(CudaCachedAttentionTest, UnusualNumbersInFp8) {
  const std::vector<int64_t> lengths(8, 1200);
  for (const AttentionShape shape : std::vector<AttentionShape>{{8, 2, 64, true}, {4, 1, 128, true}, {16, 1, 64, true}})
    for (const DType act : {DType::kBf16, DType::kF16}) {
      HostTensor qkv(act, {8 * 1200, shape.qkv_columns()});
      qkv.fill_random(3, 1.5f);
      const int64_t key = shape.heads * shape.head_dim, value = key + shape.kv_heads * shape.head_dim;
      std::vector<double> numbers = qkv.values();
      const auto change = [&](int64_t sample, int64_t step, int64_t first, int64_t count, double factor) {
        for (int64_t t = sample * 1200; t < (sample + 1) * 1200; t += step)
          for (int64_t c = first; c < first + count; ++c) numbers[at(t * shape.qkv_columns() + c)] *= factor;
      };
      const double large = act == DType::kF16 ? 500 : 1e32;
      change(1, 517, key + 3, 1, NAN);
      change(2, 517, value + 5, 1, NAN);
      change(3, 100, value, shape.head_dim, large);
      change(4, 1, key, shape.head_dim, large);
      change(4, 1, 0, key, 1 / large);
      change(5, 1, 0, key, large);
      change(6, 1, value, shape.head_dim, 1 / large);
      change(7, 300, value, shape.head_dim, large);
      change(7, 1, 0, key, 100);
      qkv.fill(numbers);
      qkv.fill(reference::fp8_keys_values(qkv, shape));
      singles(lengths, shape, act, {{0}, {4096}}, qkv);
    }
}

}  // namespace
}  // namespace lfm2
