// The operators short_conv and cached_short_conv: each token is computed separately.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace lfm2 {

namespace {

struct Taps {
  const float* weight = nullptr;  // [hidden, length]
  const float* bias = nullptr;    // [hidden] or null
  int64_t hidden = 0, length = 0;
};

// The input of the convolution in channel c: B ∘ z, where `row` holds B, C and z.
template <class T>
float gated_input(const T* row, int64_t hidden, int64_t c) {
  return to_float(row[c]) * to_float(row[2 * hidden + c]);
}

// Where the taps of one token find their inputs. Tap j reads the input length - 1 - j positions back. Taps below
// first_tap reach before the sample and read nothing. Taps below first_row read row j + past_row of `past` [..,
// hidden]; all others read bcz.
//   taps:   0 … first_tap … first_row … length - 1
//           none          past          bcz
struct Reach {
  int64_t first_tap = 0, first_row = 0;
  const float* past = nullptr;
  int64_t past_row = 0;
};
template <class T>
void convolve(const Taps& taps, const T* row, const Reach& reach, T* target) {
  const int64_t hidden = taps.hidden, length = taps.length;
  for (int64_t c = 0; c < hidden; ++c) {
    const float* weight = taps.weight + c * length;
    float sum = taps.bias != nullptr ? taps.bias[c] : 0.0f;
    for (int64_t j = reach.first_tap; j < reach.first_row; ++j)
      sum += weight[j] * reach.past[(j + reach.past_row) * hidden + c];
    for (int64_t j = reach.first_row; j < length; ++j)
      sum += weight[j] * gated_input(row - (length - 1 - j) * 3 * hidden, hidden, c);
    target[c] = from_float<T>(to_float(row[hidden + c]) * sum);
  }
}

Taps check_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch, const Tensor& out) {
  const int64_t hidden = weight.dim(0), length = weight.numel() / std::max<int64_t>(hidden, 1);
  expect(bcz.dim(0) == batch.tokens && bcz.dim(1) == 3 * hidden && out.dim(0) == batch.tokens && out.dim(1) == hidden &&
             out.dtype == bcz.dtype && (!bias || bias.numel() == hidden),
         "short_conv: shapes");
  return {nullptr, nullptr, hidden, length};
}

}  // namespace

void CpuOps::short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                        const Tensor& out) {
  Taps taps = check_conv(bcz, weight, bias, batch, out);
  taps.weight = as_float(weight, weights_);
  taps.bias = as_float(bias, more_weights_);
  const auto* positions = batch.positions.as<const int32_t>();
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each_row(batch.tokens, taps.hidden * (taps.length + 1), [&](int64_t token) {
      const int64_t first = std::max<int64_t>(0, taps.length - 1 - positions[token]);
      convolve(taps, bcz.as<const T>() + token * 3 * taps.hidden, {first, first, nullptr, 0},
               out.as<T>() + token * taps.hidden);
    });
  });
}

void CpuOps::cached_short_conv(const Tensor& bcz, const Tensor& weight, const Tensor& bias, const Batch& batch,
                               const ConvCache& cache, const Tensor& out) {
  Taps taps = check_conv(bcz, weight, bias, batch, out);
  taps.weight = as_float(weight, weights_);
  taps.bias = as_float(bias, more_weights_);
  const Tensor& states = cache.states;
  const int64_t hidden = taps.hidden, kept = taps.length - 1;
  expect(states.rank == 3 && states.dim(1) == kept && states.dim(2) == hidden && states.dtype == DType::kF32 &&
             batch.states.numel() == 2 * batch.sequences && batch.offsets.numel() == batch.sequences + 1 &&
             batch.sequence_of.numel() == batch.tokens && (!batch.here || batch.here.numel() == batch.sequences) &&
             (cache.page_size == 0 || (batch.page_table.rank == 2 && batch.page_table.dim(0) == batch.sequences)),
         "cached_short_conv: shapes");
  const auto* positions = batch.positions.as<const int32_t>();
  const auto* offsets = batch.offsets.as<const int32_t>();
  const auto* sequence_of = batch.sequence_of.as<const int32_t>();
  const auto* rows = batch.states.as<const int32_t>();
  // The number of rows before the token that continue the same text.
  const auto rows_before = [&, here = batch.here.as<const int32_t>()](int64_t sequence, int64_t token) {
    return token - offsets[sequence] + (batch.here ? here[sequence] : 0);
  };
  with_float_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* in = bcz.as<const T>();
    for_each_row(batch.tokens, hidden * (taps.length + 1), [&](int64_t token) {
      const int32_t sequence = sequence_of[token];
      expect(sequence >= 0 && sequence < batch.sequences, "cached_short_conv: a sequence that does not exist");
      const int64_t place = rows_before(sequence, token);
      expect(place >= 0 && place <= std::min<int64_t>(token, positions[token]),
             "cached_short_conv: a position beyond its sample");
      const int64_t first_tap = std::max<int64_t>(0, kept - positions[token]);
      const int64_t first_row = std::max<int64_t>(0, kept - place);
      convolve(taps, in + token * 3 * hidden,
               {first_tap, first_row, states.rows(rows[2 * sequence], 1).as<const float>(), place},
               out.as<T>() + token * hidden);
    });
    // The state after a token holds the inputs of the last positions: from bcz, and, if the batch has fewer, from the
    // previous state.
    const auto keep = [&](int64_t sequence, int64_t token, int64_t row) {
      const int64_t tokens = rows_before(sequence, token) + 1;  // of the text in this batch, up to this one
      expect(tokens > 0 && rows[2 * sequence] != row, "cached_short_conv: sequences");
      const auto* before = states.rows(rows[2 * sequence], 1).as<const float>();
      auto* after = states.rows(row, 1).as<float>();
      for (int64_t entry = std::max<int64_t>(0, kept - 1 - positions[token]); entry < kept; ++entry) {
        const int64_t back = kept - 1 - entry;  // positions back from the token
        float* target = after + entry * hidden;
        if (back < tokens) {
          for (int64_t c = 0; c < hidden; ++c) target[c] = gated_input(in + (token - back) * 3 * hidden, hidden, c);
        } else {
          std::memcpy(target, before + (entry + tokens) * hidden, static_cast<size_t>(hidden) * sizeof(float));
        }
      }
    };
    for_each_row(batch.sequences, kept * hidden,
                 [&](int64_t sequence) { keep(sequence, offsets[sequence + 1] - 1, rows[2 * sequence + 1]); });
    if (cache.page_size == 0) return;
    const int64_t width = batch.page_table.dim(1);
    for_each_row(batch.tokens, kept * hidden / cache.page_size, [&](int64_t token) {
      if ((positions[token] + 1) % cache.page_size != 0) return;
      const int64_t sequence = sequence_of[token], place = positions[token] / cache.page_size;
      expect(place < width, "cached_short_conv: a position beyond the pages");
      const int32_t page = batch.page_table.as<const int32_t>()[sequence * width + place];
      expect(page >= 0, "cached_short_conv: a page that does not exist");
      keep(sequence, token, cache.first_page_row + page);
    });
  });
}

void CpuOps::project_short_conv(const Tensor& x, const Tensor& in_proj, const Tensor& in_bias, const Tensor& weight,
                                const Tensor& bias, const Batch& batch, const ConvCache& cache, const Tensor& bcz,
                                const Tensor& out) {
  matmul(x, in_proj, in_bias, bcz, Write::kStore);
  cached_short_conv(bcz, weight, bias, batch, cache, out);
}

void CpuOps::norm_project_short_conv(const Tensor& x, const Tensor& norm_weight, float eps, const Tensor& in_proj,
                                     const Tensor& in_bias, const Tensor& weight, const Tensor& bias,
                                     const Batch& batch, const ConvCache& cache, const Tensor& normed,
                                     const Tensor& bcz, const Tensor& out) {
  rms_norm(x, norm_weight, eps, normed);
  project_short_conv(normed, in_proj, in_bias, weight, bias, batch, cache, bcz, out);
}

}  // namespace lfm2
