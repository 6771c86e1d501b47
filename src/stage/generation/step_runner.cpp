// The arrays of a step (ids, positions, pages, rules) reach the device in one copy, on a GPU while the step before is
// computed. A pure decode step of a frequent shape is replayed from a recording.
#include "stage/generation/step_runner.h"

#include <algorithm>
#include <cstring>

namespace lfm2 {

namespace {

// Attention over caches is launched for the longest sequence. That length is rounded up to a multiple of this, so that
// one recording serves many steps.
constexpr int64_t kLengthStep = 1024;
constexpr size_t kMaxRecordings = 256;
// A shape is recorded at this occurrence. Recording takes as long as several steps, and while sequences end one by one
// most shapes never occur again.
constexpr int64_t kRecordedTime = 4;

}  // namespace

StepResults::StepResults(std::byte* memory, const ResultShape& shape) {
  ArrayLayout layout(memory);
  const auto take = [&](Tokens& tokens, int64_t count) {
    tokens.ids = layout.allocate_ints({count});
    tokens.log_probs = layout.allocate(DType::kF32, {count});
    if (shape.top_k == 0) return;
    tokens.top_ids = layout.allocate_ints({count, shape.top_k});
    tokens.top_log_probs = layout.allocate(DType::kF32, {count, shape.top_k});
  };
  take(drawn, shape.draws);
  take(scored, shape.scored);
  bytes = layout.bytes();
}

ResultShape StepRunner::result_shape(const StepArrays& arrays) const {
  return {.draws = std::ssize(arrays.last_rows),
          .scored = std::ssize(arrays.scored_rows),
          .hidden = std::ssize(arrays.hidden_rows),
          .top_k = arrays.top || !plan_.live ? plan_.top_k : 0};
}

StepRunner::StepRunner(const StageLinks& links, const GenerationPlan& plan, DType compute)
    : links_(links),
      plan_(plan),
      caches_(links.backend, links.stage().config(), links.stage().layers(), compute, plan.limits.caches),
      runner_(links, compute,
              {.tokens = plan.max_tokens(),
               .tail_rows = plan.tail_rows(links.stage().config(), links.stage().layers()),
               .taps = plan.taps_after(links.stage().layers()),
               .array_bytes = plan.array_bytes()},
              head_rows()) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage();
  const int64_t max_rows = plan.limits.max_rows();
  if (!backend.memory_is_host_memory()) uploads_ = backend.create_stream();
  const ResultShape largest{max_rows, plan.max_scored(), plan.max_hidden(), plan.top_k};
  const size_t result_bytes = StepResults(nullptr, largest).bytes;
  for (StepBuffer& buffer : buffers_) {
    runner_.allocate(buffer);
    buffer.uploaded = backend.create_event();
    if (!stage.last()) continue;
    buffer.results = backend.allocate_host(result_bytes);
    if (largest.hidden > 0)
      buffer.hidden = backend.allocate_host(Tensor(nullptr, compute, {largest.hidden, stage.config().hidden}).bytes());
  }
  if (!stage.last()) return;
  if (plan.dspark != nullptr)
    drafts_ = std::make_unique<DraftMaker>(backend, *plan.dspark, plan.draft_sizes(), compute);
  results_ = backend.allocate(result_bytes);
  if (plan.constrained)
    for (StepBuffer& buffer : buffers_) {
      const auto bytes = static_cast<size_t>(max_rows * mask_words(stage.config().vocab)) * sizeof(uint32_t);
      buffer.host_masks = backend.allocate_host(bytes);
      buffer.masks = backend.allocate(bytes);
    }
  logits_.model = runner_.memory().allocate(DType::kF32, {head_rows(), stage.config().vocab});
  allocate_adjustments(std::min(max_rows, kHeadRows));
}

// Last stage.
void StepRunner::allocate_adjustments(int64_t rows) {
  const int64_t slots = plan_.limits.caches.slots, vocab = links_.stage().config().vocab;
  if (plan_.adjusts()) logits_.adjusted = runner_.memory().allocate(DType::kF32, {rows, vocab});
  if (plan_.counts) adjustments_.counts = runner_.memory().allocate(DType::kI32, {slots, vocab});
  if (const size_t bytes = plan_.prefix_bytes(); bytes > 0) {
    prefixes_ = links_.backend.allocate(bytes);
    for (StepBuffer& buffer : buffers_) buffer.prefixes = links_.backend.allocate_host(bytes);
  }
  if (plan_.edits == 0) return;
  adjustments_.edits = runner_.memory().allocate(DType::kI32, {slots, plan_.edits, kEditWords});
  for (StepBuffer& buffer : buffers_)
    buffer.edits = links_.backend.allocate_host(static_cast<size_t>(plan_.limits.max_sequences) *
                                                adjustments_.edits.at(0).bytes());
}

// Last stage: copies the edits of new sequences to their rows.
void StepRunner::upload_edits(const StepArrays& arrays, const StepBuffer& buffer) {
  std::byte* staging = buffer.edits.data();
  for (const auto& [slot, edits] : arrays.edits) {
    const Tensor row = adjustments_.edits.at(slot);
    const size_t bytes = edits.size() * sizeof(LogitEdit);
    expect(bytes <= row.bytes() && staging + bytes <= buffer.edits.data() + buffer.edits.bytes(),
           "StepRunner: more edits than the plan has room for");
    std::memcpy(staging, edits.data(), bytes);
    links_.backend.copy(links_.backend.compute(), row.data, staging, bytes);
    staging += bytes;
  }
}

// Work that is submitted after this sees the copy.
void StepRunner::copy_to_device(const StepBuffer& buffer, std::byte* device, const std::byte* host, size_t bytes) {
  Stream& compute = links_.backend.compute();
  links_.backend.copy(uploads_ ? *uploads_ : compute, device, host, bytes);
  if (!uploads_) return;
  uploads_->record(*buffer.uploaded);
  compute.wait(*buffer.uploaded);
}

void StepRunner::upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer_index) {
  StepBuffer& buffer = buffers_[static_cast<size_t>(buffer_index)];
  buffer.uploaded_arrays = fill_arrays(arrays, links_.first() ? ids : arrays.counted,
                                       {buffer.staging.data(), buffer.staging.bytes()}, buffer.arrays.data());
  copy_to_device(buffer, buffer.arrays.data(), buffer.staging.data(), buffer.uploaded_arrays.bytes);
  if (!links_.last()) return;
  upload_edits(arrays, buffer);
  count_prefixes(arrays, buffer);
}

// Last stage: counts the tokens of cached prefixes before a sequence's first computed tokens.
void StepRunner::count_prefixes(const StepArrays& arrays, const StepBuffer& buffer) {
  const StepArrays::Prefixes& prefixes = arrays.prefixes;
  if (prefixes.ids.empty()) return;
  const BatchTensors layout =
      fill_arrays(prefixes, prefixes.ids, {buffer.prefixes.data(), buffer.prefixes.bytes()}, prefixes_.data());
  Stream& compute = links_.backend.compute();
  links_.backend.copy(compute, prefixes_.data(), buffer.prefixes.data(), layout.bytes);
  compute.submit([this, layout] {
    links_.backend.ops().count_tokens(layout.ids, layout.keepers, layout.batch, adjustments_.counts);
  });
}

BatchRows StepRunner::rows(const StepBuffer& buffer, int64_t tokens, int64_t tails) const {
  const ModelConfig& config = links_.stage().config();
  const LayerRange layers = links_.stage().layers();
  BatchRows rows{.residual = buffer.residual.rows(0, tails > 0 && starts_pruned(config, layers) ? tails : tokens)};
  if (tails > 0 && prunes_tokens(config, layers)) rows.tail = buffer.tail.rows(0, tails);
  const int64_t taps = plan_.taps_after(layers);
  if (taps > 0)
    rows.taps = {.layers = std::span(plan_.taps).first(static_cast<size_t>(taps)),
                 .rows = buffer.residual.rows(tokens, taps * tokens).reshape({taps, tokens, config.hidden})};
  return rows;
}

Tensor StepRunner::received(int buffer, const StepArrays& arrays) const {
  const int64_t taps = plan_.taps_before(links_.stage().layers());
  return taps > 0 ? at(buffer).residual.rows(0, (1 + taps) * arrays.tokens) : rows(buffer, arrays).residual;
}

Tensor StepRunner::sent(int buffer, const StepArrays& arrays) const {
  const int64_t taps = plan_.taps_after(links_.stage().layers());
  return taps > 0 ? at(buffer).residual.rows(0, (1 + taps) * arrays.tokens) : rows(buffer, arrays).result();
}

BatchRows StepRunner::rows(int buffer, const StepArrays& arrays) const {
  return rows(at(buffer), arrays.tokens, arrays.tail_tokens());
}

// The stage's work between receiving a step's hidden states and sending them: embedding, layers, results.
void StepRunner::compute(const Layout& layout, const StepBuffer& buffer) {
  const BatchRows own = rows(buffer, layout.batch.tokens, layout.tail.batch.tokens);
  if (layout.part != Part::kResults) {
    if (plan_.limits.runs_ahead()) links_.backend.ops().insert_drawn(layout.ids, drawn_ids());
    BatchTensors arrays = layout;
    if (own.residual.dim(0) < layout.batch.tokens) arrays.batch = layout.tail.batch;  // only tails come in
    runner_.forward(links_.stage(), arrays, own, &caches_);
    if (drafts_) drafts_->append(own.taps.rows, layout.batch);
  }
  if (links_.last() && layout.part != Part::kLayers) give_results(layout, own.result(), buffer);
}

// Last stage: the tokens drawn by the newest step.
Tensor StepRunner::drawn_ids() const { return Tensor(results_.data(), DType::kI32, {plan_.limits.max_rows()}); }

void StepRunner::give_results(const Layout& layout, const Tensor& residual, const StepBuffer& buffer) {
  const ResultShape& shape = layout.results;
  const StepResults results(results_.data(), shape);
  Backend& backend = links_.backend;
  if (layout.counts) backend.ops().count_tokens(layout.ids, layout.keepers, layout.batch, adjustments_.counts);
  draw(layout, residual, results);
  score(layout, residual, results);
  if (shape.draws + shape.scored > 0)
    backend.copy_to_host(buffer.results.data(),
                         Tensor(results_.data(), DType::kI32, {static_cast<int64_t>(results.bytes / sizeof(int32_t))}));
  std::byte* host = buffer.hidden.data();
  for (int64_t first = 0; first < shape.hidden; first += kHeadRows) {
    const Tensor rows = layout.hidden_rows.rows(first, std::min(kHeadRows, shape.hidden - first));
    const Tensor states = links_.stage().hidden_states(backend.ops(), residual, rows, runner_.scratch());
    backend.copy_to_host(host, states);
    host += states.bytes();
  }
}

// Computes the log-probabilities of prompt tokens. The logits of all positions of a step are never in memory at a time.
void StepRunner::score(const Layout& layout, const Tensor& residual, const StepResults& results) {
  Ops& ops = links_.backend.ops();
  for (int64_t first = 0; first < layout.results.scored; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, layout.results.scored - first);
    const Tensor logits = logits_.model.rows(0, count);
    const StepResults::Tokens& own = results.scored;
    links_.stage().head(ops, residual, layout.scored_rows.rows(first, count), runner_.scratch(), logits);
    ops.target_log_probs(logits, layout.targets.rows(first, count), own.log_probs.rows(first, count),
                         own.ids.rows(first, count));
    if (own.top_ids) ops.top_log_probs(logits, own.top_ids.rows(first, count), own.top_log_probs.rows(first, count));
  }
}

void StepRunner::draw(const Layout& layout, const Tensor& residual, const StepResults& results) {
  Ops& ops = links_.backend.ops();
  const StepResults::Tokens& own = results.drawn;
  for (int64_t first = 0; first < layout.results.draws; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, layout.results.draws - first);
    const Tensor logits = logits_.model.rows(0, count);
    const Tensor own_draws = layout.draws.rows(first, count), rules = layout.rules.rows(first, count);
    if (layout.decodes())
      links_.stage().head(ops, residual.rows(first, count), {}, runner_.scratch(), logits);
    else
      links_.stage().head(ops, residual, layout.last_rows.rows(first, count), runner_.scratch(), logits);
    Tensor adjusted;
    if (layout.adjusts) {
      adjusted = logits_.adjusted.rows(0, count);
      const Tensor masks = layout.masks ? layout.masks.rows(first, count) : Tensor();
      Adjustments adjustments = adjustments_;
      if (layout.counts && layout.drafted) {
        adjustments.ids = layout.ids;
        adjustments.drafted = layout.drafted.rows(first, count);
      }
      ops.adjust_logits(logits, own_draws, rules, layout.draw_slots.rows(first, count), adjustments, masks, adjusted);
    }
    ops.sample(logits, adjusted, own_draws, rules, own.ids.rows(first, count), own.log_probs.rows(first, count));
    if (own.top_ids) ops.top_log_probs(logits, own.top_ids.rows(first, count), own.top_log_probs.rows(first, count));
  }
}

// Null until the shape has occurred often enough.
Recording* StepRunner::recording_of(const Shape& shape, const Layout& layout, const StepBuffer& buffer,
                                    const std::function<void()>& wait_until_computed) {
  if (recordings_.size() >= kMaxRecordings && !recordings_.contains(shape)) {
    std::erase_if(recordings_, [](const auto& one) { return one.second.work == nullptr; });
    if (recordings_.size() >= kMaxRecordings) {
      wait_until_computed();
      recordings_.clear();
    }
  }
  Recorded& recorded = recordings_[shape];
  if (++recorded.times == kRecordedTime) recorded.work = links_.backend.record([&] { compute(layout, buffer); });
  return recorded.work.get();
}

std::span<uint32_t> StepRunner::masks(int buffer) const {
  const Buffer& masks = at(buffer).host_masks;
  return {reinterpret_cast<uint32_t*>(masks.data()), masks.bytes() / sizeof(uint32_t)};
}

void StepRunner::enqueue(const StepArrays& arrays, int buffer, int64_t step,
                         const std::function<void()>& wait_until_computed) {
  enqueue(links_.last() && arrays.constrained ? Part::kLayers : Part::kAll, arrays, buffer, step, wait_until_computed);
}

void StepRunner::enqueue_results(const StepArrays& arrays, int buffer_index, int64_t step,
                                 const std::function<void()>& wait_until_computed) {
  const StepBuffer& buffer = at(buffer_index);
  const size_t bytes =
      arrays.draw_slots.size() * static_cast<size_t>(mask_words(links_.stage().config().vocab)) * sizeof(uint32_t);
  copy_to_device(buffer, buffer.masks.data(), buffer.host_masks.data(), bytes);
  enqueue(Part::kResults, arrays, buffer_index, step, wait_until_computed);
}

void StepRunner::enqueue(Part part, const StepArrays& arrays, int buffer_index, int64_t step,
                         const std::function<void()>& wait_until_computed) {
  const StepBuffer& buffer = at(buffer_index);
  Layout layout{buffer.uploaded_arrays, part, result_shape(arrays), {}, arrays.adjusts, !arrays.counted.empty()};
  if (part == Part::kResults)
    layout.masks =
        Tensor(buffer.masks.data(), DType::kI32, {layout.results.draws, mask_words(links_.stage().config().vocab)});
  const int64_t max_length = (arrays.max_length + kLengthStep - 1) / kLengthStep * kLengthStep;
  layout.batch.max_length = layout.tail.batch.max_length = max_length;
  Recording* recording = nullptr;
  if (layout.decodes() && layout.results.hidden == 0)
    recording = recording_of(
        {buffer_index, layout.batch.tokens, max_length, layout.results.top_k, layout.adjusts, layout.counts, part},
        layout, buffer, wait_until_computed);
  links_.backend.compute().submit(
      [this, layout, &buffer, recording] {
        if (recording != nullptr)
          recording->replay();
        else
          compute(layout, buffer);
      },
      2 * step + (part == Part::kResults ? 1 : 0));
  if (part != Part::kLayers) links_.backend.compute().record(*buffer.computed);
}

StepResults StepRunner::results(int buffer, const ResultShape& shape) const {
  StepResults results(at(buffer).results.data(), shape);
  const Tensor& residual = at(buffer).residual;
  results.hidden = Tensor(at(buffer).hidden.data(), residual.dtype, {shape.hidden, residual.dim(1)});
  return results;
}

}  // namespace lfm2
