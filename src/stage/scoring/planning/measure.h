// Measures the costs of a stage's layers on the device that computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/backend.h"
#include "kernels/tensor_memory.h"
#include "stage/model/stage.h"
#include "stage/scoring/planning/costs.h"

namespace lfm2 {

// The shape of the job's samples. Of a sample longer than a timed micro-batch, a part from its middle is timed, over
// the caches.
struct TimedSamples {
  int64_t length = 1;
  bool last_positions = false;  // results are of last positions: the stage with the last attention layer prunes tokens
  // Set for generation: each token of a step belongs to a different sequence, after this number of cached tokens.
  std::optional<int64_t> cached = {};
};

// Stands for the weights that a CPU rank reads between two uses of a layer's weights. A rank that reads it before each
// measurement finds the layer's weights in the processors' caches only as far as a run does.
class OtherWeights {
 public:
  OtherWeights(Backend& backend, size_t bytes);
  void read(Ops& ops) const;                          // by all threads
  const Tensor& product() const { return product_; }  // what read() computes from them

 private:
  TensorMemory memory_;
  Tensor row_, weights_, product_;
};
// The bytes of such weights for each of `ranks` ranks of a host, which have the model together: no more than caches
// hold.
size_t other_weight_bytes(const ModelConfig& config, DType compute, int64_t ranks);

// What precedes measurements that are saved: of these, a time is the median of several instead of the least. The device
// does the same work for `warm_seconds`, so that its clock is that of a long job; many rows draw so much power that the
// clock falls.
struct TimedConditions {
  double warm_seconds = 0;
  const OtherWeights* others = nullptr;
};

// Times the stage's layers on random hidden states of two sizes. A stage after the pruning is also timed on all tokens.
// Frees all memory that it allocates.
StageTime measure_stage_time(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                             TimedSizes sizes = {});
// Times the final norm and LM head of the last stage on rows instead of tokens.
StageTime measure_head_time(Backend& backend, const Stage& stage, DType compute);

// The same for several ascending sizes. A size below the samples' length is a part from the middle of a sample, and a
// number of sequences has the cached tokens that fit into the timing's caches.
CostCurve measure_stage_curve(Backend& backend, const Stage& stage, DType compute, TimedSamples samples,
                              std::span<const int64_t> sizes, TimedConditions conditions = {});
// The most sequences that are timed with this number of cached tokens each.
int64_t max_timed_sequences(int64_t cached);
CostCurve measure_head_curve(Backend& backend, const Stage& stage, DType compute, std::span<const int64_t> rows,
                             TimedConditions conditions = {});

}  // namespace lfm2
