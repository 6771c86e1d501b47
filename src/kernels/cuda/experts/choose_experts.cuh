// One warp chooses a token's experts from its logits. For route, norm_route and norm_route_swiglu.
#pragma once

#include <cmath>

#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/experts/ballots.cuh"

namespace lfm2 {

// How experts are chosen, and how their weights follow.
struct ChoiceRule {
  const float* bias;  // [experts] or null
  int experts, top_k;
  bool normalize;
  float scale;
};

__device__ inline float probability(float logit) { return 1.0f / (1.0f + expf(-logit)); }
// The score by which experts are chosen; a NaN is chosen last.
__device__ inline float choice_score(float p, const ChoiceRule& rule, int expert) {
  const float biased = rule.bias != nullptr ? p + rule.bias[expert] : p;
  return isnan(biased) ? -INFINITY : biased;
}
__device__ inline float choice_weight(float p, float sum, const ChoiceRule& rule) {
  return (rule.normalize ? p / (sum + 1e-6f) : p) * rule.scale;
}

// For up to 32 kSets experts and 32 choices. Lane l has the logits of experts l, l + 32, ….
constexpr int kMaxChoices = 32;
template <int kSets>
__device__ void choose_experts(const float (&logits)[kSets], const ChoiceRule& rule, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  float p[kSets];
  uint32_t keys[kSets];  // larger for a larger score; 0 for an expert that does not exist or is chosen
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const int expert = lane + 32 * s;
    p[s] = probability(logits[s]);
    keys[s] = 0;
    if (expert >= rule.experts) continue;
    const uint32_t bits = __float_as_uint(choice_score(p[s], rule, expert) + 0.0f);  // adding 0 makes -0 equal to 0
    keys[s] = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  float sum = 0, my_p = 0;  // lane j keeps choice j
  int my_id = 0;
  for (int j = 0; j < rule.top_k; ++j) {
    uint32_t mine = keys[0];
#pragma unroll
    for (int s = 1; s < kSets; ++s) mine = max(mine, keys[s]);
    const uint32_t best = __reduce_max_sync(kAllLanes, mine);
    bool found = false;
#pragma unroll
    for (int s = 0; s < kSets; ++s) {  // the lowest id first
      const unsigned holders = __ballot_sync(kAllLanes, keys[s] == best);
      if (found || holders == 0) continue;
      found = true;
      const int holder = __ffs(static_cast<int>(holders)) - 1;
      const float chosen = __shfl_sync(kAllLanes, p[s], holder);
      sum += chosen;
      if (lane == holder) keys[s] = 0;
      if (lane == j) {
        my_p = chosen;
        my_id = holder + 32 * s;
      }
    }
  }
  if (lane >= rule.top_k) return;
  ids[lane] = my_id;
  weights[lane] = choice_weight(my_p, sum, rule);
}

// For any number of experts and choices. p [experts] holds the logits and becomes the probabilities; score [experts] is
// temporary memory. Both are in shared memory.
__device__ inline void choose_experts(float* p, float* score, const ChoiceRule& rule, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32, experts = rule.experts;
  for (int e = lane; e < experts; e += 32) {
    p[e] = probability(p[e]);
    score[e] = choice_score(p[e], rule, e);
  }
  __syncwarp();
  float sum = 0, last_score = 0;
  int last = -1;
  for (int j = 0; j < rule.top_k; ++j) {
    // The best expert that comes after `last` in the order (score descending, id ascending).
    int best = experts;
    float best_score = -INFINITY;
    for (int e = lane; e < experts; e += 32) {
      const bool after_last = last < 0 || score[e] < last_score || (score[e] == last_score && e > last);
      if (after_last && (best == experts || score[e] > best_score)) {
        best = e;
        best_score = score[e];
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(kAllLanes, best, step);
      const float other_score = __shfl_xor_sync(kAllLanes, best_score, step);
      if (other_score > best_score || (other_score == best_score && other < best)) {
        best = other;
        best_score = other_score;
      }
    }
    last = best;
    last_score = best_score;
    sum += p[best];
    if (lane == 0) {
      ids[j] = best;
      weights[j] = p[best];
    }
  }
  __syncwarp();
  for (int j = lane; j < rule.top_k; j += 32) weights[j] = choice_weight(weights[j], sum, rule);
}

}  // namespace lfm2
