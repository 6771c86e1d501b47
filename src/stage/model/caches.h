// What a stage keeps of every sequence between the steps of a generation: keys and values of its attention layers in
// pages, and the last inputs of its short convolutions.
#pragma once

#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// One layer's; of the two, the one that its token mixer needs.
struct LayerCache {
  KeyValueCache key_values;
  Tensor conv_states;  // [2 slots, L - 1, hidden] fp32: two rows a sequence slot, read and written in turns
};

struct CacheShape {
  int64_t slots = 0;  // sequences at a time
  int64_t pages = 0;  // of all sequences together; the same on every stage
  int64_t page = 0;   // positions in a page
};

class Caches {
 public:
  Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape);

  const std::vector<LayerCache>& layers() const { return layers_; }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<LayerCache> layers_;  // in the order of the stage's
  TensorMemory memory_;
};

// Bytes of one page in all attention layers of a stage, and of one slot in all its short convolutions.
uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, int64_t page);
uint64_t slot_bytes(const ModelConfig& config, LayerRange layers);

}  // namespace lfm2
