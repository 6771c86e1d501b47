// The loop over a stage's actions. It starts work and waits only for slots and arrivals: transfers run under the
// computation.
#include "stage/scoring/scorer.h"

#include <algorithm>
#include <numeric>

#include "stage/model/memory_plan.h"

namespace lfm2 {

namespace {

constexpr int64_t kAlignedInts = 4;  // 16 bytes

int64_t aligned(int64_t ints) { return (ints + kAlignedInts - 1) / kAlignedInts * kAlignedInts; }

}  // namespace

Scorer::Scorer(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced)
    : links_(links),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      memory_(links.backend),
      run_(links, RunItem::kMicroBatch, traced, [this] {
        if (results_) results_->advance();
      }) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage;
  const int64_t cut = last_attention_layer(stage.config());
  tail_length_ = kind.positions == Positions::kLast ? tail_length(stage.config()) : 0;
  cuts_tails_ = tail_length_ > 0 && cut >= stage.layers().first && cut < stage.layers().end();
  gets_tails_ = tail_length_ > 0 && cut < stage.layers().first;
  const size_t array_bytes = most_array_bytes();
  for (Slot& slot : slots_) {
    slot.residual = memory_.allocate(compute, {plan.max_tokens, stage.config().hidden});
    if (cuts_tails_)
      slot.tail = memory_.allocate(compute,
                                   {std::min(plan.max_tokens, plan.max_samples * tail_length_), stage.config().hidden});
    slot.staging = backend.allocate_host(array_bytes);
    slot.arrays = backend.allocate(array_bytes);
    slot.computed = backend.create_event();
    slot.taken = backend.create_event();
  }
  const bool gives = stage.last() && kind.positions != Positions::kNone;
  const int64_t rows = !gives ? 0 : kind.positions == Positions::kAll ? plan.max_tokens : plan.max_samples;
  const StageCost cost = measure_stage(stage.config(), stage.layers(), compute, compute, plan.max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + cost.result_bytes + kSlots * array_bytes;
  if (gives) results_.emplace(backend, stage, kind, rows);
}

// At most: ids, positions, rows of tails and their positions for each token; two lists of offsets and the last rows for
// each sample.
size_t Scorer::most_array_bytes() const {
  return static_cast<size_t>(4 * aligned(plan_.max_tokens) + 3 * aligned(plan_.max_samples + 1)) * sizeof(int32_t);
}

Scorer::Item Scorer::lay_out(const Next& next, std::byte* memory) const {
  const MicroBatch& samples = next.samples;
  Item item;
  item.samples = samples;
  int64_t kept_tokens = 0;
  for (const int64_t length : next.lengths) {
    item.batch.max_length = std::max(item.batch.max_length, gets_tails_ ? kept(length) : length);
    item.tail.max_length = std::max(item.tail.max_length, kept(length));
    kept_tokens += kept(length);
  }
  const auto take = [&](int64_t ints) {
    const Tensor tensor(memory + item.bytes, DType::kI32, {ints});
    item.bytes += static_cast<size_t>(aligned(ints)) * sizeof(int32_t);
    return tensor;
  };
  const auto take_batch = [&](Batch& batch, int64_t tokens) {
    batch.positions = take(tokens);
    batch.offsets = take(samples.samples + 1);
    batch.tokens = tokens;
    batch.sequences = samples.samples;
  };
  if (links_.stage.first()) item.ids = take(samples.tokens);
  take_batch(item.batch, gets_tails_ ? kept_tokens : samples.tokens);
  if (cuts_tails_) {
    item.tail_rows = take(kept_tokens);
    take_batch(item.tail, kept_tokens);
  }
  item.last_rows = take(samples.samples);
  return item;
}

// Fills the slot's index arrays for a micro-batch and sends them to the device, in front of its forward. The slot must
// be free: nothing reads the arrays of the item before it any more.
void Scorer::prepare(Slot& slot, std::span<const int32_t> ids) {
  const Item host = lay_out(next_, slot.staging.data());
  slot.item = lay_out(next_, slot.arrays.data());
  std::copy(ids.begin(), ids.end(), host.ids.as<int32_t>());
  // A sample's first `length` positions, behind those of the others.
  const auto add = [](const Batch& batch, int64_t sample, int64_t& token, int64_t length) {
    for (int64_t position = 0; position < length; ++position)
      batch.positions.as<int32_t>()[token++] = static_cast<int32_t>(position);
    batch.offsets.as<int32_t>()[sample + 1] = static_cast<int32_t>(token);
  };
  int64_t token = 0, tail_token = 0, tail_row = 0;
  host.batch.offsets.as<int32_t>()[0] = 0;
  if (cuts_tails_) host.tail.offsets.as<int32_t>()[0] = 0;
  for (int64_t sample = 0; sample < next_.samples.samples; ++sample) {
    const int64_t length = next_.lengths[static_cast<size_t>(sample)];
    add(host.batch, sample, token, gets_tails_ ? kept(length) : length);
    if (cuts_tails_) {
      add(host.tail, sample, tail_token, kept(length));
      for (int64_t row = kept(length); row > 0; --row)
        host.tail_rows.as<int32_t>()[tail_row++] = static_cast<int32_t>(token - row);
    }
    host.last_rows.as<int32_t>()[sample] = static_cast<int32_t>((cuts_tails_ ? tail_token : token) - 1);
  }
  links_.backend.copy(links_.backend.compute(), slot.arrays.data(), slot.staging.data(), host.bytes);
}

void Scorer::collect_times() {
  run_.collect_times();
  if (!results_) return;
  for (const Span& span : results_->take_finished()) run_.trace(TraceKind::kOutput, span.tag / 2, span.start, span.end);
}

// The first stage decides whether another micro-batch comes, and tells every other one how long its samples are before
// that one waits for hidden states: nobody waits for what never comes. The message is ahead of the micro-batch by two
// stages' work; an empty one says that none comes.
bool Scorer::goes_on(int64_t item, const MicroBatches* micro_batches) {
  std::vector<int32_t> words;
  ControlLink* control = links_.control;
  if (links_.stage.first()) {
    if (!run_.first_is_asked_to_stop()) words = micro_batches->lengths_message(item);
    if (control != nullptr) control->send_step(words);
  } else if (!control->receive_step(words)) {
    run_.wait([&] { return control->receive_step(words); }, Phase::kStep, item, 0);
  }
  if (words.empty()) return false;
  std::vector<int32_t> lengths = lengths_of_message(words);
  const MicroBatch& before = next_.samples;
  const MicroBatch samples{.first_sample = before.first_sample + before.samples,
                           .samples = static_cast<int64_t>(lengths.size()),
                           .first_token = before.first_token + before.tokens,
                           .tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0})};
  next_ = {samples, std::move(lengths)};
  expect(samples.samples <= plan_.max_samples && samples.tokens <= plan_.max_tokens,
         "Scorer: a micro-batch is larger than the plan says");
  return true;
}

void Scorer::wait_for_free_slot(int slot_index, int64_t previous) {
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  run_.wait_for_free_slot(slot_index, previous, [&] { return slot.computed->done() && slot.taken->done(); });
}

void Scorer::forward(const Action& action) {
  if (!links_.stage.first()) run_.wait_for_arrival(action.slot, action.item);
  Slot& slot = slot_of(action);
  links_.backend.compute().submit(
      [this, &slot] {
        const Tensor residual = input_of(slot);
        const Item& item = slot.item;
        if (links_.stage.first()) links_.stage.embed(links_.backend.ops(), item.ids, residual);
        const Tail tail{item.tail_rows, cuts_tails_ ? output_of(slot) : Tensor(), item.tail};
        links_.stage.forward(links_.backend.ops(), residual, item.batch, scratch_, cuts_tails_ ? &tail : nullptr);
      },
      2 * action.item);
  links_.backend.compute().record(*slot.computed);
}

void Scorer::give_result(const Action& action) {
  const Slot& slot = slot_of(action);
  const MicroBatch& item = slot.item.samples;
  if (results_) {
    const bool all = kind_.positions == Positions::kAll;
    const auto until = [&](const std::function<bool()>& done, Phase phase) { run_.wait(done, phase, action.item); };
    results_->give(output_of(slot), all ? Tensor() : slot.item.last_rows,
                   all ? plan_.first_token + item.first_token : plan_.first_sample + item.first_sample, scratch_, until,
                   2 * action.item + 1);
  }
  links_.backend.compute().record(*slot.taken);
}

void Scorer::run(const MicroBatches* micro_batches, const std::vector<ResultConsumer*>& consumers,
                 const std::function<void(const MicroBatch&)>& on_item, const std::function<bool()>& stop) {
  run_.begin(stop);
  finished_ = true;
  next_ = {};
  if (results_) results_->start(consumers);
  int64_t begun = 0;  // items
  for (int64_t index = 0; index < kActionsOfItem * plan_.micro_batches; ++index) {
    const Action action = scheduled_action(links_.index, links_.stages, index);
    const bool begins = action.kind == ActionKind::kTakeTokens || action.kind == ActionKind::kReceive;
    if (begins && !goes_on(action.item, micro_batches)) {
      finished_ = false;
      break;
    }
    begun = action.item + 1;
    run_.enter(Phase::kCompute, action.item);
    Slot& slot = slot_of(action);
    switch (action.kind) {
      case ActionKind::kTakeTokens:
        wait_for_free_slot(action.slot, action.item - kSlots);
        prepare(slot, micro_batches->ids(action.item));
        break;
      case ActionKind::kReceive:
        wait_for_free_slot(action.slot, action.item - kSlots);
        prepare(slot, {});
        links_.channel->receive(action.slot, input_of(slot));
        break;
      case ActionKind::kForward:
        forward(action);
        break;
      case ActionKind::kSend:
        links_.channel->send(action.slot, output_of(slot), *slot.computed);
        on_item(slot.item.samples);
        break;
      case ActionKind::kGiveResult:
        give_result(action);
        on_item(slot.item.samples);
        break;
    }
    if (results_) results_->advance();
    run_.pass_on_stop();
    collect_times();
  }
  if (results_) results_->finish([&](const auto& done, Phase phase) { run_.wait(done, phase, begun - 1); });
  for (int64_t item = std::max<int64_t>(0, begun - kSlots); item < begun; ++item)
    wait_for_free_slot(static_cast<int>(item % kSlots), item);
  collect_times();
  run_.end();
}

}  // namespace lfm2
