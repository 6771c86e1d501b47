// The loop over steps. Ids, positions and pages of a step are one copy to the device; a step of decoding alone is one
// recorded piece of work where it comes again.
#include "stage/generation/generator.h"

#include <algorithm>
#include <cstring>

#include "stage/model/memory_plan.h"

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

Generator::Generator(const StageLinks& links, const GenerationPlan& plan, DType compute, bool traced)
    : links_(links),
      control_(*links.control),
      plan_(plan),
      compute_(compute),
      caches_(links.backend, links.stage.config(), links.stage.layers(), compute, plan.limits.caches),
      memory_(links.backend),
      run_(
          links, RunItem::kStep, traced, [this] { collect_results(); },
          links.backend.memory_is_host_memory() ? Wait::kEagerSeconds : kEagerSeconds) {
  Backend& backend = links.backend;
  const Stage& stage = links.stage;
  const int64_t most_tokens = plan.most_tokens(), most_sequences = plan.limits.most_sequences;
  const size_t array_bytes =
      static_cast<size_t>(most_words(most_tokens, most_sequences, plan.table_width())) * sizeof(int32_t);
  arrays_ = backend.allocate(array_bytes);
  const size_t drawn_bytes = Drawn(nullptr, most_sequences, plan.top_k).bytes;
  for (Slot& slot : slots_) {
    slot.residual = memory_.allocate(compute, {most_tokens, stage.config().hidden});
    slot.staging = backend.allocate_host(array_bytes);
    slot.computed = backend.create_event();
    if (stage.last()) slot.results = backend.allocate_host(drawn_bytes);
  }
  const int64_t rows = stage.last() ? std::min(most_sequences, kHeadRows) : 0;
  if (stage.last()) {
    drawn_ = backend.allocate(drawn_bytes);
    logits_ = memory_.allocate(DType::kF32, {rows, stage.config().vocab});
  }
  const StageCost cost = measure_stage(stage.config(), stage.layers(), compute, compute, most_tokens, rows);
  scratch_ = Scratch(backend.allocate(cost.scratch_bytes));
  working_bytes_ += cost.scratch_bytes + array_bytes + (stage.last() ? drawn_bytes : 0);
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
    (arrival.first ? generation_times_.to_first_token : generation_times_.between_tokens).add(now - before);
    before = now;
  }
  return true;
}

// First stage: decides; others: are told.
void Generator::wait_for_tokens() {
  if (links_.stage.last())
    run_.wait([&] { return take_tokens(); }, Phase::kCompute, steps_ - 1);
  else
    run_.wait([&] { return take_tokens(); }, Phase::kTokens, steps_, links_.stages - 1);
}

ScheduledStep Generator::next_step() {
  ScheduledStep scheduled;
  if (!links_.stage.first()) {
    std::vector<int32_t> words;
    // In steps: a device that hangs is to blame before the rank that waits for its tokens.
    bool received = false;
    const auto computed = [&] { return slots_[0].computed->done() && slots_[1].computed->done(); };
    run_.wait([&] { return (received = control_.receive_step(words)) || computed(); }, Phase::kCompute, steps_ - 1);
    if (!received) run_.wait([&] { return control_.receive_step(words); }, Phase::kStep, steps_, 0);
    scheduled.step = step_from_words(words);
    return scheduled;
  }
  while (true) {
    while (take_tokens()) {
    }
    if (run_.first_is_asked_to_stop()) break;
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

void Generator::wait_for_free_slot(int slot_index, int64_t previous) {
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  run_.wait_for_free_slot(slot_index, previous, [&] { return slot.computed->done() && !slot.pending; });
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
  links_.backend.copy(links_.backend.compute(), arrays_.data(), slot.staging.data(), host.bytes);
}

// Everything of a step between what comes in and what goes out.
void Generator::compute(const Layout& layout, const Slot& slot) {
  const Tensor residual = slot.residual.rows(0, layout.batch.tokens);
  if (links_.stage.first()) links_.stage.embed(links_.backend.ops(), layout.ids, residual);
  links_.stage.forward(links_.backend.ops(), residual, layout.batch, scratch_, nullptr, &caches_);
  if (links_.stage.last()) draw(layout, residual, slot);
}

void Generator::draw(const Layout& layout, const Tensor& residual, const Slot& slot) {
  const int64_t draws = layout.draw_rows.dim(0);
  const Drawn drawn(drawn_.data(), draws, plan_.top_k);
  for (int64_t first = 0; first < draws; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, draws - first);
    const Tensor logits = logits_.rows(0, count);
    links_.stage.head(links_.backend.ops(), residual, layout.draw_rows.rows(first, count), scratch_, logits);
    links_.backend.ops().sample(logits, layout.draws.rows(first, count), plan_.rule, drawn.ids.rows(first, count),
                                drawn.log_probs.rows(first, count));
    if (plan_.top_k > 0)
      links_.backend.ops().top_log_probs(logits, drawn.top_ids.rows(first, count),
                                         drawn.top_log_probs.rows(first, count));
  }
  if (draws > 0)
    links_.backend.copy_to_host(
        slot.results.data(), Tensor(drawn_.data(), DType::kI32, {static_cast<int64_t>(drawn.bytes / sizeof(int32_t))}));
}

void Generator::make_room_for_recordings() {
  std::erase_if(recordings_, [](const auto& one) { return one.second.work == nullptr; });
  if (recordings_.size() < kMostRecordings) return;
  run_.wait([&] { return slots_[0].computed->done() && slots_[1].computed->done(); }, Phase::kCompute, steps_ - 1);
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
    if (++recorded.times == kRecordedTime) recorded.work = links_.backend.record([&] { compute(layout, slot); });
    recording = recorded.work.get();
  }
  links_.backend.compute().submit(
      [this, layout, &slot, recording] {
        if (recording != nullptr)
          recording->replay();
        else
          compute(layout, slot);
      },
      2 * step);
  links_.backend.compute().record(*slot.computed);
}

void Generator::collect_results() {
  while (!unread_.empty()) {
    Slot& slot = slots_[static_cast<size_t>(unread_.front())];
    if (!slot.computed->done()) return;
    unread_.pop_front();
    const double start = steady_seconds();
    const Place before = links_.watchdog.place();  // some wait looks around
    run_.enter(Phase::kWrite, slot.step);
    hand_out(slot);
    links_.watchdog.enter(before);
    run_.trace(TraceKind::kOutput, slot.step, start, steady_seconds());
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

void Generator::run(const Samples& samples, const std::vector<CompletionConsumer*>& consumers,
                    const std::function<void(int64_t)>& on_tokens, const std::function<bool()>& stop) {
  run_.begin(stop);
  generation_times_ = {};
  steps_ = largest_step_ = 0;
  consumers_ = consumers;
  on_tokens_ = on_tokens;
  table_.emplace(plan_.limits.caches);
  open_.assign(static_cast<size_t>(plan_.limits.caches.slots), {});
  most_new_.assign(open_.size(), 0);
  if (links_.stage.first()) {
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
    run_.enter(Phase::kCompute, steps_);
    wait_for_free_slot(slot_index, steps_ - kSlots);
    table_->apply(step, plan_.table_width(), arrays);
    if (links_.stage.last())
      for (const Admission& one : step.admitted) {
        open_[static_cast<size_t>(one.slot)] = {
            .sample = one.sample, .token_ids = {}, .log_probs = {}, .top_ids = {}, .top_log_probs = {}};
        most_new_[static_cast<size_t>(one.slot)] = one.most_new;
      }
    if (!links_.stage.first()) links_.channel->receive(slot_index, slot.residual.rows(0, arrays.tokens));
    upload(arrays, scheduled.ids, slot);
    if (!links_.stage.first()) run_.wait_for_arrival(slot_index, steps_);
    enqueue(arrays, slot_index, steps_);
    if (links_.stage.last()) {
      slot.drawing_slots = arrays.draw_slots;
      slot.pending = true;
      slot.step = steps_;
      unread_.push_back(slot_index);
    } else {
      links_.channel->send(slot_index, slot.residual.rows(0, arrays.tokens), *slot.computed);
    }
    ++steps_;
    largest_step_ = std::max(largest_step_, arrays.sequences());
    run_.collect_times();
  }
  for (int64_t step = steps_; step < steps_ + kSlots; ++step)
    wait_for_free_slot(static_cast<int>(step % kSlots), step - kSlots);
  finished_ = !links_.stage.first() || scheduler_->finished();
  run_.end();
}

}  // namespace lfm2
