// Scores the samples of a job on one rank of the pipeline: carries out the schedule's actions with the rank's pieces of
// layers, its buffers, a channel and the backend's compute stream.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stage/model/caches.h"
#include "stage/pipeline/model_runner.h"
#include "stage/pipeline/schedule.h"
#include "stage/scoring/batch_source.h"
#include "stage/scoring/result_ring.h"

namespace lfm2 {

// The caches for a sample of up to `longest` tokens that is computed in parts.
CacheShape shape_of_caches(int64_t longest);

BufferSizes scoring_buffers(const ModelConfig& config, std::span<const LayerRange> pieces, const BatchPlan& plan,
                            const ResultKind& kind);

class Scorer {
 public:
  // Allocates everything that a run needs.
  Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced = false);

  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;
  ~Scorer() { links_.backend.compute().drain(); }  // the device may use the memory below until then

  // Runs the job once. The first stage takes micro-batches from `source`, which is null on other stages, and announces
  // each to them. The last stage uses `consumers`. `on_micro_batch` is called after each micro-batch that this stage
  // has passed on. Once `stop` returns true on any stage, no further micro-batch begins, and the run ends when those in
  // flight have passed all stages. Every wait calls `poll`.
  void run(BatchSource* source, const std::vector<ResultConsumer*>& consumers,
           const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop = {},
           const std::function<void()>& poll = {});
  bool finished() const { return !begun_.stopped; }  // first stages: whether the last run ended without a stop

  int64_t micro_batches() const { return begun_.count; }  // of the last run
  // Called after an error. After it returns, no consumer is called any more, so they may be destroyed.
  void stop_results() {
    if (results_) results_->stop();
  }

  uint64_t cache_bytes() const;                                          // for samples that are computed in parts
  StageTimes times() const { return run_.times(); }                      // of the last run
  const std::vector<TraceEvent>& trace() const { return run_.trace(); }  // of the last run; empty unless asked for
  uint64_t activation_bytes() const { return runner_.bytes() + runner_.result_bytes(); }

 private:
  // A piece of this rank, as samples pass through it.
  struct Passage {
    bool first_layer = false, last_layer = false;
    bool prunes_tokens = false;  // the piece has the last attention layer, which prunes tokens
    bool starts_pruned = false;  // all its layers follow that layer, so only kept tokens arrive
    LayerSpan layers = {};       // its layers
  };
  // A micro-batch, or a part of one, ready to be computed.
  struct Prepared {
    MicroBatch samples;
    Passage passage;
    BatchTensors arrays;  // on the device
  };
  // The micro-batches that have begun on this rank.
  struct Begun {
    BatchSource* source = nullptr;
    std::function<void()> poll = {};
    int64_t count = 0;
    bool in_sample = false;                   // the newest is a part that does not end its sample
    std::deque<MicroBatchContent> open = {};  // the newest of them, in order: those that some piece has not begun yet
    bool ended = false;                       // whether no further one begins
    bool stopped = false;                     // first stages: because a stage was asked to stop
  };
  struct Piece {
    const Stage& stage;
    Passage passage;
    // If samples are cut into parts: the caches of the sample that is being computed, and which of its two rows of
    // convolution states the newest part writes.
    std::unique_ptr<Caches> caches;
    int32_t state = 0;
  };
  struct StageBuffer : BatchBuffer {
    std::optional<Unit> unit;  // the unit that is, or was last, in the buffer
    Prepared micro_batch;
    std::vector<Prepared> late;    // the parts of BatchPlan::late, if it is cut
    std::vector<int32_t> lengths;  // --hidden mean: rows of each of its samples
    std::unique_ptr<Event> taken;  // last stage: the head has read the rows in this buffer
  };

  void build(const MicroBatchContent& open, const Passage& passage, Piece& piece);
  std::vector<MicroBatchContent> late_parts(const MicroBatchContent& open) const;
  void prepare(StageBuffer& buffer, const MicroBatchContent& open, Piece& piece);
  StageBuffer& buffer_of(const Action& action) { return buffers_[static_cast<size_t>(action.buffer)]; }
  Piece& piece_of(const Action& action) { return pieces_[static_cast<size_t>(action.piece)]; }
  static Unit unit_of(const Action& action) { return {action.micro_batch, action.piece}; }
  bool gives() const { return links_.last() && kind_.positions != Positions::kNone; }
  int64_t max_rows() const { return gives() ? plan_.max_rows(kind_) : 0; }
  BatchRows rows_of(const StageBuffer& buffer, const Prepared& part) const;
  // After pruning, a part that does not end its sample needs no tokens. One token is kept all the same, because a
  // micro-batch without tokens would be a special case on every stage.
  int64_t kept(int64_t length, const MicroBatch& samples) const {
    return samples.ends_samples() ? std::min(length, tail_length_) : 1;
  }

  bool goes_on(int64_t micro_batch);
  std::optional<MicroBatchContent> take(int64_t micro_batch);
  void wait_for_free_buffer(StageBuffer& buffer);
  void fill(const Action& action);
  void forward(const Action& action);
  void compute(const Action& action, const Prepared& part);
  void give(const Action& action, const Prepared& part);
  void give_result(const Action& action);
  void carry_out(const Action& action);
  void collect_times();

  const StageLinks links_;
  const BatchPlan plan_;
  ResultKind kind_;
  int64_t tail_length_ = 0;  // last tokens of a sample that are kept after the last attention layer; 0: all
  std::vector<Piece> pieces_;
  std::vector<int32_t> pages_;  // all pages of the caches, in order, for a sample in parts

  ModelRunner runner_;
  BatchArrays arrays_;  // the arrays being built
  std::vector<StageBuffer> buffers_;
  std::optional<ResultRing> results_;
  Begun begun_;
  StageRun run_;
};

}  // namespace lfm2
