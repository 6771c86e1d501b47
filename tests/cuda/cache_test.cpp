// The operators with caches on the GPU: they give the bits of whole samples, however those are cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

size_t at(int64_t i) { return static_cast<size_t>(i); }

HostTensor ints(const std::vector<double>& values, int64_t rows, int64_t columns = 0) {
  HostTensor tensor = columns > 0 ? HostTensor(DType::kI32, {rows, columns}) : HostTensor(DType::kI32, {rows});
  tensor.fill(values);
  return tensor;
}

// Samples of given lengths whose tokens come in any portions, and the batches of it.
class Sequences {
 public:
  Sequences(const std::vector<int64_t>& lengths, int64_t page, uint32_t seed)
      : packed(lengths),
        lengths_(lengths),
        page_(page),
        generator_(seed),
        done_(lengths.size()),
        states_(lengths.size()) {
    int64_t pages = 0;
    for (const int64_t length : lengths) {
      most_pages_ = std::max(most_pages_, (length + page - 1) / page);
      pages += (length + page - 1) / page;
    }
    free_.resize(at(pages + 3));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), generator_);
    pages_of_.resize(lengths.size());
  }

  int64_t pages() const { return static_cast<int64_t>(free_.size()) + taken_; }
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  bool finished() const {
    for (size_t s = 0; s < done_.size(); ++s)
      if (done_[s] < lengths_[s]) return false;
    return true;
  }
  int64_t left(int64_t s) const { return lengths_[at(s)] - done_[at(s)]; }
  int64_t random(int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(generator_); }

  struct Part {
    int64_t sequence, count;
  };
  // Some of the unfinished sequences: one token, a few or many.
  std::vector<Part> random_parts(int64_t most) {
    std::vector<Part> parts;
    for (int64_t s = 0; s < slots(); ++s) {
      if (left(s) == 0) continue;
      const int64_t kind = random(5);
      if (kind == 1) continue;
      parts.push_back({s, kind <= 3 ? 1 : std::min(left(s), random(kind == 4 ? 5 : most))});
    }
    std::shuffle(parts.begin(), parts.end(), generator_);
    return parts;
  }

  // The next tokens of these sequences as a batch. Of the parts with one token, those at the front are singles, but
  // for the last `plain` of them.
  void next(std::vector<Part> parts, size_t plain = 0) {
    std::stable_sort(parts.begin(), parts.end(), [](Part a, Part b) { return (a.count == 1) > (b.count == 1); });
    std::vector<double> positions, offsets{0}, sequence_of, table, states;
    tokens.clear();
    longest = 0;
    singles = 0;
    for (const Part& part : parts) {
      auto& pages = pages_of_[at(part.sequence)];
      int64_t& done = done_[at(part.sequence)];
      for (int64_t i = 0; i < part.count; ++i) {
        positions.push_back(static_cast<double>(done + i));
        sequence_of.push_back(static_cast<double>(offsets.size() - 1));
        tokens.push_back(static_cast<int64_t>(packed.starts[at(part.sequence)]) + done + i);
      }
      done += part.count;
      longest = std::max(longest, done);
      while (static_cast<int64_t>(pages.size()) * page_ < done) {
        pages.push_back(free_.back());
        free_.pop_back();
        ++taken_;
      }
      for (int64_t i = 0; i < most_pages_; ++i)
        table.push_back(i < static_cast<int64_t>(pages.size()) ? static_cast<double>(pages[at(i)]) : 2e9);
      offsets.push_back(static_cast<double>(positions.size()));
      int& turn = states_[at(part.sequence)];
      states.push_back(static_cast<double>(2 * part.sequence + turn));
      turn = 1 - turn;
      states.push_back(static_cast<double>(2 * part.sequence + turn));
      if (part.count == 1) ++singles;
    }
    singles -= std::min(singles, static_cast<int64_t>(plain));
    const auto count = static_cast<int64_t>(positions.size()), sequences = static_cast<int64_t>(parts.size());
    memory_.clear();
    for (const auto& host : {ints(positions, count), ints(offsets, sequences + 1), ints(sequence_of, count)})
      memory_.push_back(std::make_unique<DeviceTensor>(host));
    memory_.push_back(std::make_unique<DeviceTensor>(ints(table, sequences, most_pages_)));
    memory_.push_back(std::make_unique<DeviceTensor>(ints(states, sequences, 2)));
    batch = {.positions = *memory_[0],
             .offsets = *memory_[1],
             .tokens = count,
             .sequences = sequences,
             .max_length = longest,
             .singles = singles,
             .sequence_of = *memory_[2],
             .page_table = *memory_[3],
             .states = *memory_[4]};
  }

  // The batch's rows of a tensor over all tokens; and back.
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
  std::vector<int64_t> tokens;  // of the batch, in `packed`
  int64_t longest = 0, singles = 0;

 private:
  std::vector<int64_t> lengths_;
  int64_t page_, most_pages_ = 0, taken_ = 0;
  std::mt19937 generator_;
  std::vector<int64_t> done_;
  std::vector<int> states_;
  std::vector<int64_t> free_;
  std::vector<std::vector<int64_t>> pages_of_;
  std::vector<std::unique_ptr<DeviceTensor>> memory_;
};

HostTensor nans(DType dtype, std::initializer_list<int64_t> shape) {
  HostTensor tensor(dtype, shape);
  std::memset(tensor->data, 0xff, tensor->bytes());
  return tensor;
}

class CachedAttentionTest : public ::testing::Test {
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
  // Whether the batch has the bits of the whole samples. `bound`: of its longest sequence, or 0: exactly.
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

  // Samples whose tokens come in random portions of up to `most`, or, of the one sample there is, in these `portions`.
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

TEST_F(CachedAttentionTest, EveryTypeShapeAndPageInRandomPortions) {
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

// Every kernel and the join of splits once, quickly enough for compute-sanitizer.
TEST_F(CachedAttentionTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16}) {
    in_portions({1, 70, 33}, 16, {8, 2, 64}, act, 1, 60, {0});
    in_portions({40, 3}, 16, {3, 3, 82}, act, 2, 60, {0});
    in_portions({2060}, 256, {4, 1, 64}, act, 3, 2048, {4096, int64_t{1} << 26}, 0, {2056, 1, 1, 1, 1});
  }
}

TEST_F(CachedAttentionTest, LongSamplesInRandomPortions) {
  const std::vector<int64_t> lengths = {5000, 1023, 1024, 1025, 2049, 2100, 70};
  uint32_t seed = 100;
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 1, 64}, {3, 1, 128}, {2, 1, 256}, {6, 2, 16}})
      for (const int64_t page : {1, 16, 256}) {
        if (page == 1 && shape.head_dim != 64) continue;
        // The bound decides which blocks compute what: exact, rounded up, so long that no workspace holds the parts.
        in_portions(lengths, page, shape, act, ++seed, 1500, {0, 16384, int64_t{1} << 26});
      }
}

TEST_F(CachedAttentionTest, ManySequencesOfOneToken) {
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

class CachedShortConvTest : public ::testing::Test {
 protected:
  static void check(const std::vector<int64_t>& lengths, int64_t hidden, int64_t taps, bool with_bias, DType act,
                    uint32_t seed) {
    SCOPED_TRACE(fmt::format("{} hidden {}, {} taps", name(act), hidden, taps));
    Sequences sequences(lengths, 16, seed);
    const int64_t tokens = sequences.packed.tokens();
    HostTensor bcz(act, {tokens, 3 * hidden}), weight(act, {hidden, taps}), bias(DType::kF32, {hidden});
    HostTensor whole(act, {tokens, hidden});
    bcz.fill_random(seed);
    weight.fill_random(seed + 1);
    bias.fill_random(seed + 2);
    const HostTensor no_states = nans(DType::kF32, {2 * sequences.slots(), taps - 1, hidden});
    const DeviceTensor in(bcz), device_weight(weight), device_bias(bias), device_whole(whole), states(no_states);
    const Tensor& bias_or_none = with_bias ? static_cast<const Tensor&>(device_bias) : Tensor();
    on_gpu([&](Ops& ops) { ops.short_conv(in, device_weight, bias_or_none, sequences.packed.device, device_whole); });
    device_whole.fetch(whole);
    while (!sequences.finished()) {
      const auto parts = sequences.random_parts(1200);
      if (parts.empty()) continue;
      sequences.next(parts);
      const HostTensor expected = sequences.take(whole);
      HostTensor out = nans(act, {expected->dim(0), hidden});
      const DeviceTensor rows(sequences.take(bcz)), device_out(out);
      on_gpu([&](Ops& ops) {
        ops.cached_short_conv(rows, device_weight, bias_or_none, sequences.batch, states, device_out);
      });
      device_out.fetch(out);
      ASSERT_TRUE(same_bits(out, expected));
    }
    states.fetch(no_states);
  }
};

TEST_F(CachedShortConvTest, HasTheBitsOfWholeSamples) {
  uint32_t seed = 0;
  for (const DType act : kFloatTypes)
    for (const int64_t hidden : {264, 33, 8})
      for (const int64_t taps : {3, 1, 2, 4, 7})
        for (const bool with_bias : {false, true})
          check({1, 2, 3, 40, 5, 700, 9, 1, 64, 33, 2500}, hidden, taps, with_bias, act, ++seed);
}

TEST_F(CachedShortConvTest, AFewTokens) {
  for (const DType act : {DType::kF32, DType::kBf16})
    for (const int64_t hidden : {64, 33}) check({1, 2, 40, 9}, hidden, 3, true, act, 1);
}

}  // namespace
}  // namespace lfm2
