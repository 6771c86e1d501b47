// One thread a rank, with channels in memory.
#include "support/scoring_run.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "stage/scoring/scorer.h"
#include "support/golden.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"

namespace lfm2::test {

bool run_scoring(const std::string& golden_case, const Cut& cut, const Samples& samples, MicroBatches::Size size,
                 ResultKind kind, DType compute, int threads, ResultConsumer& collector,
                 const std::function<bool()>& stop, LateParts late) {
  const MicroBatches micro_batches(samples.offsets, samples.ids, size, kind.score ? &samples.scored : nullptr);
  BatchPlan plan = micro_batches.plan();
  plan.late = late;
  const size_t stages = cut.ranges.size() / static_cast<size_t>(cut.pieces);
  const bool ring = cut.pieces > 1;
  const int most =
      Schedule::max_buffers({static_cast<int64_t>(stages), cut.pieces}, micro_batches.plan().micro_batches);
  std::vector<LocalLink> links(stages);  // from each rank to the next
  LocalControlHub hub(stages);
  LocalBoard board(stages);
  std::vector<std::thread> ranks;
  std::vector<std::exception_ptr> errors(stages);
  std::atomic<bool> finished = true;
  for (size_t rank = 0; rank < stages; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        LoadedStage loaded(golden_case, pieces_of(cut.ranges, static_cast<int64_t>(stages), static_cast<int64_t>(rank)),
                           compute, threads);
        LocalChannel channel(rank > 0 || ring ? &links[(rank + stages - 1) % stages] : nullptr,
                             rank + 1 < stages || ring ? &links[rank] : nullptr, rank == 0 ? most : kBuffers);
        LocalControlLink control(hub, rank);
        Watchdog watchdog = board.watchdog(rank);
        Scorer scorer({.backend = loaded.backend,
                       .pieces = loaded.pieces,
                       .channel = &channel,
                       .control = &control,
                       .index = static_cast<int64_t>(rank),
                       .stages = static_cast<int64_t>(stages),
                       .watchdog = watchdog},
                      plan, compute, kind);
        FrontBatches source(micro_batches);
        scorer.run(
            rank == 0 ? &source : nullptr, {&collector}, [](const MicroBatch&) {},
            rank == 0 ? stop : std::function<bool()>());
        if (!scorer.finished()) finished = false;
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return finished;
}

std::vector<float> score(const std::string& golden_case, const Cut& cut, const Samples& samples, int64_t micro_batch,
                         Positions positions, DType compute, int threads) {
  LogitsCollector collector;
  run_scoring(golden_case, cut, samples, {micro_batch}, {.positions = positions}, compute, threads, collector);
  return collector.logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Samples golden_samples(const std::string& golden_case) {
  return read_samples(golden_dir() / golden_case / "golden.h5", {1 << 20, 1 << 20, 0});
}

Samples ragged_samples(int64_t vocab) {
  Samples all{.ids = {}, .offsets = {0}};
  for (int64_t length : {1, 7, 2, 30, 1, 3, 12}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab);
    all.ids.append(one.ids);
    all.offsets.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

}  // namespace lfm2::test
