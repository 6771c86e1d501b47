// The blocks of one launch sort their assignments by expert together. Each counts its own assignments, at most one for
// each lane, learns the counts of the other blocks, and then knows where its rows go. For norm_route, and for
// norm_route_swiglu, whose blocks all have the same assignments.
#pragma once

#include "kernels/cuda/experts/ballots.cuh"
#include "kernels/cuda/experts/launch.h"
#include "kernels/cuda/ptx/hopper.cuh"

namespace lfm2 {

constexpr int kMaxGrouped = 32;  // the most assignments of a block, and the most experts

// How a block learns the counts of the others. kNone: the launch does not sort. kAlone: there are no others. kCluster:
// they are one cluster, and write into each other's shared memory. kGrid: through global memory, which takes longer.
// There, blocks wait for blocks that may not have started yet (dependent_launch.cuh explains when that is safe).
enum class Exchange { kNone, kAlone, kCluster, kGrid };

constexpr int kMaxParts = 8;  // blocks of a cluster, or warps of a block
struct GroupMemory {          // shared
  int32_t ids[kMaxGrouped];
  float weights[kMaxGrouped];
  uint32_t parts[kMaxParts][32];  // counts of several blocks for each expert; their sum is that of all blocks
  uint64_t barrier;               // of hopper.cuh: it counts the bytes that the cluster writes into `parts`
  uint32_t tag;
};

// A byte that blocks pass to each other through global memory. It orders nothing else.
__device__ inline void publish_byte(uint8_t* to, uint32_t byte) {
  asm volatile("st.relaxed.gpu.global.u8 [%0], %1;\n" ::"l"(to), "r"(byte) : "memory");
}
__device__ inline uint32_t published_byte(const uint8_t* from) {
  uint32_t byte;
  asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];\n" : "=r"(byte) : "l"(from) : "memory");
  return byte;
}

// What a lane knows of the sorted assignments of a block, of which each lane has at most one.
struct SortedLane {
  int expert;  // of the lane's assignment, or -1
  int row;     // its sorted row, if there is one
  int end;     // the first row after those of expert `lane`

  // `ballots` are those of the lanes' experts. `total` assignments of all blocks go to expert `lane`, and `before` of
  // those are in earlier blocks.
  __device__ __forceinline__ SortedLane(int own_expert, const Ballots<5>& ballots, int total, int before)
      : expert(own_expert), end(upto(total)) {
    row = __shfl_sync(kAllLanes, end - total + before, expert & 31) + ballots.before(expert);
  }

  // One warp writes the routing of the block's assignments, of which `first` is the first one, with their weights.
  __device__ __forceinline__ void store_routing(const NormRouteArgs& args, int first, const float* weights) const {
    const int lane = static_cast<int>(threadIdx.x % 32), i = first + lane;
    if (blockIdx.x == 0) {
      if (lane == 0) args.offsets[0] = 0;
      if (lane < args.experts) args.offsets[lane + 1] = end;
    }
    if (expert < 0) return;
    args.rows[i] = row;
    args.sources[row] = i / args.top_k;
    args.ids[i] = expert;
    args.weights[i] = weights[lane];
  }
};

class GroupBlocks {
 public:
  __device__ GroupBlocks(const NormRouteArgs& args, Exchange exchange, GroupMemory& memory)
      : args_(args), exchange_(exchange), memory_(memory) {}

  // Every thread calls this first.
  __device__ __forceinline__ void start() const {
#if __CUDA_ARCH__ >= 900
    if (exchange_ != Exchange::kCluster) return;
    if (threadIdx.x == 0) {
      barrier_init(barrier(), 1);
      barrier_init_fence();
      barrier_expect(barrier(), gridDim.x * sizeof memory_.parts[0]);
    }
    __syncwarp();
    cluster_arrive();
#endif
  }

  // Every thread calls this after the wait for the previous kernel, and before some __syncthreads() that precedes
  // sorted_row().
  __device__ __forceinline__ void load_tag() const {
    if (exchange_ == Exchange::kGrid && threadIdx.x == 0) memory_.tag = published_byte(last_tag()) ^ kTag;
  }

  // Sorts the block's `count` assignments, whose experts and weights are in the memory, and writes their routing. Every
  // warp gets the sorted rows: lane l that of assignment l. In between, lane l handles expert l.
  __device__ __forceinline__ int sorted_row(int first, int count) const {
    const int expert = lane_ < count ? memory_.ids[lane_] : -1;
    const Ballots<5> ballots(expert);
    const uint32_t sum = exchange(__popc(ballots.lanes(lane_)));
    const SortedLane sorted(expert, ballots, static_cast<int>(sum & 0xffffu), static_cast<int>(sum >> 16));
    if (warp_ == 0) sorted.store_routing(args_, first, memory_.weights);
    return sorted.row;
  }

 private:
  // A slot of global memory has the counts of a block's assignments, one byte for each lane, with a tag that tells two
  // launches apart. The tag alternates: each launch writes all slots, including those of blocks that do not exist, and
  // then stores its tag after the slots for the next launch.
  static constexpr uint32_t kTag = 0x80;
  static constexpr int kFlying = 16;  // slots that a warp has in flight at once
  static_assert(kMaxGrouped < kTag);

  __device__ uint8_t* last_tag() const { return args_.exchange + kMaxRouteBlocks * 32; }
  __device__ uint8_t* count_in(int slot) const { return args_.exchange + slot * 32 + lane_; }
  __device__ uint32_t barrier() const { return shared_address(&memory_.barrier); }

  // A number for the counts of a block: in the low half for the sum of all blocks, in the high half for the sum of the
  // earlier blocks.
  static __device__ uint32_t part_of(uint32_t count, bool before) { return count | (before ? count << 16 : 0); }

  // The sum of part_of over all blocks.
  __device__ __forceinline__ uint32_t exchange(uint32_t count) const {
    if (exchange_ == Exchange::kAlone) return part_of(count, false);
    if (exchange_ == Exchange::kCluster) {
      push_in_cluster(count);
    } else {
      publish(count);
      collect();
    }
    const auto parts = static_cast<int>(exchange_ == Exchange::kCluster ? gridDim.x : blockDim.x / 32);
    uint32_t sum = 0;
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part)
      if (part < parts) sum += memory_.parts[part][lane_];
    return sum;
  }

  // Writes the block's counts into the memory of each block of the cluster, and waits for those of the others. Once
  // they have arrived, no block writes into this block's memory any more, so it may end.
  __device__ __forceinline__ void push_in_cluster([[maybe_unused]] uint32_t count) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t rank = cluster_rank();
    cluster_wait();
    for (uint32_t block = warp_; block < gridDim.x; block += warps_)
      store_at(shared_address(&memory_.parts[rank][lane_]), part_of(count, rank < block), barrier(), block);
    barrier_wait(barrier(), 0);
#endif
  }

  // Writes the block's counts to its slot, and counts of 0 to the slots of blocks that do not exist.
  __device__ __forceinline__ void publish(uint32_t count) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    for (int slot = block + warp_ * blocks; slot < kMaxRouteBlocks; slot += warps_ * blocks)
      publish_byte(count_in(slot), memory_.tag | (slot == block ? count : 0));
  }

  // Waits for the counts of all blocks. Each warp stores the sums of its runs of blocks in its part.
  __device__ __forceinline__ void collect() const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const uint32_t tag = memory_.tag;
    uint32_t sum = 0;
    for (int first = warp_ * kFlying; first < blocks; first += warps_ * kFlying) {
      uint32_t flying[kFlying];
      bool there = false;
      while (!there) {
        there = true;
#pragma unroll
        for (int i = 0; i < kFlying; ++i) {
          flying[i] = tag;
          if (first + i < blocks) flying[i] = published_byte(count_in(first + i));
        }
#pragma unroll
        for (int i = 0; i < kFlying; ++i) there &= (flying[i] & kTag) == tag;
      }
#pragma unroll
      for (int i = 0; i < kFlying; ++i) sum += part_of(flying[i] & ~kTag, first + i < block);
    }
    memory_.parts[warp_][lane_] = sum;
    __syncthreads();
    if (block == 0 && threadIdx.x == 0) publish_byte(last_tag(), tag);  // all blocks have read the previous tag
  }

  const NormRouteArgs& args_;
  Exchange exchange_;
  GroupMemory& memory_;
  int lane_ = threadIdx.x % 32, warp_ = threadIdx.x / 32, warps_ = blockDim.x / 32;
};

}  // namespace lfm2
