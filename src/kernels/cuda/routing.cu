// route and group_by_expert: which experts each token goes to, and the stable counting sort of those assignments.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/device_types.cuh"

namespace lfm2 {

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kRouteWarps = 4;
constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32;

// A warp takes a token; lane l looks at experts l, l + 32, …. Shared: each warp's probabilities and scores.
__global__ void route_kernel(RouteArgs args) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, experts = args.experts;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (token >= args.tokens) return;
  float* p = shared + warp * 2 * experts;
  float* score = p + experts;
  for (int e = lane; e < experts; e += 32) {
    p[e] = 1.0f / (1.0f + expf(-args.logits[token * experts + e]));
    const float biased = args.bias != nullptr ? p[e] + args.bias[e] : p[e];
    score[e] = isnan(biased) ? -INFINITY : biased;  // a NaN is chosen last
  }
  __syncwarp();
  int32_t* ids = args.ids + token * args.top_k;
  float* weights = args.weights + token * args.top_k;
  float sum = 0, last_score = 0;
  int last = -1;
  for (int j = 0; j < args.top_k; ++j) {
    // The best that comes after `last` in the order (score descending, id ascending).
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
  for (int j = lane; j < args.top_k; j += 32)
    weights[j] = (args.normalize ? weights[j] / (sum + 1e-6f) : weights[j]) * args.scale;
}

struct Chunks {
  int blocks;
  int64_t size;  // assignments of a block; the last one may have fewer
};

// Counts of one chunk: workspace[block, expert].
__global__ void count_experts_kernel(GroupByExpertArgs args, Chunks chunks) {
  __shared__ int counts[kMaxExperts];
  for (int e = threadIdx.x; e < args.experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * chunks.size, end = min(first + chunks.size, args.assignments);
  for (int64_t i = first + threadIdx.x; i < end; i += kGroupThreads) {
    const int expert = args.ids[i];
    device_expect(expert >= 0 && expert < args.experts);
    atomicAdd(&counts[expert], 1);  // integers: any order gives the same counts
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.experts; e += kGroupThreads)
    args.workspace[static_cast<int64_t>(blockIdx.x) * args.experts + e] = counts[e];
}

// next[e] = the first row of expert e in this block's chunk; block 0 also writes the offsets.
__device__ void first_rows(const GroupByExpertArgs& args, Chunks chunks, int* next, int* totals) {
  for (int e = threadIdx.x; e < args.experts; e += kGroupThreads) next[e] = totals[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < chunks.blocks * args.experts; i += kGroupThreads) {
    const int count = args.workspace[i], expert = i % args.experts;
    if (count == 0) continue;
    atomicAdd(&totals[expert], count);
    if (i / args.experts < static_cast<int>(blockIdx.x)) atomicAdd(&next[expert], count);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int base = 0; base < args.experts; base += 32) {
      const int e = base + static_cast<int>(threadIdx.x), total = e < args.experts ? totals[e] : 0;
      int upto = total;
      for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(kAllLanes, upto, step);
        if (static_cast<int>(threadIdx.x) >= step) upto += left;
      }
      if (e < args.experts) {
        next[e] += before + upto - total;
        if (blockIdx.x == 0) args.offsets[e + 1] = before + upto;
      }
      before += __shfl_sync(kAllLanes, upto, 31);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) args.offsets[0] = 0;
  }
  __syncthreads();
}

// Gives every assignment of the chunk its row, in order: rounds of one assignment a thread; within a round, warps in
// order, and within a warp, lanes in order.
__global__ void group_by_expert_kernel(GroupByExpertArgs args, Chunks chunks) {
  __shared__ int next[kMaxExperts];
  __shared__ int warp_rows[kGroupWarps][kMaxExperts];  // counts of a warp, then its first rows
  first_rows(args, chunks, next, warp_rows[0]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = blockIdx.x * chunks.size, end = min(first + chunks.size, args.assignments);
  for (int64_t round = first; round < end; round += kGroupThreads) {
    for (int e = lane; e < args.experts; e += 32) warp_rows[warp][e] = 0;
    __syncwarp();
    const int64_t i = round + threadIdx.x;
    const int expert = i < end ? args.ids[i] : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (expert >= 0 && rank == 0) warp_rows[warp][expert] = __popc(same);
    __syncthreads();
    for (int e = threadIdx.x; e < args.experts; e += kGroupThreads) {
      int row = next[e];
      for (int w = 0; w < kGroupWarps; ++w) {
        const int count = warp_rows[w][e];
        warp_rows[w][e] = row;
        row += count;
      }
      next[e] = row;
    }
    __syncthreads();
    if (expert >= 0) {
      const int row = warp_rows[warp][expert] + rank;
      args.rows[i] = row;
      args.sources[row] = static_cast<int32_t>(i / args.top_k);
    }
    __syncwarp();  // before this warp's counts are cleared
  }
}

}  // namespace

void launch_route(cudaStream_t stream, const RouteArgs& args) {
  if (args.tokens == 0) return;
  const size_t shared_bytes = static_cast<size_t>(kRouteWarps * 2 * args.experts) * sizeof(float);
  route_kernel<<<static_cast<unsigned>(ceil_divide(args.tokens, kRouteWarps)), kRouteWarps * 32, shared_bytes,
                 stream>>>(args);
  check_launch("route_kernel");
}

void launch_group_by_expert(cudaStream_t stream, const GroupByExpertArgs& args) {
  constexpr int64_t kSmallestChunk = 2048;
  Chunks chunks;
  chunks.blocks =
      static_cast<int>(std::clamp<int64_t>(ceil_divide(args.assignments, kSmallestChunk), 1, kMaxGroupBlocks));
  chunks.size = ceil_divide(ceil_divide(args.assignments, chunks.blocks), kGroupThreads) * kGroupThreads;
  count_experts_kernel<<<static_cast<unsigned>(chunks.blocks), kGroupThreads, 0, stream>>>(args, chunks);
  check_launch("count_experts_kernel");
  group_by_expert_kernel<<<static_cast<unsigned>(chunks.blocks), kGroupThreads, 0, stream>>>(args, chunks);
  check_launch("group_by_expert_kernel");
}

}  // namespace lfm2
