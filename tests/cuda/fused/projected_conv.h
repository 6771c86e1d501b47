// The sequences with which the tests of project_short_conv and norm_project_short_conv compare these with their parts.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/sequences.h"
#include "support/fp8_cases.h"

namespace lfm2::test {

// Compares operators that project and convolve with their parts, one after the other.
struct ProjectedConvTest : ::testing::Test {
  static constexpr int64_t kPage = 256;

  struct Case {
    int64_t hidden = 48, k = 64, taps = 3;
    DType act = DType::kBf16;
    bool biases = false;
    uint32_t seed = 1;
    bool norm = false;  // norm_project_short_conv, otherwise project_short_conv
    int64_t block = 1;  // tokens of each sequence in a batch; above 1 they are a draft block
    bool fp8 = false;   // in_proj has a scale for each row
  };

  // Sequences with `count` blocks, the last of which may be shorter, in rows together: first up to different positions,
  // then two blocks more.
  void check(int64_t count, const Case& c) {
    SCOPED_TRACE(fmt::format("{} tokens {}, hidden {} k {}, {} taps{}{}{}, blocks of {}", count, name(c.act), c.hidden,
                             c.k, c.taps, c.biases ? ", biases" : "", c.norm ? ", norm" : "", c.fp8 ? ", fp8" : "",
                             c.block));
    constexpr int64_t kPositions[] = {255, 0, 2, 256, 1, 5, 254};
    std::vector<int64_t> lengths;
    std::vector<Sequences::Part> before, single;
    for (int64_t s = 0, left = count; left > 0; ++s) {
      const int64_t position = kPositions[at((s + c.seed) % 7)], rows = std::min(c.block, left);
      lengths.push_back(position + 2 * rows);
      if (position > 0) before.push_back({s, position});
      single.push_back({s, rows, rows > 1});
      left -= rows;
    }
    const float spread = 2 / std::sqrt(static_cast<float>(c.k));
    HostTensor in_proj(c.act, {3 * c.hidden, c.k}), weight(c.act, {c.hidden, c.taps});
    HostTensor in_bias(c.act, {3 * c.hidden}), bias(DType::kF32, {c.hidden}), norm(c.act, {c.k});
    in_proj.fill_random(c.seed, spread);
    weight.fill_random(c.seed + 1);
    in_bias.fill_random(c.seed + 2);
    bias.fill_random(c.seed + 3);
    norm.fill_random(c.seed + 5);
    Sequences sequences(lengths, kPage, c.seed);
    const int64_t first_page_row = Sequences::kStateRows * sequences.slots();
    const HostTensor no_states = nans(DType::kF32, {first_page_row + sequences.pages(), c.taps - 1, c.hidden});
    const DeviceTensor w16(in_proj), taps(weight), w_bias(in_bias), taps_bias(bias), scale(norm);
    const Fp8Matrix host_w8({3 * c.hidden, c.k}, {1, 0}, c.seed);
    const DeviceTensor w8(host_w8.elements), w8_scales(host_w8.scales);
    const Tensor w = c.fp8 ? host_w8.with(w8, w8_scales) : static_cast<const Tensor&>(w16);
    const DeviceTensor apart_states(no_states), together_states(no_states);
    const Tensor product_bias = c.biases ? static_cast<const Tensor&>(w_bias) : Tensor();
    const Tensor conv_bias = c.biases ? static_cast<const Tensor&>(taps_bias) : Tensor();
    for (const auto& parts : {before, single, single}) {
      sequences.next(parts);
      const auto tokens = static_cast<int64_t>(sequences.tokens.size());
      HostTensor host_x(c.act, {tokens, c.k}), expected = nans(c.act, {tokens, c.hidden});
      host_x.fill_random(c.seed + 4, 3.0f);
      const HostTensor out = nans(c.act, {tokens, c.hidden}), bcz = nans(c.act, {tokens, 3 * c.hidden});
      const DeviceTensor x(host_x), apart(out), together(out), apart_bcz(bcz), together_bcz(bcz);
      const DeviceTensor apart_normed(host_x), together_normed(nans(c.act, {tokens, c.k}));
      on_gpu([&](Ops& ops) {
        const Tensor rows = c.fp8 ? as_fp8_rows(apart_normed, 0) : static_cast<const Tensor&>(apart_normed);
        if (c.norm) ops.rms_norm(x, scale, 1e-5f, rows);
        ops.matmul(rows, w, product_bias, apart_bcz, Write::kStore);
        ops.cached_short_conv(apart_bcz, taps, conv_bias, sequences.batch, {apart_states, first_page_row, kPage},
                              apart);
        const ConvCache cache{together_states, first_page_row, kPage};
        if (c.norm)
          ops.norm_project_short_conv(x, scale, 1e-5f, w, product_bias, taps, conv_bias, sequences.batch, cache,
                                      together_normed, together_bcz, together);
        else
          ops.project_short_conv(x, w, product_bias, taps, conv_bias, sequences.batch, cache, together_bcz, together);
      });
      apart.fetch(expected);
      together.fetch(out);
      together_bcz.fetch(bcz);
      ASSERT_TRUE(same_bits(out, expected)) << tokens << " tokens";
      HostTensor states = nans(DType::kF32, {no_states->dim(0), c.taps - 1, c.hidden});
      apart_states.fetch(no_states);
      together_states.fetch(states);
      ASSERT_TRUE(same_bits(states, no_states)) << "the states behind " << tokens << " tokens";
    }
  }
};

}  // namespace lfm2::test
