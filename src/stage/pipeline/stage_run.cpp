// All waits of the host go through one Wait, which also polls the device, the channel and the request to stop.
#include "stage/pipeline/stage_run.h"

#include <algorithm>

namespace lfm2 {

StageRun::StageRun(const StageLinks& links, RunUnit unit, bool traced, std::function<void()> look_around,
                   Wait::Pace pace)
    : links_(links),
      shape_(links.shape()),
      unit_(unit),
      waiter_(
          links.watchdog,
          [this, look_around = std::move(look_around)] {
            links_.backend.compute().check();
            links_.watchdog.note(links_.backend.activity());
            const bool moved = links_.channel != nullptr && links_.channel->progress();
            look_around();
            pass_on_stop();
            return moved;
          },
          // Without a channel, only the device's signal can end a wait.
          links.channel == nullptr && links.backend.work_done() != nullptr ? Wait::Pace{.eager_seconds = 0} : pace,
          links.backend.work_done()),
      trace_(traced) {}

void StageRun::begin(const std::function<bool()>& stop) {
  start_ = steady_seconds();
  collect_times();  // those of the previous run and of connecting are dropped below
  times_ = {.busy_with = std::vector<double>(links_.pieces.size())};
  overlaps_ = {};
  trace_.clear();
  stop_ = stop;
  passed_on_ = false;
}

void StageRun::end() {
  const double end = steady_seconds();
  times_.total = end - start_;
  collect_times();
  trace(TraceKind::kRun, Unit{}, start_, end);
  overlaps_.finish();
  times_.hidden = overlaps_.hidden_sending();
  times_.receiving = overlaps_.waiting() - overlaps_.hidden_waiting();
}

double StageRun::wait(const std::function<bool()>& done, Phase phase, Unit unit, int64_t peer_stage) {
  return wait_for_rank(done, phase, unit,
                       peer_stage == RankActivity::kNobody
                           ? RankActivity::kNobody
                           : links_.watchdog.rank() + static_cast<int>(peer_stage - links_.index));
}

double StageRun::wait_for_rank(const std::function<bool()>& done, Phase phase, Unit unit, int rank) {
  const double start = trace_.traced() ? steady_seconds() : 0;
  const double waited = waiter_.until(done, activity(phase, unit, rank));
  if (waited > 0) trace(TraceKind::kWait, unit, start, start + waited, phase);
  return waited;
}

void StageRun::receive(int buffer, const Tensor& into, Unit unit) {
  links_.channel->receive(buffer, into);
  trace_.receives(unit, buffer);
}

void StageRun::send(int buffer, const Tensor& from, Event& computed, Unit unit) {
  links_.channel->send(buffer, from, computed);
  trace_.sends(unit, buffer);
}

void StageRun::wait_for_free_buffer(int buffer, Unit before, const std::function<bool()>& computed) {
  if (receives(before)) wait([&] { return links_.channel->delivered(buffer); }, Phase::kReceive, before, previous());
  wait(computed, Phase::kCompute, before);
  if (sends(before)) wait([&] { return links_.channel->sent(buffer); }, Phase::kSend, before, following());
}

void StageRun::wait_for_arrival(int buffer, Unit unit) {
  const double waited = wait([&] { return links_.channel->arrived(buffer); }, Phase::kReceive, unit, previous());
  const double now = steady_seconds();
  overlaps_.waited({0, now - waited, now});
  links_.channel->order_after_arrival(buffer, links_.backend.compute());
}

bool StageRun::first_is_asked_to_stop() const {
  return (stop_ && stop_()) || (links_.control != nullptr && links_.control->asked_to_stop());
}

void StageRun::pass_on_stop() {
  if (links_.control == nullptr) return;
  links_.control->progress();
  if (links_.first() || passed_on_ || !stop_ || !stop_()) return;
  passed_on_ = true;
  links_.control->ask_to_stop();
}

void StageRun::add_to_each(Unit unit, double seconds) {
  if (unit_ != RunUnit::kMicroBatch) return;
  if (unit.number >= StageTimes::kMaxTimed) return times_.busy_each.clear();  // the last ones of a run always do so
  times_.busy_each.resize(times_.busy_with.size());
  std::vector<double>& each = times_.busy_each[static_cast<size_t>(unit.piece)];
  each.resize(std::max(each.size(), static_cast<size_t>(unit.number) + 1));
  each[static_cast<size_t>(unit.number)] += seconds;
}

void StageRun::collect_times() {
  for (const Span& span : links_.backend.compute().pop_finished()) {
    if (span.tag == kUntagged) continue;  // the copy of a step's arrays
    times_.busy += span.end - span.start;
    const Unit unit = unit_of(span.tag);
    times_.busy_with[static_cast<size_t>(unit.piece)] += span.end - span.start;
    add_to_each(unit, span.end - span.start);
    overlaps_.computed(span);
    trace(span.tag % 2 == 0 ? TraceKind::kCompute : TraceKind::kHead, span);
  }
  if (links_.channel == nullptr) return;
  const Channel::Transfers transfers = links_.channel->pop_finished();
  for (const Span& span : transfers.sent) {
    times_.sending += span.end - span.start;
    overlaps_.sent(span);
  }
  trace_.ended(transfers);
}

}  // namespace lfm2
