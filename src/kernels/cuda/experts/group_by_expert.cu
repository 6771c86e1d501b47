// group_by_expert: a stable counting sort of the assignments of tokens to experts.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/common/device_types.cuh"
#include "kernels/cuda/experts/ballots.cuh"
#include "kernels/cuda/experts/launch.h"

namespace lfm2 {

namespace {

constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32;

// Few experts are sorted by one kernel, in one cluster of blocks, or in one block. Each warp has a run of chunks of 32
// assignments, counts them, and then knows where its rows begin.
constexpr int kFewThreads = 1024;
constexpr int kCluster = 8;
constexpr int64_t kFewAssignments = int64_t{1} << 18;
constexpr int64_t kBlockAssignments = 2 * kFewThreads;  // up to this many, one block is faster than a cluster

// For few experts, up to 32 kSets, and few assignments, in one launch.
// - operands: ids [assignments] int32; out rows, sources [assignments] and offsets [experts + 1] int32.
// - block: one of the `blocks` blocks of the only cluster; each warp has `run` consecutive chunks of 32 assignments: it
//   counts them, learns from the other warps where its rows begin, and goes through them again.
// - thread: one assignment of each chunk; between the two rounds, lane l handles experts l, l + 32, ….
// - alignment: any.
template <int kSets, int blocks>
__global__ void __launch_bounds__(kFewThreads) group_few_kernel(GroupByExpertArgs args, int run) {
  pdl_trigger();
#if __CUDA_ARCH__ >= 900
  constexpr int kBits = 4 + kSets, kExperts = 32 * kSets, kFewWarps = kFewThreads / 32;
  // The counts of the block's warps; later, for each warp, the sum over the warps before it.
  __shared__ int before[kExperts][kFewWarps + 1];
  __shared__ int mine[kExperts];  // the block's counts, which the cluster reads
  __shared__ int counts[blocks][kExperts];
  const auto cluster = cooperative_groups::this_cluster();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = static_cast<int>(cluster.block_rank());
  const int64_t first = (int64_t{rank} * kFewWarps + warp) * run * 32 + lane;
  pdl_wait();
  const auto expert_of = [&](int chunk) {
    const int64_t i = first + chunk * 32;
    return i < args.assignments ? args.ids[i] : -1;
  };
  int count[kSets] = {};
  for (int chunk = 0; chunk < run; ++chunk) {
    const int expert = expert_of(chunk);
    device_expect(expert >= -1 && expert < args.experts);
    const Ballots<kBits> ballots(expert);
#pragma unroll
    for (int s = 0; s < kSets; ++s) count[s] += __popc(ballots.lanes(lane + 32 * s));
  }
#pragma unroll
  for (int s = 0; s < kSets; ++s) before[lane + 32 * s][warp] = count[s];
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSets; ++s) {  // each warp has one expert
    const int e = warp + 32 * s, own = before[e][lane], sum = upto(own);
    before[e][lane] = sum - own;
    if (lane == 31) mine[e] = sum;
  }
  cluster.sync();
  if (threadIdx.x < blocks * kExperts) {
    const int block = static_cast<int>(threadIdx.x) / kExperts, e = static_cast<int>(threadIdx.x) % kExperts;
    counts[block][e] = cluster.map_shared_rank(mine, block)[e];
  }
  __syncthreads();
  cluster.barrier_arrive();  // no block may end while another reads its counts

  int experts_before = 0, next[kSets];  // the row of the warp's next assignment to each of the lane's experts
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const int e = lane + 32 * s;
    int total = 0, blocks_before = 0;
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      if (block == rank) blocks_before = total;
      total += counts[block][e];
    }
    const int end = experts_before + upto(total);
    next[s] = end - total + blocks_before + before[e][warp];
    if (rank == 0 && warp == 0 && e < args.experts) args.offsets[e + 1] = end;
    experts_before = __shfl_sync(kAllLanes, end, 31);
  }
  if (rank == 0 && threadIdx.x == 0) args.offsets[0] = 0;
  for (int chunk = 0; chunk < run; ++chunk) {
    const int expert = expert_of(chunk);
    const Ballots<kBits> ballots(expert);
    const int first_row = value_of(expert, next);
#pragma unroll
    for (int s = 0; s < kSets; ++s) next[s] += __popc(ballots.lanes(lane + 32 * s));
    if (expert < 0) continue;
    const int row = first_row + ballots.before(expert);
    const int64_t i = first + chunk * 32;
    args.rows[i] = row;
    args.sources[row] = static_cast<int32_t>(i / args.top_k);
  }
  cluster.barrier_wait();
#endif
}

struct Chunks {
  int blocks;
  int64_t size;  // assignments of a block; the last block may have fewer
};

// - operands: ids [assignments] int32; out workspace [blocks, experts] int32: the number of assignments of the block's
//   chunk that go to each expert.
// - block: one chunk of chunks.size assignments.
// - thread: assignments, kGroupThreads apart.
// - alignment: any.
__global__ void count_experts_kernel(GroupByExpertArgs args, Chunks chunks) {
  __shared__ int counts[kMaxExperts];
  for (int e = threadIdx.x; e < args.experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * chunks.size, end = min(first + chunks.size, args.assignments);
  for (int64_t i = first + threadIdx.x; i < end; i += kGroupThreads) {
    const int expert = args.ids[i];
    device_expect(expert >= 0 && expert < args.experts);
    atomicAdd(&counts[expert], 1);  // any order of integer additions gives the same counts
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.experts; e += kGroupThreads)
    args.workspace[static_cast<int64_t>(blockIdx.x) * args.experts + e] = counts[e];
}

// next[e] = the first row of expert e in this block's chunk. Block 0 also writes the offsets.
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
      const int end = before + upto(total);
      if (e < args.experts) {
        next[e] += end - total;
        if (blockIdx.x == 0) args.offsets[e + 1] = end;
      }
      before = __shfl_sync(kAllLanes, end, 31);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) args.offsets[0] = 0;
  }
  __syncthreads();
}

// Writes the row of every assignment of a chunk, in the order of the assignments.
// - operands: ids [assignments] and workspace [blocks, experts], as count_experts_kernel leaves it, int32; out rows,
//   sources [assignments] and offsets [experts + 1] int32.
// - block: one chunk, in rounds of one assignment for each thread; within a round the warps come in order, and within a
//   warp its lanes.
// - thread: one assignment of each round.
// - alignment: any.
__global__ void group_by_expert_kernel(GroupByExpertArgs args, Chunks chunks) {
  __shared__ int next[kMaxExperts];
  __shared__ int warp_rows[kGroupWarps][kMaxExperts];  // counts of each warp, then its first rows
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

Visible launch_group_by_expert(cudaStream_t stream, const GroupByExpertArgs& args) {
  if (args.experts <= 64 && args.assignments <= kFewAssignments && has_clusters()) {
    const auto launch = [&](auto kernel, unsigned blocks) {
      const int64_t run = std::max<int64_t>(1, ceil_divide(args.assignments, int64_t{blocks} * kFewThreads));
      launch_dependent("group_few_kernel", kernel, {blocks, kFewThreads, 0, blocks}, stream, args,
                       static_cast<int>(run));
      return Visible::kAfterWait;
    };
    if (args.assignments <= kBlockAssignments)
      return launch(args.experts <= 32 ? group_few_kernel<1, 1> : group_few_kernel<2, 1>, 1);
    return launch(args.experts <= 32 ? group_few_kernel<1, kCluster> : group_few_kernel<2, kCluster>, kCluster);
  }
  constexpr int64_t kSmallestChunk = 2048;
  Chunks chunks;
  chunks.blocks =
      static_cast<int>(std::clamp<int64_t>(ceil_divide(args.assignments, kSmallestChunk), 1, kMaxGroupBlocks));
  chunks.size = ceil_divide(ceil_divide(args.assignments, chunks.blocks), kGroupThreads) * kGroupThreads;
  count_experts_kernel<<<static_cast<unsigned>(chunks.blocks), kGroupThreads, 0, stream>>>(args, chunks);
  check_launch("count_experts_kernel");
  group_by_expert_kernel<<<static_cast<unsigned>(chunks.blocks), kGroupThreads, 0, stream>>>(args, chunks);
  check_launch("group_by_expert_kernel");
  return Visible::kAfterWait;
}

}  // namespace lfm2
