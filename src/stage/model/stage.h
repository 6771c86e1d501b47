// What one rank computes: its layers and, at the ends of the pipeline, the embedding, the final norm and the LM head.
#pragma once

#include <vector>

#include "stage/model/layer.h"
#include "stage/model/partition.h"

namespace lfm2 {

// Where only last positions count: after the last attention layer a token is read by the short convolutions behind it
// alone, so of each sample the last few tokens are enough. They go on as a batch of their own; what the convolutions
// compute for the first of them is of no use to anybody.
struct Tail {
  Tensor rows;      // [tokens kept] int32: their places in the batch before
  Tensor residual;  // [tokens kept, hidden] act: where they go
  Batch batch;      // of them
};

// Tokens of each sample that are needed after the last attention layer for its last position; 0 where there is none.
int64_t tail_length(const ModelConfig& config);
// The layer after whose token mixer the tail is cut; -1 where there is none.
int64_t last_attention_layer(const ModelConfig& config);

class Stage {
 public:
  Stage(WeightSource& weights, const ModelConfig& config, LayerRange layers);

  bool first() const { return layers_range_.first == 0; }
  bool last() const { return layers_range_.end() == config_.layers; }
  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return layers_range_; }

  // First stage: residual[t] = embedding[ids[t]].  ids [tokens] int32, residual [tokens, hidden] act
  void embed(Ops& ops, const Tensor& ids, const Tensor& residual) const;
  // The layers, in place.  residual [tokens, hidden] act. With a tail, what comes out of the last attention layer goes
  // to its residual, and so does the result. With caches, the tokens continue the sequences that are in them.
  void forward(Ops& ops, const Tensor& residual, const Batch& batch, Scratch& scratch, const Tail* tail = nullptr,
               const Caches* caches = nullptr) const;
  // Last stage: final norm and LM head of chosen rows.  rows [count] int32 or empty for all, logits [count, vocab] fp32
  void head(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch, const Tensor& logits) const;

 private:
  ModelConfig config_;
  LayerRange layers_range_;
  Tensor embedding_;  // [vocab, hidden], first stage
  std::vector<Layer> layers_;
  Tensor final_norm_;  // [hidden], last stage
  Tensor lm_head_;     // [vocab, hidden], last stage; the embedding where tied
};

}  // namespace lfm2
