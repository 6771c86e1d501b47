// The arrays of a step (ids, positions, pages, rules) reach the device in one copy. A step of nothing but decoding is
// replayed from a recording where its shape comes often.
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

// An upper bound of the bytes that the arrays of a step take: see StepCompute::Layout.
size_t max_array_bytes(int64_t tokens, int64_t sequences, int64_t table_width) {
  const auto bytes = ArrayLayout::bytes_for;
  return 3 * bytes(tokens) + bytes(sequences + 1) + 3 * bytes(2 * sequences) + 2 * bytes(sequences) +
         bytes(kRuleWords * sequences) + bytes(sequences * table_width);
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

StepCompute::Layout::Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width) {
  ArrayLayout layout(memory);
  const int64_t tokens = arrays.tokens, sequences = arrays.sequences();
  const auto drawing = static_cast<int64_t>(arrays.draw_rows.size());
  ids = layout.take_ints({tokens});
  batch.positions = layout.take_ints({tokens});
  batch.sequence_of = layout.take_ints({tokens});
  batch.offsets = layout.take_ints({sequences + 1});
  batch.states = layout.take_ints({sequences, 2});
  keepers = layout.take_ints({sequences, 2});
  draws = layout.take_ints({drawing, 2});
  draw_rows = layout.take_ints({drawing});
  draw_slots = layout.take_ints({drawing});
  rules = layout.take_ints({drawing, kRuleWords});
  batch.page_table = layout.take_ints({sequences, table_width});
  bytes = layout.bytes();
  batch.tokens = tokens;
  batch.sequences = sequences;
  batch.singles = arrays.singles;
  batch.max_length = (arrays.max_length + kLengthStep - 1) / kLengthStep * kLengthStep;
}

DrawnArrays::DrawnArrays(std::byte* memory, int64_t draws, int64_t top_k) {
  ArrayLayout layout(memory);
  ids = layout.take_ints({draws});
  log_probs = layout.take(DType::kF32, {draws});
  if (top_k > 0) {
    top_ids = layout.take_ints({draws, top_k});
    top_log_probs = layout.take(DType::kF32, {draws, top_k});
  }
  bytes = layout.bytes();
}

StepCompute::StepCompute(const StageLinks& links, const GenerationPlan& plan, DType compute)
    : links_(links),
      plan_(plan),
      caches_(links.backend, links.stage.config(), links.stage.layers(), compute, plan.limits.caches),
      memory_(links.backend) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage;
  const int64_t max_tokens = plan.max_tokens(), max_sequences = plan.limits.max_sequences;
  const size_t array_bytes = max_array_bytes(max_tokens, max_sequences, plan.table_width());
  arrays_ = backend.allocate(array_bytes);
  const size_t drawn_bytes = DrawnArrays(nullptr, max_sequences, plan.top_k).bytes;
  for (StepBuffer& buffer : buffers_) {
    buffer.residual = memory_.allocate(compute, {max_tokens, stage.config().hidden});
    buffer.staging = backend.allocate_host(array_bytes);
    buffer.computed = backend.create_event();
    if (stage.last()) buffer.results = backend.allocate_host(drawn_bytes);
  }
  const int64_t rows = stage.last() ? std::min(max_sequences, kHeadRows) : 0;
  if (stage.last()) {
    drawn_ = backend.allocate(drawn_bytes);
    logits_ = memory_.allocate(DType::kF32, {rows, stage.config().vocab});
    allocate_adjustments(rows);
  }
  const StageMemory cost = stage_memory(stage.config(), stage.layers(), compute, compute, max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + array_bytes + (stage.last() ? drawn_bytes : 0);
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
  const int64_t slots = plan_.limits.caches.slots, vocab = links_.stage.config().vocab;
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

void StepCompute::upload(const StepArrays& arrays, const std::vector<int32_t>& ids, int buffer) {
  std::byte* staging = buffers_[static_cast<size_t>(buffer)].staging.data();
  const Layout host(staging, arrays, plan_.table_width());
  fill(host.ids, links_.stage.first() ? ids : arrays.counted);
  fill(host.keepers, arrays.keepers);
  fill(host.draw_slots, arrays.draw_slots);
  fill(host.batch.positions, arrays.positions);
  fill(host.batch.sequence_of, arrays.sequence_of);
  fill(host.batch.offsets, arrays.offsets);
  fill(host.batch.states, arrays.states);
  fill(host.draws, arrays.draws);
  fill(host.draw_rows, arrays.draw_rows);
  fill(host.rules, arrays.draw_rules);
  fill(host.batch.page_table, arrays.page_table);
  links_.backend.copy(links_.backend.compute(), arrays_.data(), staging, host.bytes);
  if (!links_.stage.last()) return;
  upload_edits(arrays, at(buffer));
  count_prefixes(arrays, at(buffer));
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

// The stage's work between receiving a step's hidden states and sending them: embedding, layers, draws.
void StepCompute::compute(const Layout& layout, const StepBuffer& buffer) {
  const Tensor residual = buffer.residual.rows(0, layout.batch.tokens);
  if (links_.stage.first()) links_.stage.embed(links_.backend.ops(), layout.ids, residual);
  links_.stage.forward(links_.backend.ops(), residual, layout.batch, scratch_, nullptr, &caches_);
  if (links_.stage.last()) draw(layout, residual, buffer);
}

void StepCompute::draw(const Layout& layout, const Tensor& residual, const StepBuffer& buffer) {
  const int64_t draws = layout.draw_rows.dim(0);
  const DrawnArrays drawn(drawn_.data(), draws, plan_.top_k);
  Ops& ops = links_.backend.ops();
  if (plan_.counts) ops.count_tokens(layout.ids, layout.keepers, layout.batch, adjustments_.counts);
  for (int64_t first = 0; first < draws; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, draws - first);
    const Tensor logits = logits_.rows(0, count);
    const Tensor own_draws = layout.draws.rows(first, count), rules = layout.rules.rows(first, count);
    links_.stage.head(ops, residual, layout.draw_rows.rows(first, count), scratch_, logits);
    Tensor adjusted;
    if (plan_.adjusts()) {
      adjusted = adjusted_.rows(0, count);
      ops.adjust_logits(logits, own_draws, rules, layout.draw_slots.rows(first, count), adjustments_, adjusted);
    }
    ops.sample(logits, adjusted, own_draws, rules, drawn.ids.rows(first, count), drawn.log_probs.rows(first, count));
    if (plan_.top_k > 0)
      ops.top_log_probs(logits, drawn.top_ids.rows(first, count), drawn.top_log_probs.rows(first, count));
  }
  if (draws > 0)
    links_.backend.copy_to_host(buffer.results.data(), Tensor(drawn_.data(), DType::kI32,
                                                              {static_cast<int64_t>(drawn.bytes / sizeof(int32_t))}));
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
  const Layout layout(arrays_.data(), arrays, plan_.table_width());
  Recording* recording = nullptr;
  const bool decodes =
      arrays.singles == arrays.tokens && static_cast<int64_t>(arrays.draw_rows.size()) == arrays.tokens;
  if (decodes)
    recording =
        recording_of({buffer_index, layout.batch.tokens, layout.batch.max_length}, layout, buffer, wait_until_computed);
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

DrawnArrays StepCompute::drawn(int buffer, int64_t draws) const {
  return {buffers_[static_cast<size_t>(buffer)].results.data(), draws, plan_.top_k};
}

}  // namespace lfm2
