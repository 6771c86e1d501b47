// Each rank is replayed until it needs a time that another rank has not computed yet.
#include "stage/scoring/planning/replay.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "base/error.h"

namespace lfm2 {

namespace {

struct ReplayedBuffer {
  bool used = false;
  int64_t micro_batch = 0;
  std::optional<double> arrived = {}, free = {};  // nothing: not known yet
  double computed = 0;
};

// The state of one rank's replay.
struct ReplayedRank {
  ReplayedRank(PipelineShape pipeline, int64_t stage_number, int64_t micro_batches, double& free_device)
      : schedule(pipeline, stage_number, micro_batches),
        stage(stage_number),
        stages(pipeline.stages),
        device(&free_device),
        next(schedule.next()),
        buffers(static_cast<size_t>(schedule.buffers())) {}

  // When the next action could begin to compute if the device were free; nothing if it does not compute, or the time is
  // not known yet.
  std::optional<double> could_compute() const;
  bool finished() const { return !next && sends.empty() && receives.empty(); }
  ReplayedBuffer& buffer(int index) { return buffers[static_cast<size_t>(index)]; }
  bool carry_out_next(const ActionTimes& times);
  bool carry_out(const Action& action, const ActionTimes& times);

  Schedule schedule;
  int64_t stage, stages;
  double* device;  // when the device is free; ranks may share one
  std::optional<Action> next;
  std::vector<ReplayedBuffer> buffers;
  double host = 0, compute = 0, edge = 0;  // when host, compute stream and the edge to the next rank are free
  double results = 0;                      // when all that was computed so far is emitted
  double busy = 0;
  struct Posted {
    double at;
    int buffer;
  };
  std::deque<Posted> sends, receives;
};

std::optional<double> ReplayedRank::could_compute() const {
  if (!next) return {};
  const ReplayedBuffer& used = buffers[static_cast<size_t>(next->buffer)];
  if (next->kind == ActionKind::kGiveResult) return std::max(compute, used.computed);
  if (next->kind != ActionKind::kForward || !used.arrived) return {};
  return std::max({compute, host, *used.arrived});
}

// Returns false if the action waits for a time that is not known yet.
bool ReplayedRank::carry_out(const Action& action, const ActionTimes& times) {
  ReplayedBuffer& used = buffer(action.buffer);
  const auto computes = [&](double from, double seconds) {
    compute = std::max(compute, from);
    if (seconds == 0) return;
    compute = std::max(compute, *device) + seconds;
    *device = compute;
    busy += seconds;
    if (times.on_computed)
      times.on_computed({.stage = stage,
                         .piece = action.piece,
                         .micro_batch = action.micro_batch,
                         .head = action.kind == ActionKind::kGiveResult,
                         .start = compute - seconds,
                         .end = compute});
  };
  switch (action.kind) {
    case ActionKind::kTakeTokens:
    case ActionKind::kReceive:
      if (used.used && !used.free) return false;
      if (used.used) host = std::max(host, *used.free);
      used = {.used = true, .micro_batch = action.micro_batch};
      if (action.kind == ActionKind::kTakeTokens)
        used.arrived = host;
      else
        receives.push_back({host, action.buffer});
      return true;
    case ActionKind::kForward:
      if (!used.arrived) return false;
      host = std::max(host, *used.arrived);
      computes(host, times.forward ? times.forward(action.piece * stages + stage, action.micro_batch) : 0);
      used.computed = compute;
      return true;
    case ActionKind::kSend:
      sends.push_back({used.computed, action.buffer});
      return true;
    case ActionKind::kGiveResult:
      computes(used.computed, times.head ? times.head(action.micro_batch) : 0);
      used.free = compute;
      if (times.results) results = std::max(results, compute) + times.results(action.micro_batch);
      return true;
  }
  return false;
}

bool ReplayedRank::carry_out_next(const ActionTimes& times) {
  if (!carry_out(*next, times)) return false;
  next = schedule.next();
  return true;
}

// Matches the sends of an edge with their receives. Returns true if any matched.
bool transfer(ReplayedRank& sender, ReplayedRank& receiver, const ActionTimes& times) {
  bool moved = false;
  while (!sender.sends.empty() && !receiver.receives.empty()) {
    const ReplayedRank::Posted send = sender.sends.front(), receive = receiver.receives.front();
    ReplayedBuffer& from = sender.buffer(send.buffer);
    ReplayedBuffer& into = receiver.buffer(receive.buffer);
    expect(from.micro_batch == into.micro_batch, "replay: a send met the receive of another micro-batch");
    sender.edge =
        std::max({sender.edge, send.at, receive.at}) + (times.transfer ? times.transfer(from.micro_batch) : 0);
    from.free = into.arrived = sender.edge;
    sender.sends.pop_front();
    receiver.receives.pop_front();
    moved = true;
  }
  return moved;
}

// Runs the computation, of all ranks, that can begin first; no unknown time can make another one begin sooner. Returns
// false if no rank has one.
bool compute_first(std::vector<ReplayedRank>& ranks, const ActionTimes& times) {
  ReplayedRank* first = nullptr;
  double start = 0;
  for (ReplayedRank& rank : ranks) {
    const std::optional<double> could = rank.could_compute();
    if (!could || (first != nullptr && *could >= start)) continue;
    first = &rank;
    start = *could;
  }
  return first != nullptr && first->carry_out_next(times);
}

}  // namespace

Replayed replay(PipelineShape shape, int64_t micro_batches, const ActionTimes& times, std::span<const int> devices) {
  const bool shared = !devices.empty();
  std::map<int64_t, double> free_devices;
  std::vector<ReplayedRank> ranks;
  for (int64_t stage = 0; stage < shape.stages; ++stage)
    ranks.emplace_back(shape, stage, micro_batches, free_devices[shared ? devices[static_cast<size_t>(stage)] : stage]);
  const auto finished = [](const ReplayedRank& rank) { return rank.finished(); };
  while (!std::all_of(ranks.begin(), ranks.end(), finished)) {
    bool moved = false;
    for (size_t stage = 0; stage < ranks.size(); ++stage) {
      ReplayedRank& rank = ranks[stage];
      while (rank.next && !(shared && rank.could_compute()) && rank.carry_out_next(times)) moved = true;
      moved |= transfer(rank, ranks[(stage + 1) % ranks.size()], times);
    }
    if (!moved && shared) moved = compute_first(ranks, times);
    expect(moved, "replay: the schedule deadlocks");
  }
  Replayed result;
  for (const ReplayedRank& rank : ranks) {
    result.seconds = std::max({result.seconds, rank.compute, rank.results});
    result.busy.push_back(rank.busy);
  }
  return result;
}

double pipeline_seconds(const PipelineCosts& costs, int64_t micro_batches, int64_t tokens, int64_t last_tokens) {
  const auto seconds_of = [&](int64_t count) {
    const auto size = [&](int64_t micro_batch) {
      return static_cast<double>(micro_batch + 1 == count ? last_tokens : tokens);
    };
    const ActionTimes times{
        .forward =
            [&](int64_t virtual_stage, int64_t micro_batch) {
              return costs.virtual_stages[static_cast<size_t>(virtual_stage)].seconds(size(micro_batch));
            },
        .transfer = [&](int64_t micro_batch) { return costs.transfer.seconds(size(micro_batch)); },
        .head = {},
        .results = [&](int64_t micro_batch) { return costs.result_seconds * size(micro_batch); }};
    return replay(costs.shape, count, times, costs.devices).seconds;
  };
  const int64_t replayed = replayed_part(costs.shape);
  if (micro_batches <= 2 * replayed) return seconds_of(micro_batches);
  const double part = seconds_of(replayed), twice = seconds_of(2 * replayed);
  return twice + (twice - part) / static_cast<double>(replayed) * static_cast<double>(micro_batches - 2 * replayed);
}

}  // namespace lfm2
