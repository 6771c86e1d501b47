// The operator `sample`: draws one token for each row, with the functions of sampling.h.
#include <algorithm>
#include <functional>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/sampling.h"

namespace lfm2 {

namespace {

// The key by which tokens are kept, the largest first. Keys are unique within a row, and larger for the lower of two
// ids.
uint64_t order_of(float logit, int64_t id) {
  return uint64_t{sampling_key(logit)} << 32 | (~static_cast<uint64_t>(id) & 0xffffffffu);
}
float logit_of(uint64_t order) { return sampling_logit(static_cast<uint32_t>(order >> 32)); }
int32_t id_of(uint64_t order) { return static_cast<int32_t>(~static_cast<uint32_t>(order)); }

// Draws one token; `best` is the largest key. scratch [2 vocab].
int32_t draw(const float* logits, int64_t vocab, const SamplingRule& rule, const int32_t* draws, uint64_t best,
             uint64_t* scratch) {
  if (rule.temperature == 0.0f) return id_of(best);
  uint64_t* orders = scratch;
  uint64_t* masses = scratch + vocab;  // [vocab], by id; only those of the kept tokens are set
  for (int64_t id = 0; id < vocab; ++id) orders[id] = order_of(logits[id], id);

  uint64_t* end = orders + vocab;  // the kept tokens are [orders, end), in any order
  uint64_t least = 0;              // the smallest key of a kept token
  if (rule.top_k > 0 && rule.top_k < vocab) {
    end = orders + rule.top_k;
    std::nth_element(orders, end - 1, orders + vocab, std::greater<>());
    least = *(end - 1);
  }
  const float coldness = 1.0f / rule.temperature;
  uint64_t total = 0;
  for (const uint64_t* order = orders; order != end; ++order)
    total += masses[id_of(*order)] = mass_of(logit_of(*order), logit_of(best), coldness);
  if (rule.top_p < 1.0f) {
    const uint64_t enough = nucleus_mass(rule.top_p, total);
    std::make_heap(orders, end);
    for (total = 0; total < enough; total += masses[id_of(least)]) {
      least = *orders;
      std::pop_heap(orders, end--);
    }
  }
  const uint64_t likely = least_mass(rule.min_p);
  const auto is_kept = [&](int64_t id) { return order_of(logits[id], id) >= least && masses[id] >= likely; };
  if (rule.min_p > 0) {
    total = 0;
    for (int64_t id = 0; id < vocab; ++id) total += is_kept(id) ? masses[id] : 0;
  }

  const uint64_t target = draw_below(total, rule.seed, draws[0], draws[1]);
  uint64_t upto = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    if (!is_kept(id)) continue;
    upto += masses[id];
    if (upto > target) return static_cast<int32_t>(id);
  }
  throw Error(ExitCode::kSoftware, "sample: a place beyond the kept masses");
}

}  // namespace

void CpuOps::sample(const Tensor& logits, const Tensor& adjusted, const Tensor& draws, const Tensor& rules,
                    const Tensor& ids, const Tensor& log_probs) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  expect(logits.dtype == DType::kF32 && draws.dtype == DType::kI32 && ids.dtype == DType::kI32 &&
             log_probs.dtype == DType::kF32 && vocab > 0 && vocab <= kMaxSampled && draws.numel() == 2 * rows &&
             rules.dtype == DType::kI32 && rules.numel() == kRuleWords * rows && ids.numel() == rows &&
             log_probs.numel() == rows && (!adjusted || adjusted.dims == logits.dims),
         "sample: shapes");
  const auto* all_rules = rules.as<const SamplingRule>();
  const auto* all_draws = draws.as<const int32_t>();
  const auto drawn_from = [&](int64_t row) {
    const bool adjusts = all_rules[row].adjusts(all_draws[2 * row + 1]);
    expect(!adjusts || adjusted, "sample: a rule adjusts logits, and there are no adjusted ones");
    return (adjusts ? adjusted : logits).as<const float>() + row * vocab;
  };
  // With few rows, most threads would be idle: they share the search for the best token and the logits' sum.
  const int64_t pieces = vocab_pieces(vocab);
  auto* best = best_.reserve<uint64_t>(static_cast<size_t>(rows * pieces));
  for_each_vocab_piece(rows, vocab, [&](int64_t row, int64_t first, int64_t end) {
    const float* logit = drawn_from(row);
    uint64_t largest = 0;
    for (int64_t id = first; id < end; ++id) largest = std::max(largest, order_of(logit[id], id));
    best[row * pieces + first / kVocabPiece] = largest;
  });
  const double* sums = log_sums(logits);
  auto* scratch = scratch_.reserve<uint64_t>(pool_.threads() * static_cast<size_t>(2 * vocab));
  pool_.parallel_for(static_cast<size_t>(rows), [&](size_t item, size_t worker) {
    const auto row = static_cast<int64_t>(item);
    const uint64_t row_best = *std::max_element(best + row * pieces, best + (row + 1) * pieces);
    const int32_t id = draw(drawn_from(row), vocab, all_rules[row], all_draws + 2 * row, row_best,
                            scratch + static_cast<int64_t>(worker) * 2 * vocab);
    ids.as<int32_t>()[row] = id;
    log_probs.as<float>()[row] =
        static_cast<float>(static_cast<double>(logits.as<const float>()[row * vocab + id]) - sums[row]);
  });
}

}  // namespace lfm2
