// The arithmetic of `sample`, with the same bits on CPU and GPU: integers, and floats by operations that IEEE 754
// rounds. Every product in a sum is an explicit fmaf, which leaves compilers nothing to contract.
//
// A rule first adjusts the logits, in this order:
// - biases are added;
// - repetition_penalty divides the logits of tokens in prompt or text (it multiplies negative ones);
// - OpenAI's penalties are subtracted;
// - tokens that are banned or outside the mask become impossible.
//
// Then a token is drawn from the adjusted logits. Greedy (temperature 0): the token with the largest sampling_key, ties
// to the lower id. Otherwise, in the order of descending sampling_key and ascending id:
//   top_k  keeps the first k tokens (all if k is 0 or at least vocab);
//   top_p  of these, with masses m, keeps each token before which the masses sum to less than nucleus_mass(top_p, Σ m);
//   min_p  of these keeps each token whose mass is at least least_mass(min_p);
//   then the token is drawn at which the sum of the kept masses, in the order of ids, first exceeds
//   draw_below(Σ of the kept masses, seed, draws).
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace lfm2 {

// How a token is drawn from logits. Rules are data: each row of a batch has its own. The distribution is softmax(logits
// / temperature), restricted to the top_k largest (0: all), of these to the fewest largest that together hold at least
// top_p, and of these to tokens at least min_p times as likely as the most probable one. Ties go to the lower id.
// Temperature 0 is greedy.
struct SamplingRule {
  float temperature = 0;  // at least 0
  int64_t top_k = 0;      // at least 0
  float top_p = 1;
  uint64_t seed = 0;
  float min_p = 0;  // from 0 to 1
  // Adjustments of the logits before the draw. repetition_penalty applies to tokens of prompt and text, the other two
  // only to tokens of the text: presence_penalty once, frequency_penalty for each occurrence.
  float repetition_penalty = 1;  // above 0
  float presence_penalty = 0, frequency_penalty = 0;
  int32_t biases = 0;  // the number of tokens that have a bias: see LogitEdit
  int32_t banned = 0;  // the number of tokens that are not drawn at places before min_tokens
  int32_t min_tokens = 0;
  int32_t constrained = 0;  // 1: a mask says which tokens may be drawn, at every place

  // Whether draws depend on the tokens before them.
  LFM2_HOST_DEVICE bool counts() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  // Whether the draw at this place of the text uses adjusted logits.
  LFM2_HOST_DEVICE bool adjusts(int32_t place) const {
    return counts() || biases > 0 || (banned > 0 && place < min_tokens) || constrained != 0;
  }
  bool operator==(const SamplingRule&) const = default;
};
constexpr int64_t kRuleWords = sizeof(SamplingRule) / sizeof(int32_t);

// A change of one token's logit. A sequence has a list of them: first its biases, then its banned tokens.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0;  // unused for a banned token
  bool operator==(const LogitEdit&) const = default;
};
constexpr int64_t kEditWords = sizeof(LogitEdit) / sizeof(int32_t);

// The units of a token's count in a sequence: kInPrompt once if the prompt contains the token, kInText for each
// occurrence in the text after the prompt.
constexpr int32_t kInPrompt = 1, kInText = 2;

// A logit, to which its bias was added, after the rule's penalties. `count` is the token's sum of kInPrompt and
// kInText.
LFM2_HOST_DEVICE inline float penalized(float logit, int32_t count, const SamplingRule& rule) {
  if (count == 0) return logit;
  const float x = logit < 0.0f ? logit * rule.repetition_penalty : logit / rule.repetition_penalty;
  const int32_t times = count / kInText;
  if (times == 0) return x;
  return fmaf(-rule.frequency_penalty, static_cast<float>(times), x) - rule.presence_penalty;
}

// A mask has one bit for each token of the vocabulary, 32 in a word, the lowest bit first.
LFM2_HOST_DEVICE constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }
LFM2_HOST_DEVICE inline bool allows(const uint32_t* mask, int64_t token) {
  return (mask[token / 32] >> (token % 32) & 1u) != 0;
}
// The adjusted logit of a token under a mask. An excluded token has the smallest key, and no mass. An allowed one has
// a larger key, whatever its logit: so no draw takes an excluded token while the mask allows one.
LFM2_HOST_DEVICE inline float masked_logit(float logit, bool allowed) {
  if (!allowed) return -INFINITY;
  return logit > -FLT_MAX ? logit : -FLT_MAX;
}

constexpr int kMassBits = 40;  // the most likely token has mass 2^kMassBits
// The largest vocabulary whose sum of masses fits in 64 bits.
constexpr int64_t kMaxSampled = (int64_t{1} << (64 - kMassBits)) - 1;

// A key that grows with the logit. A NaN counts as -infinity, and both zeros have the same key.
LFM2_HOST_DEVICE inline uint32_t sampling_key(float logit) {
  uint32_t bits;
  const float x = logit != logit ? -INFINITY : logit + 0.0f;
  memcpy(&bits, &x, sizeof bits);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
LFM2_HOST_DEVICE inline float sampling_logit(uint32_t key) {
  const uint32_t bits = (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// floor(2^40 exp((logit - largest) coldness)), with exp off by at most 2^-22 of itself. The logits must not be NaN
// (they are the sampling_logit of a key). The largest has mass 2^40 even where it is infinite. coldness is 1 /
// temperature, rounded to fp32.
LFM2_HOST_DEVICE inline uint64_t mass_of(float logit, float largest, float coldness) {
  if (logit == largest) return uint64_t{1} << kMassBits;
  const float x = (logit - largest) * coldness;
  if (!(x > -30.0f)) return 0;  // 2^40 exp(-30) = 0.1
  // n is x / ln 2 rounded to the nearest integer: added to 1.5 2^23, it stands in the lowest bits.
  const float shifted = fmaf(x, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
  // The constant ln 2 is in two parts. The first has few bits, so that its product with n is exact.
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.0f / 720;
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  // p is exp(r) with |r| <= ln 2 / 2: from 0.7 to 1.5, and at most 1 where n is 0.
  p = fmaf(p, r, 1.0f);
  // p 2^(40 + n) is computed in integers: p is its 24-bit significand times 2^(exponent - 150).
  uint32_t bits, shifted_bits;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&shifted_bits, &shifted, sizeof shifted_bits);
  const auto power = static_cast<int32_t>(shifted_bits - 0x4b400000u);
  const int32_t shift = static_cast<int32_t>(bits >> 23) - 150 + kMassBits + power;
  const uint32_t digits = (bits & 0x7fffffu) | 0x800000u;
  return shift >= 0 ? static_cast<uint64_t>(digits) << shift : digits >> -shift;
}

// The smallest mass that is at least the share top_p of `total`; at least 1.
LFM2_HOST_DEVICE inline uint64_t nucleus_mass(float top_p, uint64_t total) {
  if (top_p >= 1.0f) return total;
  const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  if (!(mass > 1.0)) return 1;
  if (mass >= 18446744073709551616.0) return total;
  const uint64_t whole = static_cast<uint64_t>(mass);
  return whole < total ? whole : total;
}

// The smallest mass that is at least min_p times that of the most probable token.
LFM2_HOST_DEVICE inline uint64_t least_mass(float min_p) {
  return static_cast<uint64_t>(ceil(static_cast<double>(min_p) * static_cast<double>(uint64_t{1} << kMassBits)));
}

struct Philox {
  uint32_t words[4];
};

// Philox4x32 with 10 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3).
LFM2_HOST_DEVICE inline Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.words[0], b = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.words[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.words[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// floor(a b / 2^64)
LFM2_HOST_DEVICE inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64_t low = a0 * b0, mid = a1 * b0 + (low >> 32), other = a0 * b1 + (mid & 0xffffffffu);
  return a1 * b1 + (mid >> 32) + (other >> 32);
}

// A number below `total`: where in the kept masses the draw falls. rng_stream and place are the row's `draws`.
LFM2_HOST_DEVICE inline uint64_t draw_below(uint64_t total, uint64_t seed, int32_t rng_stream, int32_t place) {
  const Philox random = philox({{static_cast<uint32_t>(rng_stream), static_cast<uint32_t>(place), 0, 0}},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return multiply_high(uint64_t{random.words[0]} << 32 | random.words[1], total);
}

}  // namespace lfm2
