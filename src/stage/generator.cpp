// The loop over steps. Ids, positions and pages of a step are one copy to the device; a step of decoding alone is one
// recorded piece of work where it comes again.
#include "stage/generator.h"

#include <algorithm>
#include <cstring>

#include "stage/memory_plan.h"

namespace lfm2 {

namespace {

// Attention over caches launches for the longest sequence, rounded up to this, so that a recording lasts.
constexpr int64_t kLengthStep = 1024;
constexpr size_t kMostRecordings = 256;
// A shape is recorded when it comes for this time: recording takes as long as some steps, and where sequences end
// one after the other most shapes do not come again.
constexpr int64_t kRecordedTime = 4;
// A rank that has a GPU has a processor too: it looks for messages without pause for as long as a step may take.
constexpr double kEagerSeconds = 0.02;

constexpr int64_t kAlignedInts = 4;  // 16 bytes
constexpr int64_t aligned(int64_t ints) { return (ints + kAlignedInts - 1) / kAlignedInts * kAlignedInts; }

// The int32 words of a step of at most so many.
int64_t most_words(int64_t tokens, int64_t sequences, int64_t table_width) {
  return 3 * aligned(tokens) + aligned(sequences + 1) + 2 * aligned(2 * sequences) + aligned(sequences) +
         aligned(sequences * table_width);
}

}  // namespace

Generator::Layout::Layout(std::byte* memory, const StepArrays& arrays, int64_t table_width) {
  const auto take = [&](std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory == nullptr ? nullptr : memory + bytes, DType::kI32, dims);
    bytes += static_cast<size_t>(aligned(tensor.numel())) * sizeof(int32_t);
    return tensor;
  };
  const int64_t tokens = arrays.tokens, sequences = arrays.sequences();
  const auto drawing = static_cast<int64_t>(arrays.draw_rows.size());
  ids = take({tokens});
  batch.positions = take({tokens});
  batch.sequence_of = take({tokens});
  batch.offsets = take({sequences + 1});
  batch.states = take({sequences, 2});
  draws = take({drawing, 2});
  draw_rows = take({drawing});
  batch.page_table = take({sequences, table_width});
  batch.tokens = tokens;
  batch.sequences = sequences;
  batch.singles = arrays.singles;
  batch.max_length = (arrays.max_length + kLengthStep - 1) / kLengthStep * kLengthStep;
}

Generator::Drawn::Drawn(std::byte* memory, int64_t draws, int64_t top_k) {
  const auto take = [&](DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor tensor(memory == nullptr ? nullptr : memory + bytes, dtype, dims);
    bytes += static_cast<size_t>(aligned(tensor.numel())) * sizeof(int32_t);
    return tensor;
  };
  ids = take(DType::kI32, {draws});
  log_probs = take(DType::kF32, {draws});
  if (top_k == 0) return;
  top_ids = take(DType::kI32, {draws, top_k});
  top_log_probs = take(DType::kF32, {draws, top_k});
}

Generator::Generator(Backend& backend, const Stage& stage, Channel* channel, ControlLink& control, int64_t index,
                     int64_t stages, const GenerationPlan& plan, DType compute, Watchdog& watchdog, bool traced)
    : backend_(backend),
      stage_(stage),
      channel_(channel),
      control_(control),
      index_(index),
      stages_(stages),
      plan_(plan),
      compute_(compute),
      watchdog_(watchdog),
      traced_(traced),
      waiter_(
          watchdog,
          [this] {
            backend_.compute().check();
            watchdog_.note(backend_.activity());
            control_.progress();
            if (channel_ != nullptr) channel_->progress();
            collect_results();
            pass_on_stop();
          },
          backend.memory_is_host_memory() ? Wait::kEagerSeconds : kEagerSeconds),
      caches_(backend, stage.config(), stage.layers(), compute, plan.limits.caches) {
  const int64_t most_tokens = plan.most_tokens(), most_sequences = plan.limits.most_sequences;
  const size_t array_bytes =
      static_cast<size_t>(most_words(most_tokens, most_sequences, plan.table_width())) * sizeof(int32_t);
  arrays_ = backend.allocate(array_bytes);
  const size_t drawn_bytes = Drawn(nullptr, most_sequences, plan.top_k).bytes;
  for (Slot& slot : slots_) {
    slot.residual = allocate(compute, {most_tokens, stage.config().hidden});
    slot.staging = backend.allocate_host(array_bytes);
    slot.computed = backend.create_event();
    if (stage.last()) slot.results = backend.allocate_host(drawn_bytes);
  }
  const int64_t rows = stage.last() ? std::min(most_sequences, kHeadRows) : 0;
  if (stage.last()) {
    drawn_ = backend.allocate(drawn_bytes);
    logits_ = allocate(DType::kF32, {rows, stage.config().vocab});
  }
  const StageCost cost = measure_stage(stage.config(), stage.layers(), compute, compute, most_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  activation_bytes_ += cost.scratch_bytes + array_bytes + (stage.last() ? drawn_bytes : 0);
}

Tensor Generator::allocate(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor tensor(nullptr, dtype, dims);
  buffers_.push_back(backend_.allocate(tensor.bytes()));
  tensor.data = buffers_.back().data();
  activation_bytes_ += tensor.bytes();
  return tensor;
}

double Generator::wait(const std::function<bool()>& done, Phase phase, int64_t step, int64_t peer_stage) {
  const double start = traced_ ? steady_seconds() : 0;
  const int peer =
      peer_stage == Place::kNobody ? Place::kNobody : watchdog_.rank() + static_cast<int>(peer_stage - index_);
  const double waited = waiter_.until(done, {.phase = phase, .item = step, .step = true, .peer = peer});
  if (traced_ && waited > 0) trace_.push_back({TraceKind::kWait, step, start, start + waited, phase});
  return waited;
}

bool Generator::take_tokens() {
  std::vector<int32_t> words;
  if (!control_.receive_tokens(words)) return false;
  std::vector<DrawnToken> tokens;
  for (size_t at = 0; at + 1 < words.size(); at += 2) tokens.push_back({words[at], words[at + 1] != 0});
  scheduler_->take(tokens);
  const double now = steady_seconds();
  for (const Scheduler::Arrival& arrival : scheduler_->arrivals()) {
    double& before = token_time_[static_cast<size_t>(arrival.slot)];
    auto& list = arrival.first ? generation_times_.to_first_token : generation_times_.between_tokens;
    list.push_back(static_cast<float>(now - before));
    before = now;
  }
  return true;
}

// First stage: decides; others: are told.
void Generator::wait_for_tokens() {
  if (stage_.last())
    wait([&] { return take_tokens(); }, Phase::kCompute, steps_ - 1);
  else
    wait([&] { return take_tokens(); }, Phase::kTokens, steps_, stages_ - 1);
}

ScheduledStep Generator::next_step() {
  ScheduledStep scheduled;
  if (!stage_.first()) {
    std::vector<int32_t> words;
    // In steps: a device that hangs is to blame before the rank that waits for its tokens.
    bool received = false;
    const auto computed = [&] { return slots_[0].computed->done() && slots_[1].computed->done(); };
    wait([&] { return (received = control_.receive_step(words)) || computed(); }, Phase::kCompute, steps_ - 1);
    if (!received) wait([&] { return control_.receive_step(words); }, Phase::kStep, steps_, 0);
    scheduled.step = step_from_words(words);
    return scheduled;
  }
  while (true) {
    while (take_tokens()) {
    }
    if (is_stopped()) break;
    if (auto next = scheduler_->next()) {
      scheduled = std::move(*next);
      const double now = steady_seconds();
      for (const Admission& one : scheduled.step.admitted) token_time_[static_cast<size_t>(one.slot)] = now;
      break;
    }
    if (scheduler_->finished()) break;
    wait_for_tokens();
  }
  control_.send_step(to_words(scheduled.step));
  if (scheduled.step.last())  // a run that was stopped: tokens of the steps in flight are still to come
    while (scheduler_->in_flight()) wait_for_tokens();
  return scheduled;
}

bool Generator::is_stopped() { return (stop_ && stop_()) || control_.asked_to_stop(); }

// A signal may reach any of the ranks.
void Generator::pass_on_stop() {
  if (stage_.first() || asked_to_stop_ || !stop_ || !stop_()) return;
  asked_to_stop_ = true;
  control_.ask_to_stop();
}

// In steps, so that a stall is blamed on whoever is late: the stage before, this one's device, the stage behind.
void Generator::wait_for_free_slot(int slot_index, int64_t previous) {
  if (previous < 0) return;  // nothing was in it in this run
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  if (!stage_.first()) wait([&] { return channel_->delivered(slot_index); }, Phase::kReceive, previous, index_ - 1);
  wait([&] { return slot.computed->done() && !slot.pending; }, Phase::kCompute, previous);
  if (!stage_.last()) wait([&] { return channel_->sent(slot_index); }, Phase::kSend, previous, index_ + 1);
}

void Generator::upload(const StepArrays& arrays, const std::vector<int32_t>& ids, Slot& slot) {
  const Layout host(slot.staging.data(), arrays, plan_.table_width());
  const auto fill = [](const Tensor& target, const std::vector<int32_t>& values) {
    if (!values.empty()) std::memcpy(target.data, values.data(), values.size() * sizeof(int32_t));
  };
  fill(host.ids, ids);
  fill(host.batch.positions, arrays.positions);
  fill(host.batch.sequence_of, arrays.sequence_of);
  fill(host.batch.offsets, arrays.offsets);
  fill(host.batch.states, arrays.states);
  fill(host.draws, arrays.draws);
  fill(host.draw_rows, arrays.draw_rows);
  fill(host.batch.page_table, arrays.page_table);
  backend_.copy(backend_.compute(), arrays_.data(), slot.staging.data(), host.bytes);
}

// Everything of a step between what comes in and what goes out.
void Generator::compute(const Layout& layout, const Slot& slot) {
  const Tensor residual = slot.residual.rows(0, layout.batch.tokens);
  if (stage_.first()) stage_.embed(backend_.ops(), layout.ids, residual);
  stage_.forward(backend_.ops(), residual, layout.batch, scratch_, nullptr, &caches_);
  if (stage_.last()) draw(layout, residual, slot);
}

void Generator::draw(const Layout& layout, const Tensor& residual, const Slot& slot) {
  const int64_t draws = layout.draw_rows.dim(0);
  const Drawn drawn(drawn_.data(), draws, plan_.top_k);
  for (int64_t first = 0; first < draws; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, draws - first);
    const Tensor logits = logits_.rows(0, count);
    stage_.head(backend_.ops(), residual, layout.draw_rows.rows(first, count), scratch_, logits);
    backend_.ops().sample(logits, layout.draws.rows(first, count), plan_.rule, drawn.ids.rows(first, count),
                          drawn.log_probs.rows(first, count));
    if (plan_.top_k > 0)
      backend_.ops().top_log_probs(logits, drawn.top_ids.rows(first, count), drawn.top_log_probs.rows(first, count));
  }
  if (draws > 0)
    backend_.copy_to_host(slot.results.data(),
                          Tensor(drawn_.data(), DType::kI32, {static_cast<int64_t>(drawn.bytes / sizeof(int32_t))}));
}

void Generator::make_room_for_recordings() {
  std::erase_if(recordings_, [](const auto& one) { return one.second.work == nullptr; });
  if (recordings_.size() < kMostRecordings) return;
  wait([&] { return slots_[0].computed->done() && slots_[1].computed->done(); }, Phase::kCompute, steps_ - 1);
  recordings_.clear();
}

void Generator::enqueue(const StepArrays& arrays, int slot_index, int64_t step) {
  Slot& slot = slots_[static_cast<size_t>(slot_index)];
  const Layout layout(arrays_.data(), arrays, plan_.table_width());
  Recording* recording = nullptr;
  const bool decodes =
      arrays.singles == arrays.tokens && static_cast<int64_t>(arrays.draw_rows.size()) == arrays.tokens;
  if (decodes) {
    const Shape shape{slot_index, layout.batch.tokens, layout.batch.max_length};
    if (recordings_.size() >= kMostRecordings && !recordings_.contains(shape)) make_room_for_recordings();
    Recorded& recorded = recordings_[shape];
    if (++recorded.times == kRecordedTime) recorded.work = backend_.record([&] { compute(layout, slot); });
    recording = recorded.work.get();
  }
  backend_.compute().submit(
      [this, layout, &slot, recording] {
        if (recording != nullptr)
          recording->replay();
        else
          compute(layout, slot);
      },
      2 * step);
  backend_.compute().record(*slot.computed);
}

void Generator::collect_results() {
  while (!unread_.empty()) {
    Slot& slot = slots_[static_cast<size_t>(unread_.front())];
    if (!slot.computed->done()) return;
    unread_.pop_front();
    const double start = steady_seconds();
    const Place before = watchdog_.place();  // some wait looks around
    watchdog_.enter({.phase = Phase::kWrite, .item = slot.step, .step = true});
    hand_out(slot);
    watchdog_.enter(before);
    trace(TraceKind::kOutput, slot.step, start, steady_seconds());
    slot.pending = false;
  }
}

void Generator::hand_out(Slot& slot) {
  const auto count = static_cast<int64_t>(slot.drawing_slots.size());
  const Drawn drawn(slot.results.data(), count, plan_.top_k);
  std::vector<int32_t> words;
  int64_t told = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(slot.drawing_slots[static_cast<size_t>(i)]);
    Completion& completion = open_[at];
    const int32_t token = drawn.ids.as<const int32_t>()[i];
    completion.token_ids.push_back(token);
    completion.log_probs.push_back(drawn.log_probs.as<const float>()[i]);
    if (plan_.top_k > 0) {
      const auto* ids = drawn.top_ids.as<const int32_t>() + i * plan_.top_k;
      const auto* log_probs = drawn.top_log_probs.as<const float>() + i * plan_.top_k;
      completion.top_ids.insert(completion.top_ids.end(), ids, ids + plan_.top_k);
      completion.top_log_probs.insert(completion.top_log_probs.end(), log_probs, log_probs + plan_.top_k);
    }
    const bool stops = std::find(plan_.eos_tokens.begin(), plan_.eos_tokens.end(), token) != plan_.eos_tokens.end();
    const auto length = static_cast<int64_t>(completion.token_ids.size());
    const bool ends = stops || length >= most_new_[at];
    words.insert(words.end(), {token, ends ? 1 : 0});
    told += 1;
    if (!ends) continue;
    told += most_new_[at] - length;
    completion.reason = stops ? FinishReason::kStop : FinishReason::kLength;
    for (CompletionConsumer* consumer : consumers_) consumer->take(completion);
  }
  control_.send_tokens(words);
  on_tokens_(told);
}

void Generator::collect_times() {
  for (const Span& span : backend_.compute().take_finished()) {
    if (span.tag == kUntagged) continue;  // a step's index arrays on their way
    times_.busy += span.end - span.start;
    computing_.push_back(span);
    trace(TraceKind::kCompute, span.tag / 2, span.start, span.end);
  }
  if (channel_ == nullptr) return;
  const Channel::Transfers transfers = channel_->take_finished();
  for (const Span& span : transfers.sent) {
    trace(TraceKind::kSend, static_cast<int64_t>(sending_.size()), span.start, span.end);
    times_.sending += span.end - span.start;
    sending_.push_back(span);
  }
  for (const Span& span : transfers.received) trace(TraceKind::kReceive, received_++, span.start, span.end);
}

void Generator::run(const Samples& samples, const std::vector<CompletionConsumer*>& consumers,
                    const std::function<void(int64_t)>& on_tokens, const std::function<bool()>& stop) {
  const double start = steady_seconds();
  collect_times();  // of before: not of this run
  times_ = {};
  generation_times_ = {};
  computing_.clear();
  sending_.clear();
  receiving_.clear();
  trace_.clear();
  steps_ = largest_step_ = received_ = 0;
  consumers_ = consumers;
  on_tokens_ = on_tokens;
  stop_ = stop;
  asked_to_stop_ = false;
  table_.emplace(plan_.limits.caches);
  open_.assign(static_cast<size_t>(plan_.limits.caches.slots), {});
  most_new_.assign(open_.size(), 0);
  if (stage_.first()) {
    scheduler_.emplace(samples, plan_.samples, plan_.most_new, plan_.max_positions, plan_.limits);
    token_time_.assign(open_.size(), 0);
  }
  StepArrays arrays;
  while (true) {
    const ScheduledStep scheduled = next_step();
    const Step& step = scheduled.step;
    if (step.last()) break;
    const int slot_index = static_cast<int>(steps_ % kSlots);
    Slot& slot = slots_[static_cast<size_t>(slot_index)];
    watchdog_.enter({.phase = Phase::kCompute, .item = steps_, .step = true});
    wait_for_free_slot(slot_index, steps_ - kSlots);
    table_->apply(step, plan_.table_width(), arrays);
    if (stage_.last())
      for (const Admission& one : step.admitted) {
        open_[static_cast<size_t>(one.slot)] = {
            .sample = one.sample, .token_ids = {}, .log_probs = {}, .top_ids = {}, .top_log_probs = {}};
        most_new_[static_cast<size_t>(one.slot)] = one.most_new;
      }
    if (!stage_.first()) channel_->receive(slot_index, slot.residual.rows(0, arrays.tokens));
    upload(arrays, scheduled.ids, slot);
    if (!stage_.first()) {
      const double waited = wait([&] { return channel_->arrived(slot_index); }, Phase::kReceive, steps_, index_ - 1);
      const double now = steady_seconds();
      receiving_.push_back({0, now - waited, now});
      channel_->order_after_arrival(slot_index, backend_.compute());
    }
    enqueue(arrays, slot_index, steps_);
    if (stage_.last()) {
      slot.drawing_slots = arrays.draw_slots;
      slot.pending = true;
      slot.step = steps_;
      unread_.push_back(slot_index);
    } else {
      channel_->send(slot_index, slot.residual.rows(0, arrays.tokens), *slot.computed);
    }
    ++steps_;
    largest_step_ = std::max(largest_step_, arrays.sequences());
    collect_times();
  }
  for (int64_t step = steps_; step < steps_ + kSlots; ++step)
    wait_for_free_slot(static_cast<int>(step % kSlots), step - kSlots);
  finished_ = !stage_.first() || scheduler_->finished();
  const double end = steady_seconds();
  times_.total = end - start;
  collect_times();
  trace(TraceKind::kRun, 0, start, end);
  times_.hidden = seconds_within(sending_, computing_);
  times_.receiving = seconds_of(receiving_) - seconds_within(receiving_, computing_);
}

}  // namespace lfm2
