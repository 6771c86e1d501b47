// The loop over a stage's actions. It starts work and waits only for slots and arrivals: transfers run under the
// computation.
#include "stage/pipeline.h"

#include <algorithm>

#include "stage/memory_plan.h"

namespace lfm2 {

Pipeline::Pipeline(Backend& backend, const Stage& stage, Channel* channel, int64_t index, int64_t stages,
                   const BatchPlan& plan, DType compute, ResultKind kind, Watchdog& watchdog, bool traced,
                   ControlLink* control)
    : backend_(backend),
      stage_(stage),
      channel_(channel),
      control_(control),
      index_(index),
      stages_(stages),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      watchdog_(watchdog),
      traced_(traced),
      schedule_(make_schedule(index, stages, static_cast<int64_t>(plan.items.size()))),
      waiter_(watchdog, [this] {
        backend_.compute().check();
        watchdog_.note(backend_.activity());
        if (channel_ != nullptr) channel_->progress();
        if (results_) results_->advance();
        pass_on_stop();
      }) {
  const int64_t cut = last_attention_layer(stage.config());
  tail_length_ = kind.positions == Positions::kLast ? tail_length(stage.config()) : 0;
  cuts_tails_ = tail_length_ > 0 && cut >= stage.layers().first && cut < stage.layers().end();
  for (Slot& slot : slots_) {
    slot.residual = allocate(compute, {plan.max_tokens, stage.config().hidden});
    if (cuts_tails_)
      slot.tail =
          allocate(compute, {std::min(plan.max_tokens, plan.max_samples * tail_length_), stage.config().hidden});
    slot.computed = backend.create_event();
    slot.taken = backend.create_event();
  }
  build_items();
  if (stage.first()) ids_ = allocate(DType::kI32, {plan.tokens()});
  const bool gives = stage.last() && kind.positions != Positions::kNone;
  const int64_t rows = !gives ? 0 : kind.positions == Positions::kAll ? plan.max_tokens : plan.max_samples;
  const StageCost cost = measure_stage(stage.config(), stage.layers(), compute, compute, plan.max_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  activation_bytes_ += cost.scratch_bytes + cost.result_bytes;
  if (gives) results_.emplace(backend, stage, kind, rows);
}

Tensor Pipeline::allocate(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor tensor(nullptr, dtype, dims);
  buffers_.push_back(backend_.allocate(tensor.bytes()));
  tensor.data = buffers_.back().data();
  activation_bytes_ += tensor.bytes();
  return tensor;
}

Tensor Pipeline::upload_indices(const std::vector<int32_t>& values) {
  const Tensor tensor = allocate(DType::kI32, {static_cast<int64_t>(values.size())});
  backend_.upload(tensor, 0, DType::kI32, values.data(), tensor.numel());
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
  const bool behind_cut = tail_length_ > 0 && last_attention_layer(stage_.config()) < stage_.layers().first;
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

double Pipeline::wait(const std::function<bool()>& done, Phase phase, int64_t item, int64_t peer_stage) {
  const double start = traced_ ? steady_seconds() : 0;
  const int peer =
      peer_stage == Place::kNobody ? Place::kNobody : watchdog_.rank() + static_cast<int>(peer_stage - index_);
  const double waited = waiter_.until(done, {.phase = phase, .item = item, .peer = peer});
  if (traced_ && waited > 0) trace_.push_back({TraceKind::kWait, item, start, start + waited, phase});
  return waited;
}

// What has ended on the device and on the channel since the last call.
void Pipeline::collect_times() {
  for (const Span& span : backend_.compute().take_finished()) {
    times_.busy += span.end - span.start;
    computing_.push_back(span);
    trace(span.tag % 2 == 0 ? TraceKind::kCompute : TraceKind::kHead, span.tag / 2, span.start, span.end);
  }
  if (results_)
    for (const Span& span : results_->take_finished()) trace(TraceKind::kOutput, span.tag / 2, span.start, span.end);
  if (channel_ == nullptr) return;
  const Channel::Transfers transfers = channel_->take_finished();
  for (const Span& span : transfers.sent) {
    trace(TraceKind::kSend, static_cast<int64_t>(sending_.size()), span.start, span.end);
    times_.sending += span.end - span.start;
    sending_.push_back(span);
  }
  for (const Span& span : transfers.received) trace(TraceKind::kReceive, received_++, span.start, span.end);
}

// The first stage decides, and every other one is told before it waits for hidden states: nobody waits for what never
// comes. The message is ahead of the micro-batch by two stages' work.
bool Pipeline::goes_on(int64_t item) {
  if (stage_.first()) {
    const bool stop = (stop_ && stop_()) || (control_ != nullptr && control_->asked_to_stop());
    if (control_ != nullptr) control_->send_step({stop ? 0 : 1});
    return !stop;
  }
  if (control_ == nullptr) return true;
  std::vector<int32_t> words;
  if (!control_->receive_step(words))
    wait([&] { return control_->receive_step(words); }, Phase::kStep, item, 0);
  return words.at(0) != 0;
}

// A signal may reach any of the ranks.
void Pipeline::pass_on_stop() {
  if (control_ == nullptr) return;
  control_->progress();
  if (stage_.first() || asked_to_stop_ || !stop_ || !stop_()) return;
  asked_to_stop_ = true;
  control_->ask_to_stop();
}

// In steps, so that a stall is blamed on whoever is late: the stage before, this one's device, the stage behind.
void Pipeline::wait_for_free_slot(int slot_index, int64_t previous) {
  if (previous < 0) return;  // nothing was in it in this run
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  if (!stage_.first()) wait([&] { return channel_->delivered(slot_index); }, Phase::kReceive, previous, index_ - 1);
  wait([&] { return slot.computed->done() && slot.taken->done(); }, Phase::kCompute, previous);
  if (!stage_.last()) wait([&] { return channel_->sent(slot_index); }, Phase::kSend, previous, index_ + 1);
}

void Pipeline::forward(const Action& action) {
  if (!stage_.first()) {
    const double waited =
        wait([&] { return channel_->arrived(action.slot); }, Phase::kReceive, action.item, index_ - 1);
    const double now = steady_seconds();
    receiving_.push_back({0, now - waited, now});
    channel_->order_after_arrival(action.slot, backend_.compute());
  }
  backend_.compute().submit(
      [this, &action] {
        const Tensor residual = input_of(action);
        const Item& item = shape_of(action);
        if (stage_.first())
          stage_.embed(backend_.ops(), ids_.rows(item_of(action).first_token, item_of(action).tokens), residual);
        const Tail tail{item.tail_rows, cuts_tails_ ? output_of(action) : Tensor(), item.tail};
        stage_.forward(backend_.ops(), residual, item.batch, scratch_, cuts_tails_ ? &tail : nullptr);
      },
      2 * action.item);
  backend_.compute().record(*slot_of(action).computed);
}

void Pipeline::give_result(const Action& action) {
  const MicroBatch& item = item_of(action);
  if (results_) {
    const bool all = kind_.positions == Positions::kAll;
    const Tensor rows = all ? Tensor() : last_rows_.rows(item.first_sample, item.samples);
    const auto until = [&](const std::function<bool()>& done, Phase phase) { wait(done, phase, action.item); };
    results_->give(output_of(action), rows,
                   all ? plan_.first_token + item.first_token : plan_.first_sample + item.first_sample, scratch_, until,
                   2 * action.item + 1);
  }
  backend_.compute().record(*slot_of(action).taken);
}

void Pipeline::run(std::span<const int32_t> ids, const std::vector<ResultConsumer*>& consumers,
                   const std::function<void(const MicroBatch&)>& on_item, const std::function<bool()>& stop) {
  const double start = steady_seconds();
  collect_times();  // of the run before, and of connecting: not of this one
  times_ = {};
  computing_.clear();
  sending_.clear();
  receiving_.clear();
  trace_.clear();
  received_ = 0;
  stop_ = stop;
  asked_to_stop_ = false;
  finished_ = true;
  if (results_) results_->start(consumers);
  if (stage_.first()) backend_.upload(ids_, 0, DType::kI32, ids.data(), ids_.numel());
  int64_t begun = 0;  // items
  for (const Action& action : schedule_) {
    const bool begins = action.kind == ActionKind::kTakeTokens || action.kind == ActionKind::kReceive;
    if (begins && !goes_on(action.item)) {
      finished_ = false;
      break;
    }
    begun = action.item + 1;
    watchdog_.enter({.phase = Phase::kCompute, .item = action.item});
    switch (action.kind) {
      case ActionKind::kTakeTokens:
        wait_for_free_slot(action.slot, action.item - kSlots);
        break;
      case ActionKind::kReceive:
        wait_for_free_slot(action.slot, action.item - kSlots);
        channel_->receive(action.slot, input_of(action));
        break;
      case ActionKind::kForward:
        forward(action);
        break;
      case ActionKind::kSend:
        channel_->send(action.slot, output_of(action), *slot_of(action).computed);
        on_item(item_of(action));
        break;
      case ActionKind::kGiveResult:
        give_result(action);
        on_item(item_of(action));
        break;
    }
    if (results_) results_->advance();
    pass_on_stop();
    collect_times();
  }
  if (results_) results_->finish([&](const auto& done, Phase phase) { wait(done, phase, begun - 1); });
  for (int64_t item = std::max<int64_t>(0, begun - kSlots); item < begun; ++item)
    wait_for_free_slot(static_cast<int>(item % kSlots), item);
  const double end = steady_seconds();
  times_.total = end - start;
  collect_times();
  trace(TraceKind::kRun, 0, start, end);
  times_.hidden = seconds_within(sending_, computing_);
  times_.receiving = seconds_of(receiving_) - seconds_within(receiving_, computing_);
}

}  // namespace lfm2
