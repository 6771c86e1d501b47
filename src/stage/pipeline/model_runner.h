// The buffers of a rank, and the forward of a batch through a piece of layers. Scoring and generation share it.
#pragma once

#include <memory>

#include "kernels/tensor_memory.h"
#include "stage/model/memory_plan.h"
#include "stage/pipeline/batch_arrays.h"
#include "stage/pipeline/stage_run.h"

namespace lfm2 {

// The sizes of a buffer.
struct BufferSizes {
  int64_t tokens = 0;
  int64_t tail_rows = 0;    // of the residual stream of kept tokens, if a piece of the rank prunes tokens
  int64_t output_rows = 0;  // of that of the last positions, on the last stage, if only these have results
  int64_t taps = 0;         // hidden states of each token that travel with the residual stream (Taps)
  size_t array_bytes = 0;   // of the index arrays, on the device and also on the host
  // Bytes of everything but the residual stream.
  uint64_t extra_bytes(int64_t hidden, DType compute) const {
    return static_cast<uint64_t>((tail_rows + output_rows + taps * tokens) * hidden) * size_bytes(compute) +
           2 * array_bytes;
  }
};

struct BatchBuffer {
  Tensor residual, tail, output;    // [rows, hidden] act; taps follow the rows of a step in `residual`
  Buffer staging, arrays;           // the index arrays on the host and on the device
  std::unique_ptr<Event> computed;  // the layers have computed this buffer's batch
};

// The residual streams that a batch uses in turn: `residual` first, `tail` after the last attention, `output` before
// the last feed-forward. If one of these is empty, no token is dropped at that point.
struct BatchRows {
  Tensor residual, tail = {}, output = {};
  Taps taps = {};
  const Tensor& result() const { return output ? output : tail ? tail : residual; }
};

class ModelRunner {
 public:
  // `result_rows`: on the last stage, rows of results of the largest batch.
  ModelRunner(const StageLinks& links, DType compute, const BufferSizes& sizes, int64_t result_rows)
      : backend_(links.backend),
        compute_(compute),
        hidden_(links.stage().config().hidden),
        sizes_(sizes),
        cost_(stage_memory(links.stage().config(), links.layers(), compute, compute, sizes.tokens, result_rows)),
        memory_(links.backend),
        scratch_(links.backend.allocate(cost_.scratch_bytes)),
        bytes_(cost_.scratch_bytes) {}

  void allocate(BatchBuffer& buffer) {
    buffer.residual = memory_.allocate(compute_, {sizes_.tokens * (1 + sizes_.taps), hidden_});
    if (sizes_.tail_rows > 0) buffer.tail = memory_.allocate(compute_, {sizes_.tail_rows, hidden_});
    if (sizes_.output_rows > 0) buffer.output = memory_.allocate(compute_, {sizes_.output_rows, hidden_});
    buffer.staging = backend_.allocate_host(sizes_.array_bytes);
    buffer.arrays = backend_.allocate(sizes_.array_bytes);
    buffer.computed = backend_.create_event();
    bytes_ += sizes_.array_bytes;
  }

  // Computes these layers of the piece, and the embedding before the model's first layer.
  void forward(const Stage& piece, const BatchTensors& arrays, const BatchRows& rows, const Caches* caches,
               LayerSpan span = {}) {
    Ops& ops = backend_.ops();
    if (piece.first() && span.first == 0) piece.embed(ops, arrays.ids, rows.residual);
    const TokenPruning pruning{arrays.tail.rows, rows.tail, arrays.tail.batch};
    const OutputRows output{arrays.last_rows, rows.output};
    piece.forward({.ops = ops,
                   .scratch = scratch_,
                   .residual = rows.residual,
                   .batch = arrays.batch,
                   .pruning = rows.tail ? &pruning : nullptr,
                   .caches = caches,
                   .output = rows.output ? &output : nullptr,
                   .span = span,
                   .window_table = arrays.window_table,
                   .taps = rows.taps.rows ? &rows.taps : nullptr});
  }

  Scratch& scratch() { return scratch_; }
  TensorMemory& memory() { return memory_; }
  uint64_t bytes() const { return memory_.bytes() + bytes_; }   // on the device
  uint64_t result_bytes() const { return cost_.result_bytes; }  // of `result_rows`: see StageMemory

 private:
  Backend& backend_;
  const DType compute_;
  const int64_t hidden_;
  const BufferSizes sizes_;
  const StageMemory cost_;
  TensorMemory memory_;
  Scratch scratch_;
  uint64_t bytes_;  // of the scratch and the index arrays
};

}  // namespace lfm2
