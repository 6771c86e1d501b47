// sample: draws one token for each row, exactly as kernels/sampling.h defines it. One block processes one row; counts
// and masses are integers. Radix selection finds the entries that a rule keeps, by their `lag`: how far an entry's key
// lies below the largest key, among the entries that have any mass. If rows are few, a cluster of blocks surveys each,
// with the same workers, and the first block draws.
#include "kernels/cuda/common/dependent_launch.cuh"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/sampling/launch.h"
#include "kernels/cuda/sampling/log_softmax.cuh"

namespace lfm2 {

namespace {

constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits, kEachDigits = kDigits / kRowThreads;
constexpr int kWindow = 2048;  // number of a row's largest logits that are searched first

struct Row {
  const float* logits;
  int vocab;
  uint32_t best_key;
  float largest, coldness;
  bool vector;          // the logits are on 16 bytes, and vocab is a multiple of four
  uint64_t least_mass;  // of entries that min_p keeps

  // mass() and lag() accept logits that are not NaN.
  __device__ uint64_t mass(float logit) const { return mass_of(logit, largest, coldness); }
  __device__ uint32_t lag(float logit) const { return best_key - sampling_key(logit); }
  // Every entry with mass lags by less than 2^lag_bits().
  __device__ int lag_bits() const;
};

// Counts and masses for each value of one digit of the lag, over the entries whose higher digits are the wanted ones.
struct Histogram {
  // Masses have two words, because shared memory has no 64-bit atomic addition in hardware.
  uint32_t counts[kDigits], low[kDigits], high[kDigits];
};

// Which entries are kept: those that lag by less than `cut`, and, among those that lag by exactly `cut`, the first
// `ties` by id.
struct Kept {
  uint64_t cut = uint64_t{1} << 32;
  uint32_t ties = 0;
  uint64_t tie_mass = 0;  // the mass of one such tie
  uint64_t mass = 0;      // the mass of all kept entries; 0: not known
};

constexpr int kSharing = 8;          // blocks that survey one row together
constexpr int64_t kSharedRows = 16;  // the most rows that blocks share: then their blocks fill the GPU
constexpr int kSurveyWords = sizeof(Survey) / sizeof(uint32_t);

// The surveys that the blocks of a cluster send to its first one.
struct SharedSurvey {
  uint32_t words[kRowThreads][kSurveyWords];
  uint64_t barrier;  // of hopper.cuh: it counts the bytes of `words`
};

template <int sharing>
__device__ void start_sharing(SharedSurvey& shared);
template <int sharing>
__device__ Survey survey_row(const float* logits, int vocab, SharedSurvey& shared);
__device__ float window_of(uint64_t best);
__device__ Kept keep(const SamplingRule& rule, const Row& row, float lowest, Histogram& histogram, float* window);
__device__ int find_id(const Row& row, const Kept& kept, uint64_t seed, const int32_t* draw);

// - operands: logits, adjusted [rows, vocab] fp32, draws [rows, 2] int32; out ids [rows] int32, log_probs [rows] fp32.
// - block: one row, or its part of a row's survey: `sharing` blocks, a cluster, have a row.
// - thread: entries of the row, kRowThreads apart, or fours of them.
// - alignment: `vector`: vocab in fours, logits on 16 bytes; otherwise any.
template <int sharing>
__global__ void __launch_bounds__(kRowThreads, sharing == 1 ? 2 : 1) sample_kernel(SampleArgs args, bool vector) {
  pdl_trigger();
  __shared__ Histogram histogram;
  __shared__ float window[kWindow];
  __shared__ SharedSurvey shared;
  start_sharing<sharing>(shared);
  const int64_t index = blockIdx.x / sharing;
  pdl_wait();
  const float* logits = args.logits + index * args.vocab;
  const int vocab = static_cast<int>(args.vocab);
  const Survey mine = survey_row<sharing>(logits, vocab, shared);
  if (blockIdx.x % sharing != 0) return;
  const double log_sum = log_sum_of(mine);
  const SamplingRule rule = args.rules[index];
  const float* drawn = logits;  // what the token is drawn from
  uint64_t own_best = mine.best;
  if (rule.adjusts(args.draws[2 * index + 1])) {
    device_expect(args.adjusted != nullptr);
    drawn = args.adjusted + index * args.vocab;
    own_best = survey(drawn, vocab, static_cast<int>(threadIdx.x)).best;
  }
  const uint64_t best = best_of(own_best);
  int id = static_cast<int>(~static_cast<uint32_t>(best));
  if (rule.temperature > 0) {
    const auto best_key = static_cast<uint32_t>(best >> 32);
    const Row row{
        drawn, vocab, best_key, sampling_logit(best_key), 1.0f / rule.temperature, vector, least_mass(rule.min_p)};
    Kept kept;
    if (rule.top_p < 1 || (rule.top_k > 0 && rule.top_k < args.vocab))
      kept = keep(rule, row, window_of(own_best), histogram, window);
    id = find_id(row, kept, rule.seed, args.draws + 2 * index);
  }
  if (threadIdx.x != 0) return;
  // A NaN or +infinity among the logits, or nothing but -infinity, makes log_sum and with it the log-probability NaN.
  // That marks the id, which is below vocab, as not drawn from numbers.
  args.ids[index] = id;
  args.log_probs[index] = log_prob(sampling_key(logits[id]), log_sum);
}

__device__ int Row::lag_bits() const {
  const uint32_t most = best_key - sampling_key(largest - 29.0f / coldness);
  return 32 - __clz(static_cast<int>(most | 1u));
}

// Calls f(logit) for the share of `worker`, one of `workers`, of logits[first … end). A NaN is passed as -infinity.
template <class F>
__device__ void for_each_logit(const float* logits, bool vector, int first, int end, int worker, int workers, F&& f) {
  const auto number = [](float x) { return fmaxf(x, -INFINITY); };
  if (vector) {
#pragma unroll 4
    for (int id = first + 4 * worker; id < end; id += 4 * workers) {
      const float4 four = *reinterpret_cast<const float4*>(logits + id);
      f(number(four.x));
      f(number(four.y));
      f(number(four.z));
      f(number(four.w));
    }
  } else {
#pragma unroll 4
    for (int id = first + worker; id < end; id += workers) f(number(logits[id]));
  }
}

// The entries that the selection searches: all of a row, or its largest ones.
struct Entries {
  const float* logits;
  int count;
  bool vector;
};

__device__ void fill(Histogram& histogram, const Row& row, const Entries& entries, uint32_t prefix, int shift,
                     int bits) {
  for (int i = threadIdx.x; i < kDigits; i += kRowThreads)
    histogram.counts[i] = histogram.low[i] = histogram.high[i] = 0;
  __syncthreads();
  for_each_logit(entries.logits, entries.vector, 0, entries.count, threadIdx.x, kRowThreads, [&](float logit) {
    const uint32_t lag = row.lag(logit);
    if (static_cast<uint64_t>(lag) >> (shift + bits) != prefix) return;
    const uint64_t mass = row.mass(logit);
    if (mass == 0) return;
    const uint32_t digit = (lag >> shift) & ((1u << bits) - 1), low = static_cast<uint32_t>(mass);
    atomicAdd(&histogram.counts[digit], 1u);  // any order of integer additions gives the same sum
    const uint32_t before = atomicAdd(&histogram.low[digit], low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (before + low < before ? 1 : 0);
    if (high != 0) atomicAdd(&histogram.high[digit], high);
  });
  __syncthreads();
}

__device__ uint64_t block_sum(uint64_t x) {
  __shared__ uint64_t warps[kRowWarps];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  __syncthreads();  // `warps` may still be read by the last call
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int warp = 0; warp < kRowWarps; ++warp) x += warps[warp];
  return x;
}

struct Amount {
  uint64_t count, mass;
  __device__ Amount operator+(Amount other) const { return {count + other.count, mass + other.mass}; }
};
__device__ Amount shuffle_up(Amount x, int step) {
  return {__shfl_up_sync(kAllLanes, x.count, step), __shfl_up_sync(kAllLanes, x.mass, step)};
}

// The digit in which the amounts first add up to `wanted`: the amount before it, the amount with this digit, and the
// total over all digits.
struct Crossing {
  Amount before, at, total;
  uint32_t digit;
};
// The part of an Amount that is meant.
enum class By { kCount, kMass };
__device__ uint64_t get(Amount amount, By by) { return by == By::kCount ? amount.count : amount.mass; }

// The amounts of a thread's digits, the sum of all digits before them, and the total: a scan over the block.
struct Scan {
  Amount digits[kEachDigits], before, total;
};
__device__ Scan scan(const Histogram& histogram) {
  __shared__ Amount warps[kRowWarps];
  Scan result{};
  Amount mine{};
#pragma unroll
  for (int i = 0; i < kEachDigits; ++i) {
    const int digit = static_cast<int>(threadIdx.x) * kEachDigits + i;
    result.digits[i] = {histogram.counts[digit],
                        static_cast<uint64_t>(histogram.high[digit]) << 32 | histogram.low[digit]};
    mine = mine + result.digits[i];
  }
  Amount upto = mine;
  for (int step = 1; step < 32; step *= 2) {
    const Amount other = shuffle_up(upto, step);
    if (threadIdx.x % 32 >= static_cast<unsigned>(step)) upto = upto + other;
  }
  __syncthreads();  // warps may still be read from the last scan
  if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = upto;
  __syncthreads();
  Amount before{};
  for (int warp = 0; warp < kRowWarps; ++warp) {
    if (warp == static_cast<int>(threadIdx.x / 32)) result.before = before;
    before = before + warps[warp];
  }
  result.total = before;
  result.before = {result.before.count + upto.count - mine.count, result.before.mass + upto.mass - mine.mass};
  return result;
}
__device__ Crossing cross(const Scan& scanned, By by, uint64_t wanted) {
  __shared__ Crossing found;
  Amount before = scanned.before;
#pragma unroll
  for (int i = 0; i < kEachDigits; ++i) {
    const Amount upto = before + scanned.digits[i];
    if (get(before, by) < wanted && get(upto, by) >= wanted)
      found = {before, scanned.digits[i], scanned.total, threadIdx.x * kEachDigits + static_cast<uint32_t>(i)};
    before = upto;
  }
  __syncthreads();
  const Crossing result = found;
  __syncthreads();
  return result;
}

// Keeps the fewest entries, in the order of lag and id, whose count or mass reaches `wanted`, which is at most that of
// all `entries`.
__device__ Kept select(const Row& row, Histogram& histogram, const Entries& entries, By by, uint64_t wanted) {
  int shift = row.lag_bits(), bits = min(shift, kDigitBits);
  shift -= bits;
  uint32_t prefix = 0;
  Amount before{};
  fill(histogram, row, entries, prefix, shift, bits);
  for (;;) {
    const Crossing crossing = cross(scan(histogram), by, wanted - get(before, by));
    before = before + crossing.before;
    prefix = prefix << bits | crossing.digit;
    if (shift == 0) {
      const uint64_t tie_mass = crossing.at.mass / crossing.at.count, left = wanted - get(before, by);
      const uint64_t ties = by == By::kCount ? left : (left + tie_mass - 1) / tie_mass;
      return {prefix, static_cast<uint32_t>(ties), tie_mass, before.mass + ties * tie_mass};
    }
    bits = min(shift, kDigitBits);
    shift -= bits;
    fill(histogram, row, entries, prefix, shift, bits);
  }
}

// Draws a number below the mass of the kept entries, and returns the first id up to which the kept masses exceed it.
// Each warp sums one piece of the row; then the warps divide the piece in which that id lies, and so on.
__device__ int find_id(const Row& row, const Kept& kept, uint64_t seed, const int32_t* draw) {
  struct Piece {
    uint64_t mass, ties;
  };
  __shared__ Piece pieces[kRowWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int first = 0, length = row.vocab;
  uint64_t ties_left = kept.ties, target = 0;
  const auto likely = [&](uint64_t mass) { return mass >= row.least_mass ? mass : 0; };
  const uint64_t tie_mass = likely(kept.tie_mass);
  const auto look = [&](Piece& piece) {
    return [&](float logit) {
      const uint32_t lag = row.lag(logit);
      if (lag < kept.cut)
        piece.mass += likely(row.mass(logit));
      else if (lag == kept.cut)
        ++piece.ties;
    };
  };
  for (bool whole = true; whole || length > 32; whole = false) {
    const int each = ((length + kRowWarps - 1) / kRowWarps + 31) / 32 * 32;
    Piece mine{};
    for_each_logit(row.logits, row.vector, first + warp * each, min(first + (warp + 1) * each, first + length), lane,
                   32, look(mine));
    for (int step = 16; step > 0; step /= 2) {
      mine.mass += __shfl_xor_sync(kAllLanes, mine.mass, step);
      mine.ties += __shfl_xor_sync(kAllLanes, mine.ties, step);
    }
    if (lane == 0) pieces[warp] = mine;
    __syncthreads();
    if (whole) {
      uint64_t total = kept.ties * tie_mass;
      for (int i = 0; i < kRowWarps; ++i) total += pieces[i].mass;
      target = draw_below(total, seed, draw[0], draw[1]);
    }
    int chosen = 0;
    for (; chosen < kRowWarps; ++chosen) {
      const uint64_t ties = min(pieces[chosen].ties, ties_left);
      const uint64_t mass = pieces[chosen].mass + ties * tie_mass;
      if (target < mass) break;
      target -= mass;
      ties_left -= ties;
    }
    device_expect(chosen < kRowWarps);
    __syncthreads();
    length = min(each, length - chosen * each);
    first += chosen * each;
  }
  // Every warp does the same from here on.
  Piece mine{};
  if (lane < length) look(mine)(fmaxf(row.logits[first + lane], -INFINITY));
  const unsigned tied = __ballot_sync(kAllLanes, mine.ties != 0);
  if (mine.ties != 0 && static_cast<uint64_t>(__popc(tied & ((1u << lane) - 1))) < ties_left) mine.mass = tie_mass;
  const unsigned above = __ballot_sync(kAllLanes, upto(mine.mass) > target);
  device_expect(above != 0);
  return first + __ffs(static_cast<int>(above)) - 1;
}

// A logit that about one in a hundred entries reach, and at least 128: the smallest among the best logits of groups of
// four threads.
__device__ float window_of(uint64_t best) {
  __shared__ uint64_t warps[kRowWarps];
  for (int step = 1; step < 4; step *= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
  for (int step = 4; step < 32; step *= 2) best = min(best, __shfl_xor_sync(kAllLanes, best, step));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  for (int warp = 0; warp < kRowWarps; ++warp) best = min(best, warps[warp]);
  return best == 0 ? -INFINITY : sampling_logit(static_cast<uint32_t>(best >> 32));  // 0: a group without entries
}

// Finds what the rule keeps. `window` receives the largest logits, from `lowest` on; if they do not decide, the whole
// row is searched.
__device__ Kept keep(const SamplingRule& rule, const Row& row, float lowest, Histogram& histogram, float* window) {
  __shared__ int collected;
  if (threadIdx.x == 0) collected = 0;
  __syncthreads();
  const bool by_mass = rule.top_p < 1;
  const bool by_count = rule.top_k > 0 && rule.top_k < row.vocab;
  uint64_t row_mass = 0, mass = 0;
  uint64_t count = 0;
  for_each_logit(row.logits, row.vector, 0, row.vocab, threadIdx.x, kRowThreads, [&](float logit) {
    const bool inside = logit >= lowest;
    uint64_t own = 0;
    if (inside || (by_mass && !by_count)) own = row.mass(logit);
    row_mass += own;
    if (!inside) return;
    mass += own;
    if (own != 0) ++count;
    const int place = atomicAdd(&collected, 1);  // in any order, because they are only counted and summed
    if (place < kWindow) window[place] = logit;
  });
  count = block_sum(count);
  mass = block_sum(mass);
  if (by_mass && !by_count) row_mass = block_sum(row_mass);
  Entries entries{window, collected, false};
  const Entries everything{row.logits, row.vocab, row.vector};
  // If the window has an entry without mass, then it has all entries with mass.
  const bool whole = collected <= kWindow && count < static_cast<uint64_t>(collected);
  if (collected > kWindow) entries = everything;
  Kept kept;
  if (by_count) {
    const auto top_k = static_cast<uint64_t>(rule.top_k);
    if (top_k < count && collected <= kWindow) {
      kept = select(row, histogram, entries, By::kCount, top_k);
    } else if (whole) {
      kept.mass = mass;
    } else {
      entries = everything;
      count = mass = 0;
      for_each_logit(row.logits, row.vector, 0, row.vocab, threadIdx.x, kRowThreads, [&](float logit) {
        const uint64_t own = row.mass(logit);
        mass += own;
        if (own != 0) ++count;
      });
      count = block_sum(count);
      kept.mass = mass = block_sum(mass);
      if (top_k < count) kept = select(row, histogram, entries, By::kCount, top_k);
    }
    row_mass = kept.mass;
  }
  if (by_mass) {
    const uint64_t wanted = nucleus_mass(rule.top_p, row_mass);
    kept = select(row, histogram, wanted <= mass ? entries : everything, By::kMass, wanted);
  }
  return kept;
}

// Every thread calls this first.
template <int sharing>
__device__ void start_sharing([[maybe_unused]] SharedSurvey& shared) {
#if __CUDA_ARCH__ >= 900
  if constexpr (sharing == 1) return;
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(&shared.barrier);
    barrier_init(barrier, 1);
    barrier_init_fence();
    barrier_expect(barrier, sizeof shared.words);
  }
  __syncwarp();
  cluster_arrive();
#endif
}

// Every thread of the first block gets what the worker of its number found. In other blocks the result is meaningless.
template <int sharing>
__device__ Survey survey_row(const float* logits, int vocab, [[maybe_unused]] SharedSurvey& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (sharing == 1) return survey(logits, vocab, thread);
  Survey result;
#if __CUDA_ARCH__ >= 900
  constexpr int kEach = kRowThreads / sharing;
  const int rank = static_cast<int>(cluster_rank()), worker = rank * kEach + thread;
  if (thread < kEach) result = survey<8>(logits, vocab, worker);
  cluster_wait();  // the first block has its barrier
  const uint32_t barrier = shared_address(&shared.barrier);
  if (thread < kEach) {
    uint32_t words[kSurveyWords];
    memcpy(words, &result, sizeof result);
#pragma unroll
    for (int i = 0; i < kSurveyWords; ++i) store_at(shared_address(&shared.words[worker][i]), words[i], barrier, 0);
  }
  if (rank != 0) return result;
  barrier_wait(barrier, 0);
  memcpy(&result, shared.words[thread], sizeof result);
#endif
  return result;
}

}  // namespace

void launch_sample(cudaStream_t stream, const SampleArgs& args) {
  if (args.rows == 0) return;
  const bool vector = args.vocab % 4 == 0 && on_16_bytes(args.logits) && on_16_bytes(args.adjusted);
  const auto rows = static_cast<unsigned>(args.rows);
  if (args.rows <= kSharedRows && has_clusters())
    launch_dependent("sample_kernel", sample_kernel<kSharing>, {rows * kSharing, kRowThreads, 0, kSharing}, stream,
                     args, vector);
  else
    launch_dependent("sample_kernel", sample_kernel<1>, {rows, kRowThreads}, stream, args, vector);
}

}  // namespace lfm2
