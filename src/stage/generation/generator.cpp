// The loop over steps, and the waits of each stage in it.
#include "stage/generation/generator.h"

#include <algorithm>
#include <thread>

namespace lfm2 {

namespace {

// The time for which a stage polls for messages without a pause, about the longest time of a step.
constexpr Wait::Pace kOnGpu{.eager_seconds = 0.02, .longest_nap = kGpuNap};
// On CPUs a token waits for every rank in turn, so the delays of all ranks add up.
constexpr Wait::Pace kOnCpu{.nap_share = 1.0 / 256};
// While there are no requests, the first stage checks for new ones every kIdleNap. Every kIdleWord seconds it sends an
// empty step, so that no watchdog mistakes the silence for a stall.
constexpr auto kIdleNap = std::chrono::microseconds(200);
constexpr double kIdleWord = 0.1;

// A stage's times, as it reports them to the first stage.
struct TimesMessage {
  int64_t stage = 0;
  double busy = 0, total = 0;
};
void for_each_field(MaybeConst<TimesMessage> auto& times, const auto& each) {
  each(times.stage);
  each(times.busy);
  each(times.total);
}

}  // namespace

Generator::Generator(const StageLinks& links, const GenerationPlan& plan, DType compute, bool traced)
    : links_(links),
      plan_(plan),
      runner_(links, plan, compute),
      run_(
          links, RunUnit::kStep, traced,
          [this] {
            collect_results();
            if (first_) first_->requests.poll();
          },
          links.backend.memory_is_host_memory() ? kOnCpu : kOnGpu) {}

bool Generator::receive_tokens() {
  std::vector<int32_t> words;
  if (!links_.control->receive_tokens(words)) return false;
  const auto arrivals = first_->scheduler.on_tokens(from_words<std::vector<DrawnToken>>(words));
  const double now = steady_seconds();
  for (const Scheduler::Arrival& arrival : arrivals) {
    double& before = first_->token_time[static_cast<size_t>(arrival.slot)];
    (arrival.first ? generation_times_.to_first_token : generation_times_.between_tokens).add(now - before);
    before = now;
  }
  return true;
}

void Generator::wait_for_tokens() {
  if (links_.last())
    run_.wait([&] { return receive_tokens(); }, Phase::kCompute, {counts_.steps - 1});
  else
    run_.wait([&] { return receive_tokens(); }, Phase::kTokens, {counts_.steps}, links_.stages - 1);
}

// First stage: called while no sequence runs and no request waits.
void Generator::idle() {
  if (links_.watchdog.activity().phase != Phase::kIdle) run_.enter(Phase::kIdle, {counts_.steps});
  links_.watchdog.look();
  links_.watchdog.pulse();
  links_.watchdog.check();
  run_.pass_on_stop();
  share_times();
  if (const double now = steady_seconds(); now - first_->last_message >= kIdleWord) {
    links_.control->send_step(to_words(Step()));
    first_->last_message = now;
  }
  std::this_thread::sleep_for(kIdleNap);
}

// Other stages report their times to the first stage, which passes them to the source of requests. A late report waits
// for the next time.
void Generator::share_times() {
  const double now = steady_seconds();
  if (plan_.times_interval == 0 || now - times_shared_ < plan_.times_interval) return;
  times_shared_ = now;
  run_.collect_times();
  const TimesMessage own{links_.index, run_.busy_so_far(), run_.total_so_far()};
  if (!first_) return links_.control->send_times(to_words(own));
  first_->requests.stage_seconds(own.stage, own.busy, own.total);
  for (std::vector<int32_t> words; links_.control->receive_times(words);) {
    const TimesMessage times = from_words<TimesMessage>(words);
    first_->requests.stage_seconds(times.stage, times.busy, times.total);
  }
  first_->requests.caches(table_->used_slots(), plan_.limits.caches.pages - table_->free_pages());
}

Step Generator::receive_step() {
  std::vector<int32_t> words;
  // Wait for our own device first, and only then for the first stage. If the device hangs, the first stage waits for
  // our tokens while we wait for its step, and the watchdog must name the device.
  bool received = false;
  run_.wait([&] { return (received = links_.control->receive_step(words)) || runner_.all_computed(); }, Phase::kCompute,
            {counts_.steps - 1});
  if (!received) run_.wait([&] { return links_.control->receive_step(words); }, Phase::kStep, {counts_.steps}, 0);
  return from_words<Step>(words);
}

// The first stage composes the next step and sends it to the other stages, which receive it here.
ScheduledStep Generator::next_step() {
  ScheduledStep scheduled;
  if (!links_.first()) {
    scheduled.step = receive_step();
    return scheduled;
  }
  Scheduler& scheduler = first_->scheduler;
  while (true) {
    while (receive_tokens()) {
    }
    first_->requests.poll();
    if (run_.first_is_asked_to_stop()) {
      scheduled.step.end = true;
      break;
    }
    if (auto next = scheduler.next()) {
      scheduled = std::move(*next);
      break;
    }
    if (scheduler.finished()) {
      scheduled.step.end = true;
      break;
    }
    if (scheduler.in_flight())
      wait_for_tokens();
    else
      idle();
  }
  first_->last_message = steady_seconds();
  for (const Admission& one : scheduled.step.admitted)
    first_->token_time[static_cast<size_t>(one.slot)] = first_->last_message;
  links_.control->send_step(to_words(scheduled.step));
  if (scheduled.step.end)  // after a stop, the steps in flight still return their tokens
    while (scheduler.in_flight()) wait_for_tokens();
  return scheduled;
}

bool Generator::is_unread(int buffer) const {
  return last_ && std::ranges::any_of(last_->unread, [&](const Unread& one) { return one.buffer == buffer; });
}

void Generator::wait_for_free_buffer(int buffer, int64_t previous) {
  if (previous < 0) return;  // nothing was in the buffer in this run
  run_.wait_for_free_buffer(buffer, {previous}, [&] { return runner_.computed(buffer).done() && !is_unread(buffer); });
}

void Generator::collect_results() {
  while (last_ && !last_->unread.empty() && runner_.computed(last_->unread.front().buffer).done()) {
    Unread& one = last_->unread.front();
    if (!one.tokens.empty()) {  // its drafts are being made
      if (!runner_.drafts()->done()) return;
      send_tokens(one);
      last_->unread.pop_front();
      continue;
    }
    const double start = steady_seconds();
    const RankActivity before = links_.watchdog.activity();  // a wait calls this, so its stamp is restored below
    run_.enter(Phase::kWrite, {one.step});
    one.tokens = last_->completions.on_results(one.samples, runner_.results(one.buffer, one.results));
    const bool drafts = make_drafts(one);
    if (!drafts) send_tokens(one);
    last_->on_progress(last_->completions.progress());
    links_.watchdog.enter(before);
    run_.trace(TraceKind::kOutput, Unit{one.step}, start, steady_seconds());
    if (!drafts) last_->unread.pop_front();
  }
}

// Last stage: starts to make the drafts that a step wants after its tokens, which then wait for them. False if none.
bool Generator::make_drafts(Unread& step) {
  if (step.wanted.empty()) return false;
  std::vector<DraftMaker::Text> texts;
  std::span<DrawnToken> left(step.tokens);
  int32_t drawing = 0;
  for (const auto& [index, slot, position] : step.wanted) {
    while (drawing++ < index) pop_entry(left, left.front().drafts);
    const std::span<DrawnToken> own = pop_entry(left, left.front().drafts);
    const CachedSequence& sequence = table_->sequence(slot);
    if (own.back().ends || !sequence.used) continue;
    step.last_tokens.push_back(static_cast<size_t>(&own.back() - step.tokens.data()));
    texts.push_back(
        {.token = own.back().token, .slot = slot, .position = position + std::ssize(own) - 1, .pages = sequence.pages});
  }
  if (texts.empty()) return false;
  runner_.drafts()->enqueue(texts, run_.tag({step.step}, true));
  return true;
}

void Generator::send_tokens(Unread& step) {
  for (size_t text = 0; text < step.last_tokens.size(); ++text)
    step.tokens[step.last_tokens[text]].proposed = runner_.drafts()->drafts(text);
  links_.control->send_tokens(to_words(step.tokens));
}

StepSamples Generator::samples_of(const StepArrays& arrays) const {
  StepSamples samples;
  for (const int32_t slot : arrays.draw_slots) samples.drawn.push_back(table_->sequence(slot).request.sample);
  samples.next_drafts = arrays.next_drafts;
  samples.streamed = arrays.streamed;
  if (plan_.limits.streams_drafts) samples.draws = arrays.draws;
  for (const StepEntry& one : arrays.scored_of)
    samples.scored.push_back({table_->sequence(one.slot).request.sample, one.count});
  for (const StepEntry& one : arrays.hidden_of)
    samples.hidden.push_back({table_->sequence(one.slot).request.sample, one.count});
  return samples;
}

// Last stage: the masks of the step's draws, which depend on all earlier draws of these sequences. In a pipeline these
// have returned before the step was composed.
void Generator::write_masks(const StepArrays& arrays, int buffer) {
  if (plan_.limits.runs_ahead()) run_.wait([&] { return last_->unread.empty(); }, Phase::kCompute, {counts_.steps - 1});
  last_->completions.write_masks(samples_of(arrays), mask_words(links_.stage().config().vocab), runner_.masks(buffer));
}

// Runs a step with entries, whose arrays are in `arrays`.
void Generator::run_step(const ScheduledStep& scheduled, StepArrays& arrays) {
  const int64_t step = counts_.steps;
  const int buffer = static_cast<int>(step % kBuffers);
  run_.enter(Phase::kCompute, {step});
  wait_for_free_buffer(buffer, step - kBuffers);
  if (!links_.first()) run_.receive(buffer, runner_.received(buffer, arrays), {step});
  runner_.upload(arrays, scheduled.ids, buffer);
  const bool masked = last_ && arrays.constrained;
  if (masked && !links_.first()) write_masks(arrays, buffer);  // while earlier stages compute
  if (!links_.first()) run_.wait_for_arrival(buffer, {step});
  const auto wait_until_computed = [&] {
    run_.wait([&] { return runner_.all_computed(); }, Phase::kCompute, {step - 1});
  };
  runner_.enqueue(arrays, buffer, step, wait_until_computed);
  if (masked && links_.first()) write_masks(arrays, buffer);  // while this stage computes the layers
  if (masked) runner_.enqueue_results(arrays, buffer, step, wait_until_computed);
  if (last_) {
    last_->unread.push_back({buffer, step, samples_of(arrays), runner_.result_shape(arrays), arrays.wanted_drafts});
  } else {
    run_.send(buffer, runner_.sent(buffer, arrays), runner_.computed(buffer), {step});
  }
  ++counts_.steps;
  counts_.largest_step = std::max(counts_.largest_step, std::ssize(scheduled.step.entries));
  run_.collect_times();
}

void Generator::run(RequestSource* requests, const std::vector<CompletionConsumer*>& consumers,
                    const std::function<void(int64_t)>& on_progress, const std::function<bool()>& stop,
                    const TokenText& token_text, grammar::ConstraintCache* constraints) {
  run_.begin(stop);
  generation_times_ = {};
  counts_ = {};
  finished_ = false;
  table_.emplace(plan_.limits.caches, plan_.tail_length(links_.stage().config()));
  if (links_.last())
    last_.emplace(Last{OpenCompletions(consumers, token_text, plan_.live, constraints), {}, on_progress});
  if (links_.first())
    first_.emplace(First{*requests,
                         Scheduler(*requests, plan_.limits, plan_.drafters, steady_seconds, table_->windows()),
                         std::vector<double>(static_cast<size_t>(plan_.limits.caches.slots), 0), steady_seconds()});
  StepArrays arrays;
  while (true) {
    const ScheduledStep scheduled = next_step();
    if (scheduled.step.end) break;
    if (last_) last_->completions.apply(scheduled.step);
    table_->apply(scheduled.step, plan_.table_width(), arrays);
    if (!scheduled.step.entries.empty()) run_step(scheduled, arrays);
    share_times();
  }
  for (int64_t step = counts_.steps; step < counts_.steps + kBuffers; ++step)
    wait_for_free_buffer(static_cast<int>(step % kBuffers), step - kBuffers);
  finished_ = !first_ || first_->scheduler.finished();
  if (first_) counts_.scheduled = first_->scheduler.counts();
  run_.end();
}

}  // namespace lfm2
