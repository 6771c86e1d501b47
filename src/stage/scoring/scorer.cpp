// The loop over a stage's actions. It starts work and waits only for free buffers and for arrivals, so that transfers
// run during the computation.
#include "stage/scoring/scorer.h"

#include <algorithm>
#include <numeric>

namespace lfm2 {

CacheShape shape_of_caches(int64_t longest) {
  constexpr int64_t kPage = 256;
  return {.slots = 1, .pages = pages_for(longest, kPage), .page_size = kPage};
}

namespace {

// The arrays of the largest micro-batch. For each token: its id, its position, its row in the tail and its position
// there. For each sample: two lists of offsets and its last row. For each scored token: its row and its id.
size_t max_array_bytes(const BatchPlan& plan) {
  const int64_t tokens = plan.max_tokens, samples = plan.max_samples;
  BatchSizes largest;
  largest.positions = tokens;
  largest.offsets = samples + 1;
  largest.tails = {.rows = tokens, .positions = tokens, .offsets = samples + 1};
  largest.scored_rows = largest.targets = plan.max_scored;
  largest.last_rows = samples;
  if (plan.longest_in_parts > 0) {
    largest.sequence_of = tokens;
    largest.page_table = shape_of_caches(plan.longest_in_parts).pages;
    largest.states = 2;
  }
  return largest.bytes(tokens);
}

}  // namespace

BufferSizes scoring_buffers(const ModelConfig& config, std::span<const LayerRange> pieces, const BatchPlan& plan,
                            const ResultKind& kind) {
  // With late parts, the arrays of the whole micro-batch precede those of its two parts.
  BufferSizes sizes{.tokens = plan.max_tokens, .array_bytes = max_array_bytes(plan) * (plan.late.samples > 0 ? 3 : 1)};
  const bool cuts =
      std::any_of(pieces.begin(), pieces.end(), [&](const LayerRange& piece) { return prunes_tokens(config, piece); });
  if (cuts && kind.of_last_positions())
    sizes.tail_rows = std::min(plan.max_tokens, plan.max_samples * tail_length(config));
  if (pieces.back().has_feed_forward(config.layers - 1) && kind.of_last_positions())
    sizes.output_rows = plan.max_samples;
  return sizes;
}

Scorer::Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced)
    : links_(links),
      plan_(plan),
      kind_(kind),
      runner_(links, compute, scoring_buffers(links.stage().config(), links.layers(), plan, kind), max_rows()),
      run_(
          links, RunUnit::kMicroBatch, traced,
          [this] {
            if (results_) results_->advance();
            if (begun_.poll) begun_.poll();
          },
          links.backend.memory_is_host_memory() ? Wait::Pace{} : Wait::Pace{.longest_nap = kGpuNap}) {
  Backend& backend = links.backend;
  const ModelConfig& config = links.stage().config();
  tail_length_ = kind.of_last_positions() ? tail_length(config) : 0;
  const CacheShape shape = shape_of_caches(plan.longest_in_parts);
  pages_.resize(static_cast<size_t>(shape.pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  for (const Stage& stage : links.pieces) {
    const LayerRange range = stage.layers();
    const Passage passage{.first_layer = stage.first(),
                          .last_layer = stage.last(),
                          .prunes_tokens = tail_length_ > 0 && prunes_tokens(config, range),
                          .starts_pruned = tail_length_ > 0 && starts_pruned(config, range)};
    pieces_.push_back({.stage = stage, .passage = passage, .caches = nullptr});
    if (plan.longest_in_parts > 0 && !passage.starts_pruned)
      pieces_.back().caches = std::make_unique<Caches>(backend, config, range, compute, shape);
  }
  if (plan.late.samples > 0) {
    const int64_t last = tail_length_ > 0 ? last_attention_layer(config) : config.layers - 1;
    expect(pieces_.size() == 1 && links.first() && links.last() && kind.of_last_positions() && plan.late.layer > 0 &&
               plan.late.layer <= last,
           "Scorer: no such late parts");
  }
  buffers_.resize(static_cast<size_t>(Schedule(links.shape(), links.index, plan.micro_batches).buffers()));
  for (StageBuffer& buffer : buffers_) {
    runner_.allocate(buffer);
    buffer.taken = backend.create_event();
  }
  if (gives()) results_.emplace(backend, links.pieces.back(), kind, max_rows());
}

uint64_t Scorer::cache_bytes() const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.caches ? piece.caches->bytes() : 0;
  return bytes;
}

// Builds the index arrays, except the ids, of a micro-batch or of a part of one.
void Scorer::build(const MicroBatchContent& open, const Passage& passage, Piece& piece) {
  const MicroBatch& samples = open.samples;
  const bool cached = samples.is_part() && piece.caches != nullptr, scores = kind_.score && passage.last_layer;
  arrays_.clear();
  arrays_.table_width = std::ssize(pages_);
  for (size_t sample = 0; sample < open.lengths.size(); ++sample) {
    const int64_t length = open.lengths[sample], tail = kept(length, samples);
    if (cached) {  // reads the states that the previous part left; the first part reads none
      arrays_.add_cached(samples.past, length, pages_, piece.state, 1 - piece.state);
      piece.state = 1 - piece.state;
    } else if (passage.starts_pruned) {
      arrays_.add(0, tail);
    } else {
      arrays_.add(samples.past, length);
    }
    if (passage.prunes_tokens) arrays_.keep_tail(static_cast<int64_t>(sample), tail, 0);
    arrays_.last_rows.push_back(static_cast<int32_t>(arrays_.tokens_left() - 1));
    if (!scores) continue;
    // The row before a token gives its log-probability.
    const int64_t end = samples.ends_samples() ? arrays_.tokens - 1 : arrays_.tokens;
    for (int64_t row = end - open.scored[sample]; row < end; ++row)
      arrays_.scored_rows.push_back(static_cast<int32_t>(row));
  }
  if (scores) arrays_.targets = open.targets;
}

// The parts in which the samples of a micro-batch go through the last layers; none where they go at once.
std::vector<MicroBatchContent> Scorer::late_parts(const MicroBatchContent& open) const {
  const MicroBatch& all = open.samples;
  const bool is_last = all.first_sample + all.samples == plan_.samples;
  if (!is_last || all.is_part() || plan_.late.samples == 0 || all.samples <= plan_.late.samples) return {};
  std::vector<MicroBatchContent> parts(2);
  const std::vector<int32_t>& lengths = open.lengths;
  const auto second = lengths.end() - plan_.late.samples;
  parts[0].lengths = {lengths.begin(), second};
  parts[1].lengths = {second, lengths.end()};
  int64_t sample = all.first_sample, token = all.first_token;
  for (MicroBatchContent& part : parts) {
    const std::vector<int32_t>& own = part.lengths;
    part.samples = {.first_sample = sample,
                    .samples = std::ssize(own),
                    .first_token = token,
                    .tokens = std::accumulate(own.begin(), own.end(), int64_t{0})};
    sample += part.samples.samples;
    token += part.samples.tokens;
  }
  return parts;
}

// Fills the buffer's index arrays for a micro-batch and enqueues their copy to the device, before its forward. The
// buffer must be free, so nothing reads the arrays of its previous micro-batch any more.
void Scorer::prepare(StageBuffer& buffer, const MicroBatchContent& open, Piece& piece) {
  if (kind_.hidden == Hidden::kMean) buffer.lengths = open.lengths;
  if (kind_.hidden == Hidden::kMean && open.samples.is_part())
    buffer.lengths = {static_cast<int32_t>(open.samples.whole)};
  size_t bytes = 0;
  const auto put = [&](const MicroBatchContent& some, const Passage& passage) {
    build(some, passage, piece);
    const std::span<std::byte> host(buffer.staging.data() + bytes, buffer.staging.bytes() - bytes);
    const BatchTensors arrays = fill_arrays(arrays_, passage.first_layer ? open.ids : std::span<const int32_t>(), host,
                                            buffer.arrays.data() + bytes);
    bytes += arrays.bytes;
    return Prepared{some.samples, passage, arrays};
  };
  const std::vector<MicroBatchContent> parts = late_parts(open);
  Passage passage = piece.passage, late = passage;
  if (!parts.empty()) {
    passage.last_layer = passage.prunes_tokens = late.first_layer = false;
    passage.layers.end = late.layers.first = plan_.late.layer;
  }
  buffer.micro_batch = put(open, passage);
  buffer.late.clear();
  for (const MicroBatchContent& part : parts) buffer.late.push_back(put(part, late));
  links_.backend.copy(links_.backend.compute(), buffer.arrays.data(), buffer.staging.data(), bytes);
}

// The batch of these arrays: the buffer's micro-batch or a part of it.
BatchRows Scorer::rows_of(const StageBuffer& buffer, const Prepared& part) const {
  const MicroBatch& whole = buffer.micro_batch.samples;
  BatchRows rows{.residual =
                     buffer.residual.rows(part.samples.first_token - whole.first_token, part.arrays.batch.tokens)};
  if (part.passage.prunes_tokens) rows.tail = buffer.tail.rows(0, part.arrays.tail.batch.tokens);
  if (kind_.of_last_positions() && part.passage.last_layer)
    rows.output = buffer.output.rows(part.samples.first_sample - whole.first_sample, part.arrays.last_rows.dim(0));
  return rows;
}

void Scorer::collect_times() {
  run_.collect_times();
  if (!results_) return;
  for (const Span& span : results_->pop_finished()) run_.trace(TraceKind::kOutput, span);
}

// The next micro-batch of the first stage's source; none if none follows. A sample that has begun is finished.
std::optional<MicroBatchContent> Scorer::take(int64_t micro_batch) {
  bool stops = false;
  const auto known = [&] {
    stops = !begun_.in_sample && (run_.first_is_asked_to_stop() || begun_.source->is_asked_to_stop());
    return stops || begun_.source->ready();
  };
  const bool is_front = links_.watchdog.rank() == 0;
  run_.wait_for_rank(known, Phase::kStep, {micro_batch}, is_front ? RankActivity::kNobody : 0);
  begun_.stopped = stops;
  return stops ? std::nullopt : begun_.source->next();
}

// Whether another micro-batch follows. The first stage decides, and sends what the others need of it to every other
// stage, or an empty message if none follows. Stages receive the message before they wait for hidden states, so no
// stage waits for hidden states that never arrive.
bool Scorer::goes_on(int64_t micro_batch) {
  ControlLink* control = links_.control;
  std::optional<MicroBatchContent> content;
  if (links_.first()) {
    content = take(micro_batch);
    std::vector<int32_t> ids;
    if (content) ids.swap(content->ids);
    if (control != nullptr) control->send_step(content ? to_words(*content) : std::vector<int32_t>());
    if (content) ids.swap(content->ids);
  } else {
    std::vector<int32_t> words;
    if (!control->receive_step(words))
      run_.wait([&] { return control->receive_step(words); }, Phase::kStep, {micro_batch}, 0);
    if (!words.empty()) content = from_words<MicroBatchContent>(words);
  }
  if (!content) return false;
  const MicroBatch& samples = content->samples;
  expect(
      samples.samples <= plan_.max_samples && samples.tokens <= plan_.max_tokens && samples.scored <= plan_.max_scored,
      "Scorer: a micro-batch is larger than the plan says");
  begun_.in_sample = !samples.ends_samples();
  begun_.open.push_back(std::move(*content));
  return true;
}

void Scorer::wait_for_free_buffer(StageBuffer& buffer) {
  if (!buffer.unit) return;  // nothing was in the buffer in this run
  run_.wait_for_free_buffer(static_cast<int>(&buffer - buffers_.data()), *buffer.unit,
                            [&] { return buffer.computed->done() && buffer.taken->done(); });
}

// The micro-batches of a run reach each piece in order. The last piece is the last to need a micro-batch's content.
void Scorer::fill(const Action& action) {
  StageBuffer& buffer = buffer_of(action);
  wait_for_free_buffer(buffer);
  const MicroBatchContent& open =
      begun_.open[static_cast<size_t>(action.micro_batch - (begun_.count - std::ssize(begun_.open)))];
  buffer.unit = unit_of(action);
  prepare(buffer, open, piece_of(action));
  if (action.kind == ActionKind::kReceive)
    run_.receive(action.buffer, rows_of(buffer, buffer.micro_batch).residual, unit_of(action));
  if (action.piece + 1 == std::ssize(pieces_)) begun_.open.pop_front();
}

void Scorer::compute(const Action& action, const Prepared& part) {
  links_.backend.compute().submit(
      [this, rows = rows_of(buffer_of(action), part), &part, &piece = piece_of(action)] {
        const Caches* caches = part.arrays.batch.states ? piece.caches.get() : nullptr;
        runner_.forward(piece.stage, part.arrays, rows, caches, part.passage.layers);
      },
      run_.tag(unit_of(action), false));
}

void Scorer::forward(const Action& action) {
  if (!piece_of(action).stage.first()) run_.wait_for_arrival(action.buffer, unit_of(action));
  StageBuffer& buffer = buffer_of(action);
  compute(action, buffer.micro_batch);
  for (const Prepared& part : buffer.late) {
    compute(action, part);
    if (&part != &buffer.late.back()) give(action, part);
  }
  links_.backend.compute().record(*buffer.computed);
}

void Scorer::give(const Action& action, const Prepared& part) {
  const StageBuffer& buffer = buffer_of(action);
  const MicroBatch& micro_batch = part.samples;
  const bool last = kind_.of_last_positions(), mean = kind_.hidden == Hidden::kMean;
  const bool has_rows = kind_.score ? micro_batch.scored > 0 : !last || micro_batch.ends_samples();
  if (!results_ || !has_rows) return;
  const Tensor rows = kind_.score ? part.arrays.scored_rows : Tensor();
  const int64_t first_row = kind_.score    ? micro_batch.first_scored
                            : last || mean ? micro_batch.first_sample
                                           : micro_batch.first_token;
  const auto until = [&](const std::function<bool()>& done, Phase phase) { run_.wait(done, phase, unit_of(action)); };
  results_->push(rows_of(buffer, part).result(), rows, first_row, runner_.scratch(), until,
                 run_.tag(unit_of(action), true), part.arrays.targets, buffer.lengths, micro_batch.past);
}

void Scorer::give_result(const Action& action) {
  const StageBuffer& buffer = buffer_of(action);
  give(action, buffer.late.empty() ? buffer.micro_batch : buffer.late.back());
  links_.backend.compute().record(*buffer.taken);
}

void Scorer::carry_out(const Action& action) {
  StageBuffer& buffer = buffer_of(action);
  switch (action.kind) {
    case ActionKind::kTakeTokens:
    case ActionKind::kReceive:
      return fill(action);
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kSend:
      return run_.send(action.buffer, rows_of(buffer, buffer.micro_batch).result(), *buffer.computed, unit_of(action));
    case ActionKind::kGiveResult:
      return give_result(action);
  }
}

void Scorer::run(BatchSource* source, const std::vector<ResultConsumer*>& consumers,
                 const std::function<void(const MicroBatch&)>& on_micro_batch, const std::function<bool()>& stop,
                 const std::function<void()>& poll) {
  run_.begin(stop);
  begun_ = {.source = source, .poll = poll};
  for (StageBuffer& buffer : buffers_) buffer.unit.reset();
  if (results_) results_->start(consumers);
  Schedule schedule(links_.shape(), links_.index, plan_.micro_batches);
  while (const std::optional<Action> action = schedule.next()) {
    const bool fills = action->kind == ActionKind::kTakeTokens || action->kind == ActionKind::kReceive;
    if (fills && !begun_.ended && action->piece == 0) {
      // Not before its buffer is free: another replica may be free earlier.
      if (links_.first()) wait_for_free_buffer(buffer_of(*action));
      begun_.ended = !goes_on(action->micro_batch);
      if (!begun_.ended) ++begun_.count;
    }
    if (action->micro_batch >= begun_.count) continue;  // none followed
    run_.enter(Phase::kCompute, unit_of(*action));
    carry_out(*action);
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
  begun_.poll = nullptr;
}

}  // namespace lfm2
