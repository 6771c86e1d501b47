// The loop over a stage's actions. It starts work and waits only for slots and arrivals: transfers run under the
// computation.
#include "stage/pipeline.h"

#include <algorithm>
#include <chrono>

#include "stage/memory_plan.h"

namespace lfm2 {

Pipeline::Pipeline(Backend& backend, const Stage& stage, Channel* channel, int64_t index, int64_t stages,
                   const BatchPlan& plan, DType compute, ResultKind kind, double timeout_seconds,
                   bool traced)
    : backend_(backend),
      stage_(stage),
      channel_(channel),
      index_(index),
      stages_(stages),
      plan_(plan),
      compute_(compute),
      kind_(kind),
      traced_(traced),
      schedule_(make_schedule(index, stages, static_cast<int64_t>(plan.items.size()))),
      waiter_(timeout_seconds, [this] {
        backend_.compute().check();
        if (channel_ != nullptr) channel_->progress();
        if (results_) results_->advance();
      }) {
  for (Slot& slot : slots_) {
    slot.residual = allocate(compute, {plan.max_tokens, stage.config().hidden});
    slot.computed = backend.create_event();
    slot.taken = backend.create_event();
  }
  build_batches();
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
void Pipeline::build_batches() {
  std::vector<int32_t> positions, offsets, last_rows;
  for (const MicroBatch& item : plan_.items) {
    offsets.push_back(0);
    for (int64_t sample = item.first_sample; sample < item.first_sample + item.samples; ++sample) {
      for (int64_t position = 0; position < plan_.length(sample); ++position)
        positions.push_back(static_cast<int32_t>(position));
      offsets.push_back(static_cast<int32_t>(offsets.back() + plan_.length(sample)));
      last_rows.push_back(offsets.back() - 1);
    }
  }
  const Tensor all_positions = upload_indices(positions), all_offsets = upload_indices(offsets);
  last_rows_ = upload_indices(last_rows);
  int64_t first_offset = 0;
  for (const MicroBatch& item : plan_.items) {
    Batch batch{.positions = all_positions.rows(item.first_token, item.tokens),
                .offsets = all_offsets.rows(first_offset, item.samples + 1),
                .tokens = item.tokens,
                .sequences = item.samples};
    for (int64_t sample = item.first_sample; sample < item.first_sample + item.samples; ++sample)
      batch.max_length = std::max(batch.max_length, plan_.length(sample));
    first_offset += item.samples + 1;
    batches_.push_back(batch);
  }
}

double Pipeline::wait(const std::function<bool()>& done, std::string_view what, int64_t item) {
  const double start = traced_ ? steady_seconds() : 0;
  const double waited = waiter_.until(
      done, [&] { return fmt::format("stage {} of {} waits until micro-batch {} {}", index_, stages_, item, what); });
  trace(TraceKind::kWait, item, start, start + waited);
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

void Pipeline::wait_for_free_slot(const Action& action) {
  const int64_t previous = action.item - kSlots;
  if (stage_.last())
    wait([&] { return slot_of(action).taken->done(); }, "is computed", previous);
  else
    wait([&] { return channel_->sent(action.slot); }, fmt::format("is taken by stage {}", index_ + 1), previous);
}

void Pipeline::forward(const Action& action) {
  if (!stage_.first()) {
    times_.receiving += wait([&] { return channel_->arrived(action.slot); },
                             fmt::format("comes from stage {}", index_ - 1), action.item);
    channel_->order_after_arrival(action.slot, backend_.compute());
  }
  backend_.compute().submit([this, &action] {
    const Tensor residual = residual_of(action);
    if (stage_.first())
      stage_.embed(backend_.ops(), ids_.rows(item_of(action).first_token, item_of(action).tokens), residual);
    stage_.forward(backend_.ops(), residual, batches_[static_cast<size_t>(action.item)], scratch_);
  }, 2 * action.item);
  backend_.compute().record(*slot_of(action).computed);
}

void Pipeline::give_result(const Action& action) {
  const MicroBatch& item = item_of(action);
  if (results_) {
    const bool all = kind_.positions == Positions::kAll;
    const Tensor rows = all ? Tensor() : last_rows_.rows(item.first_sample, item.samples);
    const auto until = [&](const std::function<bool()>& done) { wait(done, "gives its logits", action.item); };
    results_->give(residual_of(action), rows, all ? item.first_token : item.first_sample, scratch_, until, 2 * action.item + 1);
  }
  backend_.compute().record(*slot_of(action).taken);
}

void Pipeline::run(const std::vector<int32_t>& ids, const std::vector<ResultConsumer*>& consumers,
                   const std::function<void(const MicroBatch&)>& on_item) {
  const auto start = std::chrono::steady_clock::now();
  collect_times();  // of the run before, and of connecting: not of this one
  times_ = {};
  computing_.clear();
  sending_.clear();
  trace_.clear();
  received_ = 0;
  if (results_) results_->start(consumers);
  if (stage_.first()) backend_.upload(ids_, 0, DType::kI32, ids.data(), ids_.numel());
  for (const Action& action : schedule_) {
    switch (action.kind) {
      case ActionKind::kTakeTokens:
        wait_for_free_slot(action);
        break;
      case ActionKind::kReceive:
        wait_for_free_slot(action);
        channel_->receive(action.slot, residual_of(action));
        break;
      case ActionKind::kForward:
        forward(action);
        break;
      case ActionKind::kSend:
        channel_->send(action.slot, residual_of(action), *slot_of(action).computed);
        on_item(item_of(action));
        break;
      case ActionKind::kGiveResult:
        give_result(action);
        on_item(item_of(action));
        break;
    }
    if (results_) results_->advance();
    collect_times();
  }
  const auto last_item = static_cast<int64_t>(plan_.items.size()) - 1;
  if (results_) results_->finish([&](const auto& done) { wait(done, "gives its logits", last_item); });
  for (const Slot& slot : slots_) {
    wait([&] { return slot.computed->done() && slot.taken->done(); }, "is computed", last_item);
    if (!stage_.last())
      wait([&] { return channel_->sent(static_cast<int>(&slot - slots_.data())); }, "is sent", last_item);
  }
  times_.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  collect_times();
  times_.hidden = seconds_within(sending_, computing_);
}

}  // namespace lfm2
