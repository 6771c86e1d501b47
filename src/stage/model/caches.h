// What a stage keeps of every sequence between the steps of a generation: keys and values of its attention layers in
// pages, and the last inputs of its short convolutions. Where pages are kept as prefixes of other sequences, each also
// has the states of the convolutions at its end, so that a sequence can continue from there.
#pragma once

#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The cache of one layer: only the member that its token mixer uses is filled.
struct LayerCache {
  KeyValueCache key_values;
  // Each sequence slot has two rows of states; a step reads one and writes the other, in turn. After these rows, each
  // page has a row where prefixes are kept.
  ConvCache conv;
};

struct CacheShape {
  int64_t slots = 0;            // sequences that are in the caches at a time
  int64_t pages = 0;            // pages of all sequences together; the same number on every stage
  int64_t page_size = 0;        // positions of one sequence in a page
  bool keeps_prefixes = false;  // whether pages are kept for other sequences, with the states of convolutions
  // The row of convolution states that page 0 has.
  int64_t first_page_row() const { return 2 * slots; }
};

class Caches {
 public:
  Caches(Backend& backend, const ModelConfig& config, LayerRange layers, DType compute, CacheShape shape);

  const std::vector<LayerCache>& layers() const { return layers_; }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  void allocate(KeyValueCache& cache, AttentionShape heads, DType compute, const CacheShape& shape);

  std::vector<LayerCache> layers_;  // in the order of the stage's layers
  TensorMemory memory_;
};

// Bytes of one page in all layers of the stage, and of one sequence slot in all its short convolutions.
uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape);
uint64_t slot_bytes(const ModelConfig& config, LayerRange layers);

}  // namespace lfm2
