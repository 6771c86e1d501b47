// Loads the weights of a stage from shards into device memory and owns them, including embedding and LM head.
#pragma once

#include <set>
#include <span>

#include "kernels/tensor_memory.h"
#include "stage/model/weight_source.h"
#include "stage/shards/shard_reader.h"
#include "stage/shards/weight_readers.h"

namespace lfm2 {

// The type of a weight on the device: fp8 if config().fp8_weights contains it; otherwise the stored type if the compute
// type is fp32 (values are then used exactly), else the compute type. The expert bias stays fp32, because it only ranks
// experts. An fp8 weight that the device holds in another type is its scaled value, rounded once.
DType held_dtype(const ShardSet& shards, const ShardTensor& tensor, DType compute);

class ShardWeights : public WeightSource {
 public:
  ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress, int readers);

  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) override;
  Tensor load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                           Rows rows) override;
  bool load_together(const std::vector<std::string>& names) const override;
  // Returns when all requested tensors are on the device, in the device's layout, or throws the first error of a
  // reader.
  void finish();

  // Error(kSoftware) if one of `tensors` was not requested, because the forward would then not compute this model.
  void expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const;
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  void add_part(const ShardTensor& part, const Tensor& tensor, int64_t first);
  void add_gate_or_up(const ShardTensor& part, const Tensor& tensor, int64_t first);
  void add_scales(const std::vector<const ShardTensor*>& weights, Tensor& tensor, Rows rows);

  const ShardSet& shards_;
  Backend& backend_;
  DType compute_;
  TensorMemory memory_;
  std::set<std::string> asked_for_;
  std::vector<Tensor> tiled_;  // rows until finish()
  WeightReaders readers_;      // last, because its threads fill the memory
};

// The tensors of a rank with these pieces: those of their layers, the embedding with the first layer and, up to
// config().end, final norm and LM head with the last layer. A tied embedding belongs to both ends.
std::vector<const ShardTensor*> stage_tensors(const ShardSet& shards, std::span<const LayerRange> pieces);

// Bytes of these tensors on the device.
uint64_t held_bytes(const ShardSet& shards, const std::vector<const ShardTensor*>& tensors, DType compute);

}  // namespace lfm2
