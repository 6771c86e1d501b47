// The arrays of a step (ids, positions, pages, rules) reach the device in one copy, on a GPU while the step before is
// computed. A step of nothing but decoding is replayed from a recording where its shape comes often.
#include "stage/generation/step_compute.h"

#include <algorithm>
#include <cstring>

#include "stage/model/memory_plan.h"
#include "stage/pipeline/array_layout.h"

namespace lfm2 {

namespace {

// Attention over caches is launched for the longest sequence. That length is rounded up to a multiple of this, so that
// one recording serves many steps.
constexpr int64_t kLengthStep = 1024;
constexpr size_t kMaxRecordings = 256;
// A shape is recorded when it comes for this time. Recording takes as long as several steps, and while sequences end
// one after the other most shapes never come again.
constexpr int64_t kRecordedTime = 4;

// Tokens that the tails of a step have at most.
int64_t tail_rows(const GenerationPlan& plan, const ModelConfig& config, LayerRange layers) {
  if (!cuts_tails(config, layers)) return 0;
  return std::min(plan.max_tokens(), plan.limits.max_sequences * plan.tail_length(config));
}

// StepArrays::prefixes on the device or in its staging memory.
struct PrefixLayout {
  Tensor ids, keepers;
  Batch batch;
  size_t bytes = 0;
  PrefixLayout(std::byte* memory, int64_t tokens, int64_t sequences) {
    ArrayLayout layout(memory);
    ids = layout.take_ints({tokens});
    batch.positions = layout.take_ints({tokens});
    batch.offsets = layout.take_ints({sequences + 1});
    keepers = layout.take_ints({sequences, 2});
    batch.tokens = tokens;
    batch.sequences = sequences;
    bytes = layout.bytes();
  }
};

void fill(const Tensor& target, const auto& values) {
  if (!values.empty()) std::memcpy(target.data, values.data(), values.size() * sizeof values[0]);
}

}  // namespace

void StepCompute::Layout::for_each_array(const StepArrays& arrays, const std::vector<int32_t>& own_ids,
                                         const Sizes& sizes, const auto& each) {
  each(ids, own_ids, {sizes.tokens});
  each(batch.positions, arrays.positions, {sizes.tokens});
  each(batch.sequence_of, arrays.sequence_of, {sizes.tokens});
  each(batch.offsets, arrays.offsets, {sizes.sequences + 1});
  each(batch.states, arrays.states, {sizes.sequences, 2});
  each(keepers, arrays.keepers, {sizes.sequences, 2});
  each(draws, arrays.draws, {sizes.draws, 2});
  each(draw_rows, arrays.draw_rows, {sizes.draws});
  each(draw_slots, arrays.draw_slots, {sizes.draws});
  each(rules, arrays.draw_rules, {sizes.draws, kRuleWords});
  each(scored_rows, arrays.scored_rows, {sizes.scored});
  each(targets, arrays.targets, {sizes.scored});
  each(hidden_rows, arrays.hidden_rows, {sizes.hidden});
  each(batch.page_table, arrays.page_table, {sizes.sequences, sizes.table_width});
  if (sizes.tails == 0) return;
  each(tail.rows, arrays.tails.rows, {sizes.tails});
  each(tail.batch.positions, arrays.tails.positions, {sizes.tails});
  each(tail.batch.sequence_of, arrays.tails.sequence_of, {sizes.tails});
  each(tail.batch.offsets, arrays.tails.offsets, {sizes.sequences + 1});
}

void StepCompute::Layout::take_from(std::byte* memory, const StepArrays& arrays, const Sizes& sizes) {
  ArrayLayout layout(memory);
  for_each_array(arrays, {}, sizes, [&](Tensor& tensor, const auto&, std::initializer_list<int64_t> dims) {
    tensor = layout.take_ints(dims);
  });
  bytes = layout.bytes();
}

StepCompute::Layout::Sizes StepCompute::Layout::sizes_of(const StepArrays& arrays, int64_t table_width,
                                                         const ResultShape& shape) {
  return {.tokens = arrays.tokens,
          .sequences = arrays.sequences(),
          .draws = shape.draws,
          .scored = shape.scored,
          .hidden = shape.hidden,
          .tails = arrays.tails.tokens(),
          .table_width = table_width};
}

size_t StepCompute::Layout::max_bytes(const GenerationPlan& plan) {
  const int64_t sequences = plan.limits.max_sequences;
  Layout largest;
  largest.take_from(nullptr, {},
                    {.tokens = plan.max_tokens(),
                     .sequences = sequences,
                     .draws = sequences,
                     .scored = plan.max_scored(),
                     .hidden = plan.max_hidden(),
                     .tails = plan.max_tokens(),
                     .table_width = plan.table_width()});
  return largest.bytes;
}

StepCompute::Layout::Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width, const ResultShape& shape)
    : results(shape), adjusts(arrays.adjusts), counts(!arrays.counted.empty()) {
  const Sizes sizes = sizes_of(arrays, table_width, shape);
  take_from(memory, arrays, sizes);
  tail.batch.states = batch.states;
  tail.batch.page_table = batch.page_table;
  batch.tokens = sizes.tokens;
  batch.sequences = sizes.sequences;
  batch.singles = arrays.singles;
  batch.max_length = (arrays.max_length + kLengthStep - 1) / kLengthStep * kLengthStep;
  tail.batch.tokens = sizes.tails;
  tail.batch.sequences = sizes.sequences;
  tail.batch.singles = arrays.singles;
  tail.batch.max_length = batch.max_length;
}

StepResults::StepResults(std::byte* memory, const ResultShape& shape) {
  ArrayLayout layout(memory);
  const auto take = [&](Tokens& tokens, int64_t count) {
    tokens.ids = layout.take_ints({count});
    tokens.log_probs = layout.take(DType::kF32, {count});
    if (shape.top_k == 0) return;
    tokens.top_ids = layout.take_ints({count, shape.top_k});
    tokens.top_log_probs = layout.take(DType::kF32, {count, shape.top_k});
  };
  take(drawn, shape.draws);
  take(scored, shape.scored);
  bytes = layout.bytes();
}

ResultShape StepCompute::result_shape(const StepArrays& arrays) const {
  return {.draws = std::ssize(arrays.draw_rows),
          .scored = std::ssize(arrays.scored_rows),
          .hidden = std::ssize(arrays.hidden_rows),
          .top_k = arrays.top || !plan_.live ? plan_.top_k : 0};
}

StepCompute::StepCompute(const StageLinks& links, const GenerationPlan& plan, DType compute)
    : links_(links),
      plan_(plan),
      caches_(links.backend, links.stage().config(), links.stage().layers(), compute, plan.limits.caches),
      memory_(links.backend) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage();
  const int64_t max_tokens = plan.max_tokens(), max_sequences = plan.limits.max_sequences;
  const size_t array_bytes = Layout::max_bytes(plan);
  if (!backend.memory_is_host_memory()) uploads_ = backend.create_stream();
  const ResultShape largest{max_sequences, plan.max_scored(), plan.max_hidden(), plan.top_k};
  const size_t result_bytes = StepResults(nullptr, largest).bytes;
  for (StepBuffer& buffer : buffers_) {
    buffer.residual = memory_.allocate(compute, {max_tokens, stage.config().hidden});
    if (const int64_t rows = tail_rows(plan, stage.config(), stage.layers()); rows > 0)
      buffer.tail = memory_.allocate(compute, {rows, stage.config().hidden});
    buffer.staging = backend.allocate_host(array_bytes);
    buffer.arrays = backend.allocate(array_bytes);
    buffer.uploaded = backend.create_event();
    buffer.computed = backend.create_event();
    if (!stage.last()) continue;
    buffer.results = backend.allocate_host(result_bytes);
    if (largest.hidden > 0)
      buffer.hidden = backend.allocate_host(Tensor(nullptr, compute, {largest.hidden, stage.config().hidden}).bytes());
  }
  const int64_t rows = stage.last() ? std::min(plan.result_rows(), kHeadRows) : 0;
  if (stage.last()) {
    results_ = backend.allocate(result_bytes);
    logits_ = memory_.allocate(DType::kF32, {rows, stage.config().vocab});
    allocate_adjustments(std::min(max_sequences, kHeadRows));
  }
  const StageMemory cost = stage_memory(stage.config(), stage.layers(), compute, compute, max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + kBuffers * array_bytes + (stage.last() ? result_bytes : 0);
}

uint64_t GenerationPlan::tail_bytes(const ModelConfig& config, LayerRange layers, DType compute) const {
  return kBuffers * Tensor(nullptr, compute, {tail_rows(*this, config, layers), config.hidden}).bytes();
}

uint64_t GenerationPlan::prefix_bytes() const {
  if (!counts || !limits.caches.keeps_prefixes) return 0;
  return PrefixLayout(nullptr, std::max(longest, limits.counted_prefixes), limits.max_sequences).bytes;
}

uint64_t GenerationPlan::adjustment_bytes(int64_t vocab) const {
  const auto rows = static_cast<uint64_t>(std::min(limits.max_sequences, kHeadRows));
  const auto slots = static_cast<uint64_t>(limits.caches.slots), columns = static_cast<uint64_t>(vocab);
  return (adjusts() ? rows * columns * sizeof(float) : 0) + (counts ? slots * columns * sizeof(int32_t) : 0) +
         slots * static_cast<uint64_t>(edits) * sizeof(LogitEdit) + prefix_bytes();
}

// Last stage.
void StepCompute::allocate_adjustments(int64_t rows) {
  const int64_t slots = plan_.limits.caches.slots, vocab = links_.stage().config().vocab;
  if (plan_.adjusts()) adjusted_ = memory_.allocate(DType::kF32, {rows, vocab});
  if (plan_.counts) adjustments_.counts = memory_.allocate(DType::kI32, {slots, vocab});
  if (const size_t bytes = plan_.prefix_bytes(); bytes > 0) {
    prefixes_ = links_.backend.allocate(bytes);
    for (StepBuffer& buffer : buffers_) buffer.prefixes = links_.backend.allocate_host(bytes);
    working_bytes_ += bytes;
  }
  if (plan_.edits == 0) return;
  adjustments_.edits = memory_.allocate(DType::kI32, {slots, plan_.edits, kEditWords});
  for (StepBuffer& buffer : buffers_)
    buffer.edits = links_.backend.allocate_host(static_cast<size_t>(plan_.limits.max_sequences) *
                                                adjustments_.edits.at(0).bytes());
}

// Last stage: the edits of sequences that begin are copied to their rows.
void StepCompute::upload_edits(const StepArrays& arrays, const StepBuffer& buffer) {
  std::byte* staging = buffer.edits.data();
  for (const auto& [slot, edits] : arrays.edits) {
    const Tensor row = adjustments_.edits.at(slot);
    const size_t bytes = edits.size() * sizeof(LogitEdit);
    expect(bytes <= row.bytes() && staging + bytes <= buffer.edits.data() + buffer.edits.bytes(),
           "StepCompute: more edits than the plan has room for");
    std::memcpy(staging, edits.data(), bytes);
    links_.backend.copy(links_.backend.compute(), row.data, staging, bytes);
    staging += bytes;
  }
}

void StepCompute::upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer_index) {
  const StepBuffer& buffer = at(buffer_index);
  const ResultShape results = result_shape(arrays);
  Layout host(buffer.staging.data(), arrays, plan_.table_width(), results);
  host.for_each_array(
      arrays, links_.first() ? ids : arrays.counted, Layout::sizes_of(arrays, plan_.table_width(), results),
      [](const Tensor& tensor, const auto& values, std::initializer_list<int64_t>) { fill(tensor, values); });
  Stream& compute = links_.backend.compute();
  links_.backend.copy(uploads_ ? *uploads_ : compute, buffer.arrays.data(), buffer.staging.data(), host.bytes);
  if (uploads_) {
    uploads_->record(*buffer.uploaded);
    compute.wait(*buffer.uploaded);
  }
  if (!links_.last()) return;
  upload_edits(arrays, buffer);
  count_prefixes(arrays, buffer);
}

// Last stage: the tokens that sequences have from the prefix cache are counted before the first ones that they feed.
void StepCompute::count_prefixes(const StepArrays& arrays, const StepBuffer& buffer) {
  const auto& [ids, positions, offsets, keepers] = arrays.prefixes;
  if (ids.empty()) return;
  const int64_t tokens = std::ssize(ids), sequences = std::ssize(offsets) - 1;
  const PrefixLayout host(buffer.prefixes.data(), tokens, sequences);
  expect(host.bytes <= buffer.prefixes.bytes(), "StepCompute: longer prefixes than the plan has room for");
  fill(host.ids, ids);
  fill(host.batch.positions, positions);
  fill(host.batch.offsets, offsets);
  fill(host.keepers, keepers);
  Stream& compute = links_.backend.compute();
  links_.backend.copy(compute, prefixes_.data(), buffer.prefixes.data(), host.bytes);
  compute.submit([this, tokens, sequences] {
    const PrefixLayout layout(prefixes_.data(), tokens, sequences);
    links_.backend.ops().count_tokens(layout.ids, layout.keepers, layout.batch, adjustments_.counts);
  });
}

Tensor StepCompute::input(int buffer, const StepArrays& arrays) const {
  const Stage& stage = links_.stage();
  return at(buffer).residual.rows(0, gets_tails(stage.config(), stage.layers()) ? arrays.tokens_left() : arrays.tokens);
}
Tensor StepCompute::output(int buffer, const StepArrays& arrays) const {
  const Stage& stage = links_.stage();
  if (!arrays.cut() || !cuts_tails(stage.config(), stage.layers())) return input(buffer, arrays);
  return at(buffer).tail.rows(0, arrays.tails.tokens());
}

// The stage's work between receiving a step's hidden states and sending them: embedding, layers, results.
void StepCompute::compute(const Layout& layout, const StepBuffer& buffer) {
  if (plan_.limits.runs_ahead()) links_.backend.ops().insert_drawn(layout.ids, drawn_ids());
  if (links_.first())
    links_.stage().embed(links_.backend.ops(), layout.ids, buffer.residual.rows(0, layout.batch.tokens));
  const Tensor residual = forward(layout, buffer);
  if (links_.last()) give_results(layout, residual, buffer);
}

// Returns where the stage's result is.
Tensor StepCompute::forward(const Layout& layout, const StepBuffer& buffer) {
  const Stage& stage = links_.stage();
  const bool cut = layout.tail.batch.tokens > 0, gets = cut && gets_tails(stage.config(), stage.layers());
  const Batch& batch = gets ? layout.tail.batch : layout.batch;
  const Tensor residual = buffer.residual.rows(0, batch.tokens);
  Tail tail = layout.tail;
  const bool cuts = cut && cuts_tails(stage.config(), stage.layers());
  if (cuts) tail.residual = buffer.tail.rows(0, tail.batch.tokens);
  stage.forward({.ops = links_.backend.ops(),
                 .scratch = scratch_,
                 .residual = residual,
                 .batch = batch,
                 .tail = cuts ? &tail : nullptr,
                 .caches = &caches_});
  return cuts ? tail.residual : residual;
}

// Last stage: where the tokens lie that the newest step has drawn.
Tensor StepCompute::drawn_ids() const { return Tensor(results_.data(), DType::kI32, {plan_.limits.max_sequences}); }

void StepCompute::give_results(const Layout& layout, const Tensor& residual, const StepBuffer& buffer) {
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
    const Tensor states = links_.stage().hidden_states(backend.ops(), residual, rows, scratch_);
    backend.copy_to_host(host, states);
    host += states.bytes();
  }
}

// The log-probabilities of tokens of prompts. Of all positions of a step, logits are never there at a time.
void StepCompute::score(const Layout& layout, const Tensor& residual, const StepResults& results) {
  Ops& ops = links_.backend.ops();
  for (int64_t first = 0; first < layout.results.scored; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, layout.results.scored - first);
    const Tensor logits = logits_.rows(0, count);
    const StepResults::Tokens& own = results.scored;
    links_.stage().head(ops, residual, layout.scored_rows.rows(first, count), scratch_, logits);
    ops.target_log_probs(logits, layout.targets.rows(first, count), own.log_probs.rows(first, count),
                         own.ids.rows(first, count));
    if (own.top_ids) ops.top_log_probs(logits, own.top_ids.rows(first, count), own.top_log_probs.rows(first, count));
  }
}

void StepCompute::draw(const Layout& layout, const Tensor& residual, const StepResults& results) {
  Ops& ops = links_.backend.ops();
  const StepResults::Tokens& own = results.drawn;
  for (int64_t first = 0; first < layout.results.draws; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, layout.results.draws - first);
    const Tensor logits = logits_.rows(0, count);
    const Tensor own_draws = layout.draws.rows(first, count), rules = layout.rules.rows(first, count);
    if (layout.decodes())
      links_.stage().head(ops, residual.rows(first, count), {}, scratch_, logits);
    else
      links_.stage().head(ops, residual, layout.draw_rows.rows(first, count), scratch_, logits);
    Tensor adjusted;
    if (layout.adjusts) {
      adjusted = adjusted_.rows(0, count);
      ops.adjust_logits(logits, own_draws, rules, layout.draw_slots.rows(first, count), adjustments_, adjusted);
    }
    ops.sample(logits, adjusted, own_draws, rules, own.ids.rows(first, count), own.log_probs.rows(first, count));
    if (own.top_ids) ops.top_log_probs(logits, own.top_ids.rows(first, count), own.top_log_probs.rows(first, count));
  }
}

// Null while the shape has not come often enough.
Recording* StepCompute::recording_of(const Shape& shape, const Layout& layout, const StepBuffer& buffer,
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

void StepCompute::enqueue(const StepArrays& arrays, int buffer_index, int64_t step,
                          const std::function<void()>& wait_until_computed) {
  const StepBuffer& buffer = at(buffer_index);
  const ResultShape results = result_shape(arrays);
  const Layout layout(buffer.arrays.data(), arrays, plan_.table_width(), results);
  Recording* recording = nullptr;
  if (layout.decodes() && results.hidden == 0)
    recording = recording_of(
        {buffer_index, layout.batch.tokens, layout.batch.max_length, results.top_k, layout.adjusts, layout.counts},
        layout, buffer, wait_until_computed);
  links_.backend.compute().submit(
      [this, layout, &buffer, recording] {
        if (recording != nullptr)
          recording->replay();
        else
          compute(layout, buffer);
      },
      2 * step);
  links_.backend.compute().record(*buffer.computed);
}

StepResults StepCompute::results(int buffer, const ResultShape& shape) const {
  StepResults results(at(buffer).results.data(), shape);
  const Tensor& residual = at(buffer).residual;
  results.hidden = Tensor(at(buffer).hidden.data(), residual.dtype, {shape.hidden, residual.dim(1)});
  return results;
}

}  // namespace lfm2
