// Loads a stage's weights from shards into device memory and owns them. The embedding and head of the ends are asked
// for like the rest.
#pragma once

#include <set>

#include "kernels/backend.h"
#include "stage/progress.h"
#include "stage/shard_reader.h"
#include "stage/weight_source.h"

namespace lfm2 {

// The type a stored weight is held in: as stored where the compute type is fp32 (its values are used exactly), else the
// compute type. The expert bias, which only ranks experts, stays fp32.
DType held_dtype(DType stored, DType compute, bool keep_fp32);

class ShardWeights : public WeightSource {
 public:
  ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress)
      : shards_(shards), backend_(backend), compute_(compute), progress_(progress) {}

  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims) override;

  // Error(kSoftware) where one of `tensors` was not asked for: then the forward would be another model's.
  void expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const;
  uint64_t bytes() const { return bytes_; }

 private:
  const ShardSet& shards_;
  Backend& backend_;
  DType compute_;
  Progress& progress_;
  std::vector<Buffer> buffers_;
  std::set<std::string> loaded_;
  uint64_t bytes_ = 0;
};

// The tensors of a stage: its layers and, at the ends, embedding, final norm and head. A tied embedding is in the first
// and the last.
std::vector<const ShardTensor*> stage_tensors(const ShardSet& shards, LayerRange layers, bool first_stage,
                                              bool last_stage);

}  // namespace lfm2
