// A DSpark drafter: guesses the next tokens of texts from hidden states of their model, its target. Stage composes its
// layers, once for the context and once for a block of guesses:
//
//    c = rms_norm(fc [h_1 ... h_n])        of each token that the target has fed: h are its hidden states (taps)
//    k, v of c in every layer              the cache, which is all that a drafter remembers
//    block: [newest token, mask, mask ...] embedded by the target; each token of the block reads the whole context and
//                                          the whole block
//    logits_j = head(block_j) + w2 w1[token before j]; the draft j is the top-1 token
#pragma once

#include "stage/dspark/dspark_config.h"
#include "stage/model/stage.h"

namespace lfm2 {

class Dspark {
 public:
  Dspark(WeightSource& weights, const DsparkConfig& config);

  const DsparkConfig& config() const { return config_; }

  // Writes keys and values of tokens that the target has fed to the caches. `caches` is null only while a plan counts.
  // taps [taps, tokens, hidden] act
  void append(Ops& ops, Scratch& scratch, const Tensor& taps, const Batch& batch, const Caches* caches) const;
  // The normed rows that append() writes keys and values of, in the scratch: [tokens, hidden] act.
  Tensor context(Ops& ops, Scratch& scratch, const Tensor& taps) const;

  // The blocks of `texts` texts: row j * texts + t is token j of the block of text t, as a sequence with one token.
  // `batch` has their own positions, `reads` for each the last position of its block; both have the same pages.
  struct Blocks {
    Tensor ids;  // [block_size * texts] int32: the newest token of each text, then mask tokens
    Batch batch, reads;
    int64_t texts = 0;
  };
  // Memory for the blocks.
  struct Room {
    Tensor residual;   // [rows, hidden] act
    Tensor logits;     // [drafts, vocab] fp32
    Tensor before;     // [texts, rank] act
    Tensor log_probs;  // [texts, 1] fp32
  };
  // drafts [up to block_size, texts] int32: the first ones of each block, which is computed whole, as its rows read
  // each other. Destroys the keys and values of later positions than the texts have.
  void draft(Ops& ops, Scratch& scratch, const Blocks& blocks, const Caches* caches, const Room& room,
             const Tensor& drafts) const;

 private:
  DsparkConfig config_;
  Stage blocks_;
  Tensor fc_;             // [hidden, taps * hidden]
  Tensor context_norm_;   // [hidden]
  Tensor markov_before_;  // [vocab, rank]: of the token before a draft
  Tensor markov_after_;   // [vocab, rank]
};

// Bytes of scratch for steps of `tokens` tokens and blocks of `rows` rows.
size_t dspark_scratch_bytes(const DsparkConfig& config, DType compute, int64_t tokens, int64_t rows);

}  // namespace lfm2
