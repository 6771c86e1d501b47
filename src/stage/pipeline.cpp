// The loop over a stage's actions. It starts work and waits only for slots and arrivals: transfers run under the
// computation.
#include "stage/pipeline.h"

#include <algorithm>

#include "stage/memory_plan.h"

namespace lfm2 {

Pipeline::Pipeline(const StageLinks& links, const BatchPlan& plan, DType compute, ResultKind kind, bool traced)
    : links_(links),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      schedule_(make_schedule(links.index, links.stages, static_cast<int64_t>(plan.items.size()))),
      memory_(links.backend),
      run_(links, RunItem::kMicroBatch, traced, [this] {
        if (results_) results_->advance();
      }) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage;
  const int64_t cut = last_attention_layer(stage.config());
  tail_length_ = kind.positions == Positions::kLast ? tail_length(stage.config()) : 0;
  cuts_tails_ = tail_length_ > 0 && cut >= stage.layers().first && cut < stage.layers().end();
  for (Slot& slot : slots_) {
    slot.residual = memory_.allocate(compute, {plan.max_tokens, stage.config().hidden});
    if (cuts_tails_)
      slot.tail = memory_.allocate(compute,
                                   {std::min(plan.max_tokens, plan.max_samples * tail_length_), stage.config().hidden});
    slot.computed = backend.create_event();
    slot.taken = backend.create_event();
  }
  build_items();
  if (stage.first()) ids_ = memory_.allocate(DType::kI32, {plan.tokens()});
  const bool gives = stage.last() && kind.positions != Positions::kNone;
  const int64_t rows = !gives ? 0 : kind.positions == Positions::kAll ? plan.max_tokens : plan.max_samples;
  const StageCost cost = measure_stage(stage.config(), stage.layers(), compute, compute, plan.max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + cost.result_bytes;
  if (gives) results_.emplace(backend, stage, kind, rows);
}

Tensor Pipeline::upload_indices(const std::vector<int32_t>& values) {
  const Tensor tensor = memory_.allocate(DType::kI32, {static_cast<int64_t>(values.size())});
  links_.backend.upload(tensor, 0, DType::kI32, values.data(), tensor.numel());
  return tensor;
}

// The index arrays of the whole job, uploaded once: taking an item is then arithmetic on pointers.
void Pipeline::build_items() {
  struct Arrays {
    std::vector<int32_t> positions, offsets;
    // A sample's first `length` places behind the others of its item.
    void add(int64_t length) {
      for (int64_t position = 0; position < length; ++position) positions.push_back(static_cast<int32_t>(position));
      offsets.push_back(static_cast<int32_t>(offsets.back() + length));
    }
  };
  const bool behind_cut = tail_length_ > 0 && last_attention_layer(links_.stage.config()) < links_.stage.layers().first;
  const auto kept = [&](int64_t sample) { return std::min(plan_.length(sample), tail_length_); };
  Arrays whole, tails;
  std::vector<int32_t> tail_rows, last_rows;
  for (const MicroBatch& item : plan_.items) {
    whole.offsets.push_back(0);
    tails.offsets.push_back(0);
    for (int64_t sample = item.first_sample; sample < item.first_sample + item.samples; ++sample) {
      whole.add(behind_cut ? kept(sample) : plan_.length(sample));
      if (cuts_tails_) {
        tails.add(kept(sample));
        for (int64_t row = kept(sample); row > 0; --row)
          tail_rows.push_back(static_cast<int32_t>(whole.offsets.back() - row));
      }
      last_rows.push_back((cuts_tails_ ? tails : whole).offsets.back() - 1);
    }
  }
  last_rows_ = upload_indices(last_rows);
  const Tensor all_tail_rows = cuts_tails_ ? upload_indices(tail_rows) : Tensor();
  const auto batch_maker = [&](const Arrays& arrays) {
    const Tensor positions = upload_indices(arrays.positions), offsets = upload_indices(arrays.offsets);
    return
        [positions, offsets, token = int64_t{0}, offset = int64_t{0}](int64_t tokens, const MicroBatch& item) mutable {
          const Batch batch{.positions = positions.rows(token, tokens),
                            .offsets = offsets.rows(offset, item.samples + 1),
                            .tokens = tokens,
                            .sequences = item.samples,
                            .max_length = 0};
          token += tokens;
          offset += item.samples + 1;
          return batch;
        };
  };
  auto next_batch = batch_maker(whole);
  auto next_tail = cuts_tails_ ? std::optional(batch_maker(tails)) : std::nullopt;
  int64_t tail_row = 0;
  for (const MicroBatch& micro_batch : plan_.items) {
    Item item;
    int64_t kept_tokens = 0;
    for (int64_t sample = micro_batch.first_sample; sample < micro_batch.first_sample + micro_batch.samples; ++sample) {
      kept_tokens += kept(sample);
      item.batch.max_length = std::max(item.batch.max_length, plan_.length(sample));
    }
    const int64_t longest = item.batch.max_length;
    item.batch = next_batch(behind_cut ? kept_tokens : micro_batch.tokens, micro_batch);
    item.batch.max_length = behind_cut ? std::min(longest, tail_length_) : longest;
    if (cuts_tails_) {
      item.tail_rows = all_tail_rows.rows(tail_row, kept_tokens);
      item.tail = (*next_tail)(kept_tokens, micro_batch);
      item.tail.max_length = std::min(longest, tail_length_);
      tail_row += kept_tokens;
    }
    items_.push_back(item);
  }
}

void Pipeline::collect_times() {
  run_.collect_times();
  if (!results_) return;
  for (const Span& span : results_->take_finished()) run_.trace(TraceKind::kOutput, span.tag / 2, span.start, span.end);
}

// The first stage decides, and every other one is told before it waits for hidden states: nobody waits for what never
// comes. The message is ahead of the micro-batch by two stages' work.
bool Pipeline::goes_on(int64_t item) {
  ControlLink* control = links_.control;
  if (links_.stage.first()) {
    const bool stop = run_.first_is_asked_to_stop();
    if (control != nullptr) control->send_step({stop ? 0 : 1});
    return !stop;
  }
  if (control == nullptr) return true;
  std::vector<int32_t> words;
  if (!control->receive_step(words)) run_.wait([&] { return control->receive_step(words); }, Phase::kStep, item, 0);
  return words.at(0) != 0;
}

void Pipeline::wait_for_free_slot(int slot_index, int64_t previous) {
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  run_.wait_for_free_slot(slot_index, previous, [&] { return slot.computed->done() && slot.taken->done(); });
}

void Pipeline::forward(const Action& action) {
  if (!links_.stage.first()) run_.wait_for_arrival(action.slot, action.item);
  links_.backend.compute().submit(
      [this, &action] {
        const Tensor residual = input_of(action);
        const Item& item = shape_of(action);
        if (links_.stage.first())
          links_.stage.embed(links_.backend.ops(), ids_.rows(item_of(action).first_token, item_of(action).tokens),
                             residual);
        const Tail tail{item.tail_rows, cuts_tails_ ? output_of(action) : Tensor(), item.tail};
        links_.stage.forward(links_.backend.ops(), residual, item.batch, scratch_, cuts_tails_ ? &tail : nullptr);
      },
      2 * action.item);
  links_.backend.compute().record(*slot_of(action).computed);
}

void Pipeline::give_result(const Action& action) {
  const MicroBatch& item = item_of(action);
  if (results_) {
    const bool all = kind_.positions == Positions::kAll;
    const Tensor rows = all ? Tensor() : last_rows_.rows(item.first_sample, item.samples);
    const auto until = [&](const std::function<bool()>& done, Phase phase) { run_.wait(done, phase, action.item); };
    results_->give(output_of(action), rows,
                   all ? plan_.first_token + item.first_token : plan_.first_sample + item.first_sample, scratch_, until,
                   2 * action.item + 1);
  }
  links_.backend.compute().record(*slot_of(action).taken);
}

void Pipeline::run(std::span<const int32_t> ids, const std::vector<ResultConsumer*>& consumers,
                   const std::function<void(const MicroBatch&)>& on_item, const std::function<bool()>& stop) {
  run_.begin(stop);
  finished_ = true;
  if (results_) results_->start(consumers);
  if (links_.stage.first()) links_.backend.upload(ids_, 0, DType::kI32, ids.data(), ids_.numel());
  int64_t begun = 0;  // items
  for (const Action& action : schedule_) {
    const bool begins = action.kind == ActionKind::kTakeTokens || action.kind == ActionKind::kReceive;
    if (begins && !goes_on(action.item)) {
      finished_ = false;
      break;
    }
    begun = action.item + 1;
    run_.enter(Phase::kCompute, action.item);
    switch (action.kind) {
      case ActionKind::kTakeTokens:
        wait_for_free_slot(action.slot, action.item - kSlots);
        break;
      case ActionKind::kReceive:
        wait_for_free_slot(action.slot, action.item - kSlots);
        links_.channel->receive(action.slot, input_of(action));
        break;
      case ActionKind::kForward:
        forward(action);
        break;
      case ActionKind::kSend:
        links_.channel->send(action.slot, output_of(action), *slot_of(action).computed);
        on_item(item_of(action));
        break;
      case ActionKind::kGiveResult:
        give_result(action);
        on_item(item_of(action));
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
