// The loop over a stage's actions. It starts work and waits only for free buffers and for arrivals, so that transfers
// run during the computation.
#include "stage/scoring/scorer.h"

#include <algorithm>
#include <numeric>

#include "stage/model/memory_plan.h"
#include "stage/pipeline/array_layout.h"

namespace lfm2 {

CacheShape shape_of_caches(int64_t longest) {
  constexpr int64_t kPage = 256;
  return {.slots = 1, .pages = (longest + kPage - 1) / kPage, .page = kPage};
}

namespace {

// An upper bound: for each token its id, its position, its row in the tail and its position there; for each sample two
// lists of offsets and its last row; for each scored token its row and its id.
size_t max_array_bytes(const BatchPlan& plan) {
  size_t bytes = 4 * ArrayLayout::bytes_for(plan.max_tokens) + 3 * ArrayLayout::bytes_for(plan.max_samples + 1) +
                 2 * ArrayLayout::bytes_for(plan.max_scored);
  // Of a part: for each token its sequence, the pages, and the rows of the states.
  if (plan.longest_in_parts > 0)
    bytes += ArrayLayout::bytes_for(plan.max_tokens) +
             ArrayLayout::bytes_for(shape_of_caches(plan.longest_in_parts).pages) + ArrayLayout::bytes_for(2);
  return bytes;
}

}  // namespace

BufferExtras buffer_extras(const ModelConfig& config, std::span<const LayerRange> pieces, const BatchPlan& plan,
                           const ResultKind& kind) {
  // Where there are late parts, the arrays of the whole micro-batch stand before those of its two parts.
  BufferExtras extras{.array_bytes = max_array_bytes(plan) * (plan.late.samples > 0 ? 3 : 1)};
  const bool cuts =
      std::any_of(pieces.begin(), pieces.end(), [&](const LayerRange& piece) { return cuts_tails(config, piece); });
  if (cuts && kind.of_last_positions())
    extras.tail_rows = std::min(plan.max_tokens, plan.max_samples * tail_length(config));
  if (pieces.back().has_feed_forward(config.layers - 1) && kind.of_last_positions())
    extras.wanted_rows = plan.max_samples;
  return extras;
}

Scorer::Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced)
    : links_(links),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      memory_(links.backend),
      run_(
          links, RunUnit::kMicroBatch, traced,
          [this] {
            if (results_) results_->advance();
          },
          links.backend.memory_is_host_memory() ? Wait::Pace{} : Wait::Pace{.longest_nap = kGpuNap}) {
  Backend& backend = links.backend;
  const ModelConfig& config = links.stage().config();
  tail_length_ = kind.of_last_positions() ? tail_length(config) : 0;
  std::vector<LayerRange> layers;
  for (const Stage& stage : links.pieces) {
    const LayerRange range = stage.layers();
    layers.push_back(range);
    const bool gets_tails = tail_length_ > 0 && lfm2::gets_tails(config, range);
    const Passage passage{.first_layer = stage.first(),
                          .last_layer = stage.last(),
                          .cuts_tails = tail_length_ > 0 && cuts_tails(config, range),
                          .gets_tails = gets_tails,
                          .caches = plan.longest_in_parts > 0 && !gets_tails};
    pieces_.push_back({.stage = stage, .passage = passage, .caches = nullptr});
    if (passage.caches)
      pieces_.back().caches =
          std::make_unique<Caches>(backend, config, range, compute, shape_of_caches(plan.longest_in_parts));
  }
  if (plan.late.samples > 0) {
    const int64_t last = tail_length_ > 0 ? last_attention_layer(config) : config.layers - 1;
    expect(pieces_.size() == 1 && links.first() && links.last() && kind.of_last_positions() && plan.late.layer > 0 &&
               plan.late.layer <= last,
           "Scorer: no such late parts");
  }
  const BufferExtras extras = buffer_extras(config, layers, plan, kind);
  buffers_.resize(static_cast<size_t>(Schedule(links.shape(), links.index, plan.micro_batches).buffers()));
  for (StageBuffer& buffer : buffers_) {
    buffer.residual = memory_.allocate(compute, {plan.max_tokens, config.hidden});
    if (extras.tail_rows > 0) buffer.tail = memory_.allocate(compute, {extras.tail_rows, config.hidden});
    if (extras.wanted_rows > 0) buffer.wanted = memory_.allocate(compute, {extras.wanted_rows, config.hidden});
    buffer.staging = backend.allocate_host(extras.array_bytes);
    buffer.arrays = backend.allocate(extras.array_bytes);
    buffer.computed = backend.create_event();
    buffer.taken = backend.create_event();
  }
  const bool gives = links.last() && kind.positions != Positions::kNone;
  const int64_t rows = gives ? plan.max_rows(kind) : 0;
  const StageMemory cost = stage_memory(config, layers, compute, compute, plan.max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + cost.result_bytes + buffers_.size() * extras.array_bytes;
  if (gives) results_.emplace(backend, links.pieces.back(), kind, rows);
}

uint64_t Scorer::cache_bytes() const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.caches ? piece.caches->bytes() : 0;
  return bytes;
}

Scorer::IndexArrays Scorer::lay_out(const Open& open, const Passage& passage, std::byte* memory) const {
  const MicroBatch& samples = open.samples;
  IndexArrays micro_batch;
  micro_batch.samples = samples;
  micro_batch.passage = passage;
  int64_t kept_tokens = 0;
  for (const int64_t length : open.content.lengths) {
    const int64_t tail = kept(length, samples);
    micro_batch.batch.max_length =
        std::max(micro_batch.batch.max_length, passage.gets_tails ? tail : samples.past + length);
    micro_batch.tail.max_length = std::max(micro_batch.tail.max_length, tail);
    kept_tokens += tail;
  }
  const int64_t sequences = std::ssize(open.content.lengths);
  ArrayLayout layout(memory);
  const auto take_batch = [&](Batch& batch, int64_t tokens) {
    batch.positions = layout.take_ints({tokens});
    batch.offsets = layout.take_ints({sequences + 1});
    batch.tokens = tokens;
    batch.sequences = sequences;
  };
  if (passage.first_layer) micro_batch.ids = layout.take_ints({samples.tokens});
  take_batch(micro_batch.batch, passage.gets_tails ? kept_tokens : samples.tokens);
  if (passage.cuts_tails) {
    micro_batch.tail_rows = layout.take_ints({kept_tokens});
    take_batch(micro_batch.tail, kept_tokens);
  }
  if (samples.is_part() && passage.caches) {
    Batch& batch = micro_batch.batch;
    batch.singles = batch.tokens == 1 ? 1 : 0;
    batch.sequence_of = layout.take_ints({batch.tokens});
    batch.page_table = layout.take_ints({1, shape_of_caches(plan_.longest_in_parts).pages});
    batch.states = layout.take_ints({1, 2});
  }
  micro_batch.last_rows = layout.take_ints({sequences});
  if (kind_.score && passage.last_layer) {
    micro_batch.scored_rows = layout.take_ints({samples.scored});
    micro_batch.targets = layout.take_ints({samples.scored});
  }
  micro_batch.bytes = layout.bytes();
  return micro_batch;
}

// The arrays of a micro-batch on the host, but its ids and what fill_part() fills.
void Scorer::fill_arrays(const IndexArrays& host, const Open& open) const {
  const MicroBatch& samples = host.samples;
  const Passage& passage = host.passage;
  // Appends `length` tokens of a sample, which count their positions from `first`, to the batch.
  const auto add = [](const Batch& batch, int64_t sample, int64_t& token, int64_t length, int64_t first) {
    for (int64_t position = first; position < first + length; ++position)
      batch.positions.as<int32_t>()[token++] = static_cast<int32_t>(position);
    batch.offsets.as<int32_t>()[sample + 1] = static_cast<int32_t>(token);
  };
  int64_t token = 0, tail_token = 0, tail_row = 0, scored_row = 0;
  host.batch.offsets.as<int32_t>()[0] = 0;
  if (passage.cuts_tails) host.tail.offsets.as<int32_t>()[0] = 0;
  for (int64_t sample = 0; sample < host.batch.sequences; ++sample) {
    const int64_t length = open.content.lengths[static_cast<size_t>(sample)], tail = kept(length, samples);
    add(host.batch, sample, token, passage.gets_tails ? tail : length, passage.gets_tails ? 0 : samples.past);
    if (passage.cuts_tails) {
      add(host.tail, sample, tail_token, tail, 0);
      for (int64_t row = tail; row > 0; --row)
        host.tail_rows.as<int32_t>()[tail_row++] = static_cast<int32_t>(token - row);
    }
    host.last_rows.as<int32_t>()[sample] = static_cast<int32_t>((passage.cuts_tails ? tail_token : token) - 1);
    if (!host.scored_rows) continue;
    // The row in front of a token says how likely it is.
    const int64_t scored = open.content.scored[static_cast<size_t>(sample)];
    const int64_t end = samples.ends_samples() ? token - 1 : token;
    for (int64_t row = end - scored; row < end; ++row)
      host.scored_rows.as<int32_t>()[scored_row++] = static_cast<int32_t>(row);
  }
  if (host.targets) std::copy(open.content.targets.begin(), open.content.targets.end(), host.targets.as<int32_t>());
}

// The parts in which the samples of a micro-batch go through the last layers; none where they go at once.
std::vector<Scorer::Open> Scorer::late_parts(const Open& open) const {
  const MicroBatch& all = open.samples;
  const bool is_last = all.first_sample + all.samples == plan_.samples;
  if (!is_last || all.is_part() || plan_.late.samples == 0 || all.samples <= plan_.late.samples) return {};
  std::vector<Open> parts(2);
  const std::vector<int32_t>& lengths = open.content.lengths;
  const auto second = lengths.end() - plan_.late.samples;
  parts[0].content.lengths = {lengths.begin(), second};
  parts[1].content.lengths = {second, lengths.end()};
  int64_t sample = all.first_sample, token = all.first_token;
  for (Open& part : parts) {
    const std::vector<int32_t>& own = part.content.lengths;
    part.samples = {.first_sample = sample,
                    .samples = std::ssize(own),
                    .first_token = token,
                    .tokens = std::accumulate(own.begin(), own.end(), int64_t{0})};
    sample += part.samples.samples;
    token += part.samples.tokens;
  }
  return parts;
}

// Fills the buffer's index arrays for a micro-batch and enqueues their copy to the device, in front of its forward. The
// buffer must be free: nothing reads the arrays of the micro-batch before it any more.
void Scorer::prepare(StageBuffer& buffer, const Open& open, Piece& piece, std::span<const int32_t> ids) {
  if (kind_.hidden == Hidden::kMean) buffer.lengths = open.content.lengths;
  if (kind_.hidden == Hidden::kMean && open.samples.is_part())
    buffer.lengths = {static_cast<int32_t>(open.samples.whole)};
  size_t bytes = 0;
  const auto put = [&](const Open& some, const Passage& passage) {
    const IndexArrays host = lay_out(some, passage, buffer.staging.data() + bytes);
    expect(bytes + host.bytes <= buffer.staging.bytes(), "Scorer: the index arrays are larger than their buffer");
    fill_arrays(host, some);
    if (host.ids) std::copy(ids.begin(), ids.end(), host.ids.as<int32_t>());
    if (host.batch.states) fill_part(host.batch, piece);
    const IndexArrays arrays = lay_out(some, passage, buffer.arrays.data() + bytes);
    bytes += arrays.bytes;
    return arrays;
  };
  const std::vector<Open> parts = late_parts(open);
  Passage passage = piece.passage, late = passage;
  if (!parts.empty()) {
    passage.last_layer = passage.cuts_tails = late.first_layer = false;
    passage.layers.end = late.layers.first = plan_.late.layer;
  }
  buffer.micro_batch = put(open, passage);
  buffer.late.clear();
  for (const Open& part : parts) buffer.late.push_back(put(part, late));
  links_.backend.copy(links_.backend.compute(), buffer.arrays.data(), buffer.staging.data(), bytes);
}

// All tokens are of one sequence, whose pages follow one another. The states are those that the part before has left;
// the first part reads none.
void Scorer::fill_part(const Batch& batch, Piece& piece) {
  std::fill_n(batch.sequence_of.as<int32_t>(), batch.tokens, 0);
  std::iota(batch.page_table.as<int32_t>(), batch.page_table.as<int32_t>() + batch.page_table.numel(), 0);
  batch.states.as<int32_t>()[0] = piece.state;
  batch.states.as<int32_t>()[1] = piece.state = 1 - piece.state;
}

void Scorer::collect_times() {
  run_.collect_times();
  if (!results_) return;
  for (const Span& span : results_->take_finished()) run_.trace(TraceKind::kOutput, span);
}

// Whether another micro-batch comes. The first stage decides, and sends the lengths of its samples to every other
// stage, or an empty message where none comes. Stages receive the message before they wait for hidden states, so no
// stage waits for hidden states that never come.
bool Scorer::goes_on(int64_t micro_batch, const MicroBatches* micro_batches) {
  std::vector<int32_t> words;
  ControlLink* control = links_.control;
  if (links_.first()) {
    // What has begun of a sample is not left behind.
    if ((*micro_batches)[micro_batch].past > 0 || !run_.first_is_asked_to_stop())
      words = micro_batches->message(micro_batch);
    if (control != nullptr) control->send_step(words);
  } else if (!control->receive_step(words)) {
    run_.wait([&] { return control->receive_step(words); }, Phase::kStep, {micro_batch}, 0);
  }
  if (words.empty()) return false;
  MicroBatchContent content = content_of_message(words, kind_.score);
  const std::vector<int32_t>& lengths = content.lengths;
  const bool ends = content.whole == 0 || content.past + lengths.front() == content.whole;
  const MicroBatch samples{.first_sample = begun_.newest.first_sample + begun_.newest.samples,
                           .samples = ends ? std::ssize(lengths) : 0,
                           .first_token = begun_.newest.first_token + begun_.newest.tokens,
                           .tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
                           .first_scored = begun_.newest.first_scored + begun_.newest.scored,
                           .scored = std::ssize(content.targets),
                           .past = content.past,
                           .whole = content.whole};
  expect(
      samples.samples <= plan_.max_samples && samples.tokens <= plan_.max_tokens && samples.scored <= plan_.max_scored,
      "Scorer: a micro-batch is larger than the plan says");
  begun_.newest = samples;
  begun_.open.push_back({samples, std::move(content)});
  return true;
}

void Scorer::wait_for_free_buffer(StageBuffer& buffer) {
  if (!buffer.unit) return;  // nothing was in the buffer in this run
  run_.wait_for_free_buffer(static_cast<int>(&buffer - buffers_.data()), *buffer.unit,
                            [&] { return buffer.computed->done() && buffer.taken->done(); });
}

// The micro-batches of a run come to each piece in order. The last piece is the last to need what is known of one.
void Scorer::fill(const Action& action, const MicroBatches* micro_batches) {
  StageBuffer& buffer = buffer_of(action);
  const Open& open = begun_.open[static_cast<size_t>(action.micro_batch - (begun_.count - std::ssize(begun_.open)))];
  wait_for_free_buffer(buffer);
  buffer.unit = unit_of(action);
  const bool takes = action.kind == ActionKind::kTakeTokens;
  prepare(buffer, open, piece_of(action), takes ? micro_batches->ids(action.micro_batch) : std::span<const int32_t>());
  if (!takes) run_.receive(action.buffer, input_of(buffer, buffer.micro_batch), unit_of(action));
  if (action.piece + 1 == std::ssize(pieces_)) begun_.open.pop_front();
}

void Scorer::compute(const Action& action, const IndexArrays& arrays) {
  StageBuffer& buffer = buffer_of(action);
  links_.backend.compute().submit(
      [this, &buffer, &arrays, &piece = piece_of(action)] {
        Ops& ops = links_.backend.ops();
        const Passage& passage = arrays.passage;
        const Tensor residual = input_of(buffer, arrays), output = output_of(buffer, arrays);
        if (passage.first_layer) piece.stage.embed(ops, arrays.ids, residual);
        const bool gives = gives_wanted(passage);
        const Tail tail{arrays.tail_rows, passage.cuts_tails ? buffer.tail.rows(0, arrays.tail.tokens) : Tensor(),
                        arrays.tail};
        const WantedRows wanted{arrays.last_rows, output};
        piece.stage.forward({.ops = ops,
                             .scratch = scratch_,
                             .residual = residual,
                             .batch = arrays.batch,
                             .tail = passage.cuts_tails ? &tail : nullptr,
                             .caches = arrays.batch.states ? piece.caches.get() : nullptr,
                             .wanted = gives ? &wanted : nullptr,
                             .span = passage.layers});
      },
      run_.tag(unit_of(action), false));
}

void Scorer::forward(const Action& action) {
  if (!piece_of(action).stage.first()) run_.wait_for_arrival(action.buffer, unit_of(action));
  StageBuffer& buffer = buffer_of(action);
  compute(action, buffer.micro_batch);
  for (const IndexArrays& part : buffer.late) {
    compute(action, part);
    if (&part != &buffer.late.back()) give(action, part);
  }
  links_.backend.compute().record(*buffer.computed);
}

void Scorer::give(const Action& action, const IndexArrays& arrays) {
  const StageBuffer& buffer = buffer_of(action);
  const MicroBatch& micro_batch = arrays.samples;
  const bool last = kind_.of_last_positions(), mean = kind_.hidden == Hidden::kMean;
  const bool has_rows = kind_.score ? micro_batch.scored > 0 : !last || micro_batch.ends_samples();
  if (!results_ || !has_rows) return;
  const Tensor rows = kind_.score ? arrays.scored_rows : Tensor();
  const int64_t first_row = kind_.score    ? plan_.first_scored + micro_batch.first_scored
                            : last || mean ? plan_.first_sample + micro_batch.first_sample
                                           : plan_.first_token + micro_batch.first_token;
  const auto until = [&](const std::function<bool()>& done, Phase phase) { run_.wait(done, phase, unit_of(action)); };
  results_->give(output_of(buffer, arrays), rows, first_row, scratch_, until, run_.tag(unit_of(action), true),
                 arrays.targets, buffer.lengths, micro_batch.past);
}

void Scorer::give_result(const Action& action) {
  const StageBuffer& buffer = buffer_of(action);
  give(action, buffer.late.empty() ? buffer.micro_batch : buffer.late.back());
  links_.backend.compute().record(*buffer.taken);
}

void Scorer::carry_out(const Action& action, const MicroBatches* micro_batches) {
  StageBuffer& buffer = buffer_of(action);
  switch (action.kind) {
    case ActionKind::kTakeTokens:
    case ActionKind::kReceive:
      return fill(action, micro_batches);
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kSend:
      return run_.send(action.buffer, output_of(buffer, buffer.micro_batch), *buffer.computed, unit_of(action));
    case ActionKind::kGiveResult:
      return give_result(action);
  }
}

void Scorer::run(const MicroBatches* micro_batches, const std::vector<ResultConsumer*>& consumers,
                 const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop) {
  run_.begin(stop);
  finished_ = true;
  begun_ = {};
  for (StageBuffer& buffer : buffers_) buffer.unit.reset();
  if (results_) results_->start(consumers);
  Schedule schedule(links_.shape(), links_.index, plan_.micro_batches);
  while (const std::optional<Action> action = schedule.next()) {
    const bool fills = action->kind == ActionKind::kTakeTokens || action->kind == ActionKind::kReceive;
    if (fills && finished_ && action->piece == 0) {
      finished_ = goes_on(action->micro_batch, micro_batches);
      if (finished_) ++begun_.count;
    }
    if (action->micro_batch >= begun_.count) continue;  // the run was stopped before it
    run_.enter(Phase::kCompute, unit_of(*action));
    carry_out(*action, micro_batches);
    const bool passed_on = action->kind == ActionKind::kSend || action->kind == ActionKind::kGiveResult;
    if (passed_on && action->piece + 1 == std::ssize(pieces_)) on_micro_batch(buffer_of(*action).micro_batch.samples);
    if (results_) results_->advance();
    run_.pass_on_stop();
    collect_times();
  }
  if (results_) results_->finish([&](const auto& done, Phase phase) { run_.wait(done, phase, {begun_.count - 1}); });
  for (StageBuffer& buffer : buffers_) wait_for_free_buffer(buffer);
  collect_times();
  run_.end();
}

}  // namespace lfm2
