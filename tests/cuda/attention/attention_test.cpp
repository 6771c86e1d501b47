// attention on the GPU, compared with transformers' results, the CPU's operator and double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/sequences.h"
#include "support/golden.h"
#include "support/index_cast.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaAttentionTest : ::testing::Test {
  CpuReference cpu;
};

// One token's attention in double precision, and what a computation with fp32 sums may lose.
struct Row {
  std::vector<double> values, tolerances;  // [heads, head_dim]
};
Row reference(const HostTensor& qkv, AttentionShape shape, int64_t token, int64_t position, DType out) {
  const int64_t d = shape.head_dim, columns = shape.qkv_columns();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  Row row;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t kv = head / (shape.heads / shape.kv_heads), first = token - position;
    std::vector<double> scores;
    double largest = -HUGE_VAL, magnitude = 0, sum = 0;
    for (int64_t key = first; key <= token; ++key) {
      double score = 0, absolute = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double term =
            qkv.get(at(token * columns + head * d + i)) * qkv.get(at(key * columns + (shape.heads + kv) * d + i));
        score += term;
        absolute += std::fabs(term);
      }
      scores.push_back(score * scale);
      largest = std::max(largest, scores.back());
      magnitude = std::max(magnitude, absolute * scale);
    }
    for (double& score : scores) sum += score = std::exp(score - largest);
    std::vector<double> value(at(d)), absolute(at(d));
    for (int64_t key = first; key <= token; ++key)
      for (int64_t i = 0; i < d; ++i) {
        const double v = qkv.get(at(key * columns + (shape.heads + shape.kv_heads + kv) * d + i));
        value[at(i)] += scores[at(key - first)] / sum * v;
        absolute[at(i)] += scores[at(key - first)] / sum * std::fabs(v);
      }
    // A score's error (that of its products' sum and of the scale) is a relative error of its weight, above and below
    // the fraction. To it come the errors of the exponential, of the 64 keys of a tile, added in order, of the tiles,
    // added in order (at random, so their square root), and, for the 16-bit types, of the two terms of a probability.
    const double score_error = (static_cast<double>(d) / 8 + 8) * magnitude;
    const double tiles = std::sqrt(static_cast<double>(scores.size()) / 64);
    const double split = out == DType::kF32 ? 0 : 512 * rounding_unit(out) * rounding_unit(out) * 0x1p15;
    const double steps = 2 * score_error + 64 + 4 * tiles + split;
    for (size_t i = 0; i < value.size(); ++i) {
      row.values.push_back(value[i]);
      row.tolerances.push_back(steps * 0x1p-24 * absolute[i] + store_error(out, value[i]));
    }
  }
  return row;
}

HostTensor attend(const HostTensor& qkv, AttentionShape shape, const Batch& batch) {
  HostTensor out(qkv->dtype, {qkv->dim(0), shape.heads * shape.head_dim});
  const DeviceTensor device(qkv), device_out(out);
  on_gpu([&](Ops& ops) { ops.attention(device, shape, batch, device_out); });
  device_out.fetch(out);
  return out;
}

void check_all(const HostTensor& qkv, AttentionShape shape, const PackedSamples& packed) {
  std::vector<double> expected, tolerance;
  for (int64_t token = 0; token < packed.tokens(); ++token) {
    const Row row = reference(qkv, shape, token, static_cast<int64_t>(packed.places[at(token)]), qkv->dtype);
    expected.insert(expected.end(), row.values.begin(), row.values.end());
    tolerance.insert(tolerance.end(), row.tolerances.begin(), row.tolerances.end());
  }
  expect_close(attend(qkv, shape, packed.device), expected, tolerance);
}

TEST_F(CudaAttentionTest, AgreesWithTransformers) {
  const auto file = golden_dir() / "operators.h5";
  const auto q = read_array(file, "gqa_attention/q"), k = read_array(file, "gqa_attention/k"),
             v = read_array(file, "gqa_attention/v"), y = read_array(file, "gqa_attention/y");
  const AttentionShape shape{q.dim(2), k.dim(2), q.dim(3)};
  const PackedSamples packed(std::vector<int64_t>(at(q.dim(0)), q.dim(1)));
  HostTensor qkv(DType::kF32, {packed.tokens(), shape.qkv_columns()});
  std::vector<double> joined;
  for (int64_t token = 0; token < packed.tokens(); ++token)
    for (const auto* part : {&q, &k, &v}) {
      const int64_t width = part->dim(2) * part->dim(3);
      joined.insert(joined.end(), part->values.begin() + token * width, part->values.begin() + (token + 1) * width);
    }
  qkv.fill(joined);
  std::vector<double> tolerance;
  for (int64_t token = 0; token < packed.tokens(); ++token) {
    const Row row = reference(qkv, shape, token, static_cast<int64_t>(packed.places[at(token)]), DType::kF32);
    for (const double bound : row.tolerances) tolerance.push_back(2 * bound);  // the golden file is fp32 too
  }
  expect_close(attend(qkv, shape, packed.device), y.values, tolerance);
}

TEST_F(CudaAttentionTest, EveryTypeShapeAndLength) {
  const PackedSamples packed({1, 30, 2, 0, 9, 32, 32, 64, 65, 1, 130});
  for (const DType act : kFloatTypes)
    for (const AttentionShape shape : {AttentionShape{4, 2, 8},
                                       {6, 1, 24},
                                       {8, 2, 64},
                                       {32, 8, 64},
                                       {3, 3, 82},
                                       {4, 2, 16},
                                       {2, 1, 256},
                                       {5, 1, 2},
                                       {40, 1, 128}}) {
      SCOPED_TRACE(fmt::format("{} heads {} {} {}", name(act), shape.heads, shape.kv_heads, shape.head_dim));
      HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
      qkv.fill_random(1, 1.5f);
      check_all(qkv, shape, packed);
    }
}

TEST_F(CudaAttentionTest, LargeScores) {
  for (const auto& [shape, length] : {std::pair<AttentionShape, int64_t>{{2, 1, 16}, 700}, {{4, 1, 64}, 200}})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), shape.head_dim));
      HostTensor qkv(act, {length, shape.qkv_columns()});
      qkv.fill_random(1, 6.0f);  // scores go beyond 100 and would overflow if the largest were not subtracted
      check_all(qkv, shape, PackedSamples({length}));
    }
}

TEST_F(CudaAttentionTest, OneTokenSamples) {
  const PackedSamples packed(std::vector<int64_t>(200, 1));
  for (const DType act : kFloatTypes) {
    HostTensor qkv(act, {200, 6 * 64});
    qkv.fill_random(1);
    check_all(qkv, {4, 1, 64}, packed);
  }
}

TEST_F(CudaAttentionTest, LongSamplesAgainstTheCpu) {
  const PackedSamples packed({5000, 700});
  const AttentionShape shape{4, 1, 64};
  for (const DType act : kFloatTypes) {
    SCOPED_TRACE(name(act));
    HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()}), expected(act, {packed.tokens(), 256});
    qkv.fill_random(1, 1.5f);
    const HostTensor out = attend(qkv, shape, packed.device);
    cpu.ops.attention(qkv, shape, packed.host, expected);
    expect_close_to_cpu(out, expected, std::vector<double>(out.size(), 1.5), act == DType::kF32 ? 300 : 700);
  }
}

TEST_F(CudaAttentionTest, LongestSampleAgainstDoublePrecision) {
  const int64_t tokens = 65536;
  const PackedSamples packed({tokens});
  const AttentionShape shape{4, 1, 64};
  for (const DType act : kFloatTypes) {
    SCOPED_TRACE(name(act));
    HostTensor qkv(act, {tokens, shape.qkv_columns()});
    qkv.fill_random(1, 1.5f);
    const HostTensor out = attend(qkv, shape, packed.device);
    for (const int64_t token : {int64_t{0}, int64_t{63}, int64_t{64}, int64_t{30001}, tokens - 1}) {
      const Row row = reference(qkv, shape, token, token, act);
      HostTensor part(act, {1, 256});
      std::memcpy(part->data, out->rows(token, 1).data, part->bytes());
      SCOPED_TRACE(token);
      expect_close(part, row.values, row.tolerances);
    }
  }
}

TEST_F(CudaAttentionTest, ASampleHasTheSameBitsAloneAndInABatch) {
  const PackedSamples packed({3, 400, 5}), alone({400}), shorter({77});
  for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {32, 8, 64}, {4, 4, 128}})
    for (const DType act : kFloatTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(act), shape.head_dim));
      HostTensor qkv(act, {408, shape.qkv_columns()}), part(act, {400, shape.qkv_columns()});
      HostTensor prefix(act, {77, shape.qkv_columns()});
      qkv.fill_random(1);
      std::memcpy(part->data, qkv->rows(3, 400).data, part->bytes());
      std::memcpy(prefix->data, qkv->rows(3, 77).data, prefix->bytes());
      const HostTensor whole = attend(qkv, shape, packed.device);
      EXPECT_TRUE(same_bits(attend(part, shape, alone.device), whole->rows(3, 400)));
      EXPECT_TRUE(same_bits(attend(prefix, shape, shorter.device), whole->rows(3, 77)));
    }
}

TEST_F(CudaAttentionTest, WantedTokensHaveTheirBitsAndOthersAreLeftOut) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{32, 3, 32, 1, 20}, {3, 400, 5, 1, 96, 97, 2000}})
    for (const AttentionShape shape : {AttentionShape{8, 2, 24}, {32, 8, 64}, {4, 4, 128}})
      for (const DType act : kFloatTypes)
        for (const int64_t wanted : {1, 5, 50}) {
          SCOPED_TRACE(fmt::format("{} {}, {} wanted", name(act), shape.head_dim, wanted));
          PackedSamples packed(lengths);
          HostTensor qkv(act, {packed.tokens(), shape.qkv_columns()});
          qkv.fill_random(1);
          const HostTensor expected = attend(qkv, shape, packed.device);
          packed.device.wanted = wanted;
          HostTensor out = nans(act, {packed.tokens(), shape.heads * shape.head_dim});
          const DeviceTensor device(qkv), device_out(out);
          on_gpu([&](Ops& ops) { ops.attention(device, shape, packed.device, device_out); });
          device_out.fetch(out);
          int64_t end = 0;
          for (const int64_t length : lengths) {
            end += length;
            const int64_t count = std::min(length, wanted);
            EXPECT_TRUE(same_bits(out->rows(end - count, count), expected->rows(end - count, count)));
            // A tile has 128 positions or fewer.
            if (length >= wanted + 128) {
              EXPECT_TRUE(std::isnan(out.get(at((end - length) * out->dim(1)))));
            }
          }
        }
}

TEST_F(CudaAttentionTest, NoTokens) {
  const PackedSamples none({});
  for (const DType act : kFloatTypes) {
    const HostTensor qkv(act, {0, 64}), out(act, {0, 32});
    const DeviceTensor device(qkv), device_out(out);
    on_gpu([&](Ops& ops) { ops.attention(device, {4, 2, 8}, none.device, device_out); });
    device_out.fetch(out);
  }
}

}  // namespace
}  // namespace lfm2
