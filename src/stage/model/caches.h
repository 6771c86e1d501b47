// The KV cache of a stage: keys and values of its attention layers in pages, and the last inputs (states) of its short
// convolutions. With the prefix cache each page also has the convolution states at its end, so that another sequence
// can continue from there.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/model/model_config.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The cache of one layer. Only the member that its token mixer uses is filled.
struct LayerCache {
  KeyValueCache key_values;
  // Each sequence slot has a ring of rows of states: a step reads one row, and writes the next one for the last token
  // of an entry or, of a draft block, the next one for each of its tokens. So the states after all tokens of a block
  // are kept until it is known which of the tokens were right. With the prefix cache, a row for each page follows.
  ConvCache conv;
};

struct CacheShape {
  int64_t slots = 0;            // number of sequence slots
  int64_t pages = 0;            // pages of all sequences together; the same number on every stage
  int64_t page_size = 0;        // positions of one sequence in a page
  bool keeps_prefixes = false;  // whether there is a prefix cache
  int64_t max_drafts = 0;       // the most drafts of a sequence in one step
  // Of sliding attention layers, whose pages are given back once no token reads them: see WindowPages. window 0: these
  // layers have all pages, as the others.
  int64_t window = 0, window_pages = 0;
  int64_t state_rows() const { return 2 + max_drafts; }  // rows of convolution states of each slot
  // The row of convolution states of page 0.
  int64_t first_page_row() const { return state_rows() * slots; }
  // The first of its sequence's pages that the token at `position` reads in a layer with a window.
  int64_t first_window_page(int64_t position) const { return std::max<int64_t>(0, position - window + 1) / page_size; }
  // Sets the number of pages and, from it, that of layers with a window: enough for every sequence slot and a step with
  // `prompt_tokens` tokens of prompts.
  void set_pages(int64_t count, int64_t prompt_tokens);
};
// The number of pages that hold `positions` positions.
constexpr int64_t pages_for(int64_t positions, int64_t page_size) { return (positions + page_size - 1) / page_size; }

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

// Bytes of one page in all layers of the stage that have all pages, and of one sequence slot in all its short
// convolutions, which depends on the shape's drafts alone.
uint64_t page_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape);
uint64_t slot_bytes(const ModelConfig& config, LayerRange layers, const CacheShape& shape = {});
// Bytes of all caches of the stage.
uint64_t cache_bytes(const ModelConfig& config, LayerRange layers, DType compute, const CacheShape& shape);

}  // namespace lfm2
