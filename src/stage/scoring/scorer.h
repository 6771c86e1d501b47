// Scores the samples of a job on one rank of the pipeline: carries out the actions of the schedule, with the rank's
// pieces of layers, a few buffers, a channel and the compute stream of the backend.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/model/caches.h"
#include "stage/pipeline/schedule.h"
#include "stage/pipeline/stage_run.h"
#include "stage/scoring/plan.h"
#include "stage/scoring/result_ring.h"

namespace lfm2 {

// The caches for a sample of up to so many tokens that goes through the stages in parts.
CacheShape shape_of_caches(int64_t longest);

// What a buffer of a rank has beside the residual stream of a micro-batch.
struct BufferExtras {
  int64_t tail_rows = 0;    // of a residual stream for the tails, where a piece of the rank cuts them
  int64_t wanted_rows = 0;  // the same for the last positions, on the last stage
  size_t array_bytes = 0;   // of the index arrays: so many on the device, and as many on the host
  uint64_t bytes(const ModelConfig& config, DType compute) const {
    return static_cast<uint64_t>((tail_rows + wanted_rows) * config.hidden) * size_bytes(compute) + 2 * array_bytes;
  }
};
BufferExtras buffer_extras(const ModelConfig& config, std::span<const LayerRange> pieces, const BatchPlan& plan,
                           const ResultKind& kind);

class Scorer {
 public:
  // Allocates everything that a run needs.
  Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced = false);

  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;
  ~Scorer() { links_.backend.compute().drain(); }  // until then the device may use the memory below

  // Runs the job once. The first stage takes `micro_batches`, which are null on the others, and tells the others of
  // each micro-batch before it comes. The last stage uses `consumers`. `on_micro_batch` is called after each
  // micro-batch that this stage has passed on, for progress. Once `stop` returns true on any stage, no further
  // micro-batch begins, and the run ends when those that have begun are through all stages.
  void run(const MicroBatches* micro_batches, const std::vector<ResultConsumer*>& consumers,
           const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop = {});
  bool finished() const { return finished_; }  // whether the last run was not stopped

  // To be called after an error: when it returns, no consumer is being called or will be, so they may be destroyed.
  void stop_results() {
    if (results_) results_->stop();
  }

  uint64_t cache_bytes() const;                                          // of samples that go in parts
  StageTimes times() const { return run_.times(); }                      // of the last run
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return memory_.bytes() + working_bytes_; }

 private:
  // What samples go through at a time.
  struct Passage {
    bool first_layer = false, last_layer = false;
    bool cuts_tails = false;  // the last attention layer is there, where the tails are cut
    bool gets_tails = false;  // all is behind that one: only tails come in
    bool caches = false;      // parts of samples go on over caches
    LayerSpan layers = {};    // of the piece
  };
  // A micro-batch as this stage computes it: index arrays of int32, in one piece of memory.
  struct IndexArrays {
    MicroBatch samples;
    Passage passage;
    Tensor ids;        // [tokens] in front of the first layer
    Batch batch;       // the tokens that come in
    Tensor tail_rows;  // on the piece that cuts the tails: the rows that are kept
    Batch tail;        // on the piece that cuts the tails: the tokens that go out
    Tensor last_rows;  // [samples]: the row of each sample's last token, among those that go out
    // --score, behind the last layer: the rows in front of the scored tokens, and the scored tokens.
    Tensor scored_rows, targets;
    size_t bytes = 0;  // size of all arrays
  };
  // A micro-batch of which a piece of this rank has not begun yet.
  struct Open {
    MicroBatch samples;
    MicroBatchContent content;
  };
  // The micro-batches that have begun on this rank.
  struct Begun {
    int64_t count = 0;
    MicroBatch newest;
    std::deque<Open> open;  // the last of them, in their order
  };
  struct Piece {
    const Stage& stage;
    Passage passage;
    // Where samples go in parts: what is kept of the one that is on its way, and which of its two rows of convolution
    // states the newest part writes.
    std::unique_ptr<Caches> caches;
    int32_t state = 0;
  };
  struct StageBuffer {
    std::optional<Unit> unit;  // what is in the buffer, or was there last
    Tensor residual;           // [max_tokens, hidden] act
    Tensor tail;               // the same for the tails, where a piece cuts them
    Tensor wanted;             // and for the last positions, on the last stage, where they alone are wanted
    // The index arrays of the micro-batch in this buffer: on the host, to be copied from, and on the device.
    Buffer staging, arrays;
    IndexArrays micro_batch;
    std::vector<IndexArrays> late;  // those of BatchPlan::late's parts, where it goes through the last layers in parts
    std::vector<int32_t> lengths;   // --hidden mean: those of its samples
    std::unique_ptr<Event> computed;  // the layers have computed the micro-batch in this buffer
    std::unique_ptr<Event> taken;     // last stage: the head has read the rows in this buffer
  };

  IndexArrays lay_out(const Open& open, const Passage& passage, std::byte* memory) const;
  void fill_arrays(const IndexArrays& host, const Open& open) const;
  std::vector<Open> late_parts(const Open& open) const;
  void prepare(StageBuffer& buffer, const Open& open, Piece& piece, std::span<const int32_t> ids);
  static void fill_part(const Batch& batch, Piece& piece);
  StageBuffer& buffer_of(const Action& action) { return buffers_[static_cast<size_t>(action.buffer)]; }
  Piece& piece_of(const Action& action) { return pieces_[static_cast<size_t>(action.piece)]; }
  static Unit unit_of(const Action& action) { return {action.micro_batch, action.piece}; }
  bool gives_wanted(const Passage& passage) const { return kind_.of_last_positions() && passage.last_layer; }
  // What goes through with these arrays, the buffer's micro-batch or a part of it, and what comes of it.
  static Tensor input_of(const StageBuffer& buffer, const IndexArrays& arrays) {
    return buffer.residual.rows(arrays.samples.first_token - buffer.micro_batch.samples.first_token,
                                arrays.batch.tokens);
  }
  Tensor output_of(const StageBuffer& buffer, const IndexArrays& arrays) const {
    if (gives_wanted(arrays.passage))
      return buffer.wanted.rows(arrays.samples.first_sample - buffer.micro_batch.samples.first_sample,
                                arrays.last_rows.dim(0));
    return arrays.passage.cuts_tails ? buffer.tail.rows(0, arrays.tail.tokens) : input_of(buffer, arrays);
  }
  // Of a part that does not end its sample nothing is needed behind the cut; one token stands for it, as a micro-batch
  // without any would be a case of its own on the way.
  int64_t kept(int64_t length, const MicroBatch& samples) const {
    return samples.ends_samples() ? std::min(length, tail_length_) : 1;
  }

  bool goes_on(int64_t micro_batch, const MicroBatches* micro_batches);
  void wait_for_free_buffer(StageBuffer& buffer);
  void fill(const Action& action, const MicroBatches* micro_batches);
  void forward(const Action& action);
  void compute(const Action& action, const IndexArrays& arrays);
  void give(const Action& action, const IndexArrays& arrays);
  void give_result(const Action& action);
  void carry_out(const Action& action, const MicroBatches* micro_batches);
  void collect_times();

  const StageLinks links_;
  const BatchPlan plan_;
  DType compute_;
  ResultKind kind_;
  int64_t tail_length_ = 0;  // last tokens of a sample that go on behind the last attention layer; 0: all
  std::vector<Piece> pieces_;

  TensorMemory memory_;
  uint64_t working_bytes_ = 0;  // bytes of the scratch, the results and the index arrays
  std::vector<StageBuffer> buffers_;
  Scratch scratch_;
  std::optional<ResultRing> results_;
  Begun begun_;
  bool finished_ = false;
  StageRun run_;
};

}  // namespace lfm2
