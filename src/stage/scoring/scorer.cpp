// The loop over a stage's actions. It starts work and waits only for free buffers and for arrivals, so that transfers
// run during the computation.
#include "stage/scoring/scorer.h"

#include <algorithm>
#include <numeric>

#include "stage/model/memory_plan.h"
#include "stage/pipeline/array_layout.h"

namespace lfm2 {

Scorer::Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced)
    : links_(links),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      memory_(links.backend),
      run_(links, RunUnit::kMicroBatch, traced, [this] {
        if (results_) results_->advance();
      }) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage;
  const int64_t cut = last_attention_layer(stage.config());
  tail_length_ = kind.of_last_positions() ? tail_length(stage.config()) : 0;
  cuts_tails_ = tail_length_ > 0 && cut >= stage.layers().first && cut < stage.layers().end();
  gets_tails_ = tail_length_ > 0 && cut < stage.layers().first;
  const size_t array_bytes = max_array_bytes();
  for (StageBuffer& buffer : buffers_) {
    buffer.residual = memory_.allocate(compute, {plan.max_tokens, stage.config().hidden});
    if (cuts_tails_)
      buffer.tail = memory_.allocate(
          compute, {std::min(plan.max_tokens, plan.max_samples * tail_length_), stage.config().hidden});
    buffer.staging = backend.allocate_host(array_bytes);
    buffer.arrays = backend.allocate(array_bytes);
    buffer.computed = backend.create_event();
    buffer.taken = backend.create_event();
  }
  const bool gives = stage.last() && kind.positions != Positions::kNone;
  const int64_t rows = gives ? plan.max_rows(kind) : 0;
  const StageMemory cost = stage_memory(stage.config(), stage.layers(), compute, compute, plan.max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + cost.result_bytes + kBuffers * array_bytes;
  if (gives) results_.emplace(backend, stage, kind, rows);
}

// An upper bound: for each token its id, its position, its row in the tail and its position there; for each sample two
// lists of offsets and its last row; for each scored token its row and its id.
size_t Scorer::max_array_bytes() const {
  return 4 * ArrayLayout::bytes_for(plan_.max_tokens) + 3 * ArrayLayout::bytes_for(plan_.max_samples + 1) +
         2 * ArrayLayout::bytes_for(plan_.max_scored);
}

Scorer::IndexArrays Scorer::lay_out(const Next& next, std::byte* memory) const {
  const MicroBatch& samples = next.samples;
  IndexArrays micro_batch;
  micro_batch.samples = samples;
  int64_t kept_tokens = 0;
  for (const int64_t length : next.content.lengths) {
    micro_batch.batch.max_length = std::max(micro_batch.batch.max_length, gets_tails_ ? kept(length) : length);
    micro_batch.tail.max_length = std::max(micro_batch.tail.max_length, kept(length));
    kept_tokens += kept(length);
  }
  ArrayLayout layout(memory);
  const auto take_batch = [&](Batch& batch, int64_t tokens) {
    batch.positions = layout.take_ints({tokens});
    batch.offsets = layout.take_ints({samples.samples + 1});
    batch.tokens = tokens;
    batch.sequences = samples.samples;
  };
  if (links_.stage.first()) micro_batch.ids = layout.take_ints({samples.tokens});
  take_batch(micro_batch.batch, gets_tails_ ? kept_tokens : samples.tokens);
  if (cuts_tails_) {
    micro_batch.tail_rows = layout.take_ints({kept_tokens});
    take_batch(micro_batch.tail, kept_tokens);
  }
  micro_batch.last_rows = layout.take_ints({samples.samples});
  if (kind_.score && links_.stage.last()) {
    micro_batch.scored_rows = layout.take_ints({samples.scored});
    micro_batch.targets = layout.take_ints({samples.scored});
  }
  micro_batch.bytes = layout.bytes();
  return micro_batch;
}

// Fills the buffer's index arrays for the micro-batch `next_` and enqueues their copy to the device, in front of its
// forward. The buffer must be free: nothing reads the arrays of the micro-batch before it any more.
void Scorer::prepare(StageBuffer& buffer, std::span<const int32_t> ids) {
  const IndexArrays host = lay_out(next_, buffer.staging.data());
  buffer.micro_batch = lay_out(next_, buffer.arrays.data());
  if (kind_.hidden == Hidden::kMean) buffer.lengths = next_.content.lengths;
  std::copy(ids.begin(), ids.end(), host.ids.as<int32_t>());
  // Appends `length` tokens of a sample, which count their positions from 0, to the batch.
  const auto add = [](const Batch& batch, int64_t sample, int64_t& token, int64_t length) {
    for (int64_t position = 0; position < length; ++position)
      batch.positions.as<int32_t>()[token++] = static_cast<int32_t>(position);
    batch.offsets.as<int32_t>()[sample + 1] = static_cast<int32_t>(token);
  };
  int64_t token = 0, tail_token = 0, tail_row = 0, scored_row = 0;
  host.batch.offsets.as<int32_t>()[0] = 0;
  if (cuts_tails_) host.tail.offsets.as<int32_t>()[0] = 0;
  for (int64_t sample = 0; sample < next_.samples.samples; ++sample) {
    const int64_t length = next_.content.lengths[static_cast<size_t>(sample)];
    add(host.batch, sample, token, gets_tails_ ? kept(length) : length);
    if (cuts_tails_) {
      add(host.tail, sample, tail_token, kept(length));
      for (int64_t row = kept(length); row > 0; --row)
        host.tail_rows.as<int32_t>()[tail_row++] = static_cast<int32_t>(token - row);
    }
    host.last_rows.as<int32_t>()[sample] = static_cast<int32_t>((cuts_tails_ ? tail_token : token) - 1);
    if (!host.scored_rows) continue;
    // The row in front of a token says how likely it is.
    const int64_t scored = next_.content.scored[static_cast<size_t>(sample)];
    for (int64_t row = token - 1 - scored; row < token - 1; ++row)
      host.scored_rows.as<int32_t>()[scored_row++] = static_cast<int32_t>(row);
  }
  if (host.targets) std::copy(next_.content.targets.begin(), next_.content.targets.end(), host.targets.as<int32_t>());
  links_.backend.copy(links_.backend.compute(), buffer.arrays.data(), buffer.staging.data(), host.bytes);
}

void Scorer::collect_times() {
  run_.collect_times();
  if (!results_) return;
  for (const Span& span : results_->take_finished()) run_.trace(TraceKind::kOutput, span.tag / 2, span.start, span.end);
}

// Whether another micro-batch comes. The first stage decides, and sends the lengths of its samples to every other
// stage, or an empty message where none comes. Stages receive the message before they wait for hidden states, so no
// stage waits for hidden states that never come.
bool Scorer::goes_on(int64_t micro_batch, const MicroBatches* micro_batches) {
  std::vector<int32_t> words;
  ControlLink* control = links_.control;
  if (links_.stage.first()) {
    if (!run_.first_is_asked_to_stop()) words = micro_batches->message(micro_batch);
    if (control != nullptr) control->send_step(words);
  } else if (!control->receive_step(words)) {
    run_.wait([&] { return control->receive_step(words); }, Phase::kStep, micro_batch, 0);
  }
  if (words.empty()) return false;
  MicroBatchContent content = content_of_message(words, kind_.score);
  const std::vector<int32_t>& lengths = content.lengths;
  const MicroBatch& before = next_.samples;
  const MicroBatch samples{.first_sample = before.first_sample + before.samples,
                           .samples = std::ssize(lengths),
                           .first_token = before.first_token + before.tokens,
                           .tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
                           .first_scored = before.first_scored + before.scored,
                           .scored = std::ssize(content.targets)};
  next_ = {samples, std::move(content)};
  expect(
      samples.samples <= plan_.max_samples && samples.tokens <= plan_.max_tokens && samples.scored <= plan_.max_scored,
      "Scorer: a micro-batch is larger than the plan says");
  return true;
}

void Scorer::wait_for_free_buffer(int buffer_index, int64_t previous) {
  const StageBuffer& buffer = buffers_[static_cast<size_t>(buffer_index)];
  run_.wait_for_free_buffer(buffer_index, previous, [&] { return buffer.computed->done() && buffer.taken->done(); });
}

void Scorer::forward(const Action& action) {
  if (!links_.stage.first()) run_.wait_for_arrival(action.buffer, action.micro_batch);
  StageBuffer& buffer = buffer_of(action);
  links_.backend.compute().submit(
      [this, &buffer] {
        const Tensor residual = input_of(buffer);
        const IndexArrays& micro_batch = buffer.micro_batch;
        if (links_.stage.first()) links_.stage.embed(links_.backend.ops(), micro_batch.ids, residual);
        const Tail tail{micro_batch.tail_rows, cuts_tails_ ? output_of(buffer) : Tensor(), micro_batch.tail};
        links_.stage.forward(links_.backend.ops(), residual, micro_batch.batch, scratch_,
                             cuts_tails_ ? &tail : nullptr);
      },
      2 * action.micro_batch);
  links_.backend.compute().record(*buffer.computed);
}

void Scorer::give_result(const Action& action) {
  const StageBuffer& buffer = buffer_of(action);
  const IndexArrays& arrays = buffer.micro_batch;
  const MicroBatch& micro_batch = arrays.samples;
  if (results_) {
    const bool last = kind_.of_last_positions(), mean = kind_.hidden == Hidden::kMean;
    const Tensor rows = kind_.score ? arrays.scored_rows : last ? arrays.last_rows : Tensor();
    const int64_t first_row = kind_.score    ? plan_.first_scored + micro_batch.first_scored
                              : last || mean ? plan_.first_sample + micro_batch.first_sample
                                             : plan_.first_token + micro_batch.first_token;
    const auto until = [&](const std::function<bool()>& done, Phase phase) {
      run_.wait(done, phase, action.micro_batch);
    };
    results_->give(output_of(buffer), rows, first_row, scratch_, until, 2 * action.micro_batch + 1, arrays.targets,
                   buffer.lengths);
  }
  links_.backend.compute().record(*buffer.taken);
}

void Scorer::run(const MicroBatches* micro_batches, const std::vector<ResultConsumer*>& consumers,
                 const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop) {
  run_.begin(stop);
  finished_ = true;
  next_ = {};
  if (results_) results_->start(consumers);
  int64_t begun = 0;  // number of micro-batches
  for (int64_t index = 0; index < kActionsOfMicroBatch * plan_.micro_batches; ++index) {
    const Action action = scheduled_action(links_.index, links_.stages, index);
    const bool begins = action.kind == ActionKind::kTakeTokens || action.kind == ActionKind::kReceive;
    if (begins && !goes_on(action.micro_batch, micro_batches)) {
      finished_ = false;
      break;
    }
    begun = action.micro_batch + 1;
    run_.enter(Phase::kCompute, action.micro_batch);
    StageBuffer& buffer = buffer_of(action);
    switch (action.kind) {
      case ActionKind::kTakeTokens:
        wait_for_free_buffer(action.buffer, action.micro_batch - kBuffers);
        prepare(buffer, micro_batches->ids(action.micro_batch));
        break;
      case ActionKind::kReceive:
        wait_for_free_buffer(action.buffer, action.micro_batch - kBuffers);
        prepare(buffer, {});
        links_.channel->receive(action.buffer, input_of(buffer));
        break;
      case ActionKind::kForward:
        forward(action);
        break;
      case ActionKind::kSend:
        links_.channel->send(action.buffer, output_of(buffer), *buffer.computed);
        on_micro_batch(buffer.micro_batch.samples);
        break;
      case ActionKind::kGiveResult:
        give_result(action);
        on_micro_batch(buffer.micro_batch.samples);
        break;
    }
    if (results_) results_->advance();
    run_.pass_on_stop();
    collect_times();
  }
  if (results_) results_->finish([&](const auto& done, Phase phase) { run_.wait(done, phase, begun - 1); });
  for (int64_t micro_batch = std::max<int64_t>(0, begun - kBuffers); micro_batch < begun; ++micro_batch)
    wait_for_free_buffer(static_cast<int>(micro_batch % kBuffers), micro_batch);
  collect_times();
  run_.end();
}

}  // namespace lfm2
