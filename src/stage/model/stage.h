// The layers of one rank and, at the ends of the pipeline, the embedding, the final norm and the LM head.
#pragma once

#include <vector>

#include "stage/model/layer.h"
#include "stage/model/partition.h"

namespace lfm2 {

class Stage {
 public:
  Stage(WeightSource& weights, const ModelConfig& config, LayerRange layers);

  bool first() const { return range_.has_mixer(0); }
  bool last() const { return range_.has_feed_forward(config_.layers - 1); }
  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return range_; }
  // The model's embedding, if this stage has it, at least as the LM head; and the LM head of the last stage.
  const Tensor& embedding() const { return embedding_ || !config_.tied_embedding ? embedding_ : lm_head_; }
  const Tensor& lm_head() const { return lm_head_; }

  // First stage: residual[t] = embedding[ids[t]].  ids [tokens] int32, residual [tokens, hidden] act
  void embed(Ops& ops, const Tensor& ids, const Tensor& residual) const;
  // Computes the layers. The result is in the residual stream of the pass. If the pass has output rows or pruning, it
  // is in output->residual or, after the last attention, in pruning->residual.
  void forward(Pass pass) const;
  // Writes keys and values of the tokens to the caches of every layer, from `rows` [tokens, hidden] act in the place of
  // normed residual streams. Only for layers with attention: see Dspark.
  void append_keys_values(Pass pass, const Tensor& rows) const;
  // Last stage: `rows` of the residual after the final norm, or the residual's rows if the model ends with its last
  // layer. The result is in the scratch or is the residual itself.
  // rows [count] int32, empty for all rows; returns [count, hidden] act
  Tensor hidden_states(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch) const;
  // Last stage: final norm and LM head of these rows.  logits [count, vocab] fp32.
  void head(Ops& ops, const Tensor& residual, const Tensor& rows, Scratch& scratch, const Tensor& logits) const;

 private:
  void keep_tap(const Pass& pass, int64_t layer) const;

  ModelConfig config_;
  LayerRange range_;
  Tensor embedding_;  // [vocab, hidden], first stage
  std::vector<Layer> layers_;
  Tensor final_norm_;  // [hidden], last stage, unless the model ends before it
  // [vocab, hidden], last stage, unless the model ends before it. Shares embedding_'s memory if tied and on the same
  // stage.
  Tensor lm_head_;
};

}  // namespace lfm2
