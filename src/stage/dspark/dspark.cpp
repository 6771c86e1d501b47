// The forward of a drafter, over the operators.
#include "stage/dspark/dspark.h"

#include <algorithm>

#include "kernels/counting_ops.h"

namespace lfm2 {

namespace {

// Weights without memory.
class ShapesOnly : public WeightSource {
 public:
  explicit ShapesOnly(DType held) : held_(held) {}
  Tensor load(const std::vector<std::string>&, std::initializer_list<int64_t> dims, Rows) override {
    return Tensor(nullptr, held_, dims);
  }

 private:
  DType held_;
};

}  // namespace

Dspark::Dspark(WeightSource& weights, const DsparkConfig& config)
    : config_(config), blocks_(weights, config.blocks, {.first = 0, .count = config.layers()}) {
  const int64_t hidden = config.blocks.hidden, vocab = config.blocks.vocab, rank = config.markov_rank;
  fc_ = weights.load_for_products({"fc.weight"}, {hidden, std::ssize(config.taps) * hidden});
  context_norm_ = weights.load({"hidden_norm.weight"}, {hidden});
  markov_before_ = weights.load({"markov_head.markov_w1.weight"}, {vocab, rank});
  markov_after_ = weights.load_for_products({"markov_head.markov_w2.weight"}, {vocab, rank});
}

Tensor Dspark::context(Ops& ops, Scratch& scratch, const Tensor& taps) const {
  const int64_t tokens = taps.dim(1), hidden = taps.dim(2);
  const Tensor rows = scratch.allocate(taps.dtype, {tokens, hidden}),
               normed = scratch.allocate(taps.dtype, {tokens, hidden});
  const Tensor all = scratch.allocate(taps.dtype, {tokens, taps.dim(0) * hidden});
  for (int64_t tap = 0; tap < taps.dim(0); ++tap) ops.put_columns(taps.at(tap), tap * hidden, all);
  ops.matmul(all, fc_, {}, rows, Write::kStore);
  ops.rms_norm(rows, context_norm_, config_.blocks.norm_eps, normed);
  return normed;
}

void Dspark::append(Ops& ops, Scratch& scratch, const Tensor& taps, const Batch& batch, const Caches* caches) const {
  scratch.release();
  const Tensor rows = context(ops, scratch, taps);
  scratch.hold();  // for all layers
  blocks_.append_keys_values({.ops = ops, .scratch = scratch, .residual = rows, .batch = batch, .caches = caches},
                             rows);
  scratch.release();
}

void Dspark::draft(Ops& ops, Scratch& scratch, const Blocks& blocks, const Caches* caches, const Room& room,
                   const Tensor& drafts) const {
  const int64_t texts = blocks.texts, rows = texts * config_.block_size;
  const int64_t places = drafts.dim(0);
  const Tensor residual = room.residual.rows(0, rows), logits = room.logits.rows(0, places * texts);
  const Tensor before = room.before.rows(0, texts), log_probs = room.log_probs.rows(0, texts);
  blocks_.embed(ops, blocks.ids, residual);
  blocks_.forward({.ops = ops,
                   .scratch = scratch,
                   .residual = residual,
                   .batch = blocks.batch,
                   .caches = caches,
                   .reads = &blocks.reads});
  blocks_.head(ops, residual.rows(0, places * texts), {}, scratch, logits);
  for (int64_t place = 0; place < places; ++place) {
    const Tensor own = logits.rows(place * texts, texts), chosen = drafts.at(place);
    ops.embed(place == 0 ? blocks.ids.rows(0, texts) : drafts.at(place - 1), markov_before_, before);
    ops.matmul(before, markov_after_, {}, own, Write::kAdd);
    ops.top_log_probs(own, chosen.reshape({texts, 1}), log_probs);
  }
}

size_t dspark_scratch_bytes(const DsparkConfig& config, DType compute, int64_t tokens, int64_t rows) {
  ShapesOnly weights(compute);
  const Dspark drafter(weights, config);
  Scratch scratch;
  CountingOps ops;
  const ModelConfig& blocks = config.blocks;
  drafter.append(ops, scratch, Tensor(nullptr, compute, {std::ssize(config.taps), tokens, blocks.hidden}), {}, nullptr);
  const int64_t texts = std::max<int64_t>(1, rows / config.block_size), padded = texts * config.block_size;
  const Tensor ids(nullptr, DType::kI32, {padded});
  const Dspark::Room room{.residual = Tensor(nullptr, compute, {padded, blocks.hidden}),
                          .logits = Tensor(nullptr, DType::kF32, {padded, blocks.vocab}),
                          .before = Tensor(nullptr, compute, {texts, config.markov_rank}),
                          .log_probs = Tensor(nullptr, DType::kF32, {texts, 1})};
  drafter.draft(ops, scratch, {.ids = ids, .batch = {}, .reads = {}, .texts = texts}, nullptr, room,
                Tensor(nullptr, DType::kI32, {config.block_size, texts}));
  return scratch.peak_bytes();
}

}  // namespace lfm2
