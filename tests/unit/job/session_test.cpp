// One pipeline of four threads, loaded once, that does job after job: each answer has the bits of a run of its own.
#include "stage/job/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "stage/generation/generator.h"
#include "stage/io/inputs/input_file.h"
#include "stage/scoring/scorer.h"
#include "support/golden.h"
#include "support/live_requests.h"
#include "support/loaded_stage.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

constexpr const char* kCase = "tiny-moe";

// Stages that are threads. Every stage does the same work on its session.
class Threads {
 public:
  explicit Threads(size_t stages) : stages_(stages) {}

  // Rethrows the first error. How often a channel was made, by stage 0.
  int run(const std::function<void(size_t stage, Session& session)>& work) {
    const ShardSet shards = ShardSet::open(golden_shards(kCase, 4));
    const std::vector<LayerRange> ranges = equal_partition(shards.config().layers, static_cast<int64_t>(stages_));
    std::vector<LocalLink> links(stages_);
    LocalControlHub hub(stages_);
    LocalBoard board(stages_);
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(stages_);
    int channels = 0;
    for (size_t stage = 0; stage < stages_; ++stage)
      threads.emplace_back([&, stage] {
        try {
          CpuBackend backend(1);
          Watchdog watchdog = board.watchdog(stage);
          Progress progress("", 0, Progress::Unit::kBytes, ProgressMode::kOff);
          const auto make_channel = [&](const ChannelShape&) {
            if (stage == 0) ++channels;
            return std::make_unique<LocalChannel>(stage == 0 ? nullptr : &links[stage - 1],
                                                  stage + 1 == stages_ ? nullptr : &links[stage]);
          };
          Session session(shards,
                          {.backend = backend,
                           .watchdog = watchdog,
                           .index = static_cast<int64_t>(stage),
                           .stages = static_cast<int64_t>(stages_),
                           .pieces = {ranges[stage]},
                           .compute = DType::kF32,
                           .make_channel = make_channel,
                           .control = std::make_unique<LocalControlLink>(hub, stage)},
                          progress, 1);
          work(stage, session);
        } catch (...) {
          errors[stage] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    return channels;
  }

 private:
  size_t stages_;
};

class KeptCompletions : public CompletionConsumer {
 public:
  void consume(const Completion& completion) override {
    EXPECT_TRUE(all.emplace(completion.sample, completion).second) << "a sample twice";
  }
  std::map<int64_t, Completion> all;
};

void score_samples(Session& session, bool first, const Samples& samples, const MicroBatches& micro_batches,
                   LogitsCollector& rows) {
  EXPECT_EQ(micro_batches.plan().samples, samples.count());
  Scorer scorer(session.links(), micro_batches.plan(), session.compute(), {});
  FrontBatches source(micro_batches);
  scorer.run(first ? &source : nullptr, {&rows}, [](const MicroBatch&) {});
  EXPECT_TRUE(scorer.finished());
}

std::vector<float> scored_alone(const Samples& samples) {
  const MicroBatches micro_batches(samples.offsets, samples.ids, {1, 0});
  LogitsCollector rows;
  Threads(1).run([&](size_t, Session& session) { score_samples(session, true, samples, micro_batches, rows); });
  return rows.logits;
}

// Each with a rule, a limit and a prompt of its own.
std::vector<Request> requests_of(const ModelConfig& config) {
  std::vector<Request> requests;
  for (int32_t sample = 0; sample < 24; ++sample) {
    const Samples prompt = random_samples(1, 1 + sample * 7 % 31, static_cast<uint64_t>(sample), config.vocab);
    requests.push_back({.sample = sample,
                        .prompt = {prompt.ids.begin(), prompt.ids.end()},
                        .max_new = 3 + sample * 5 % 29,
                        .rule = {.temperature = sample % 3 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(sample),
                                 .top_k = sample % 4 == 0 ? 0 : 30,
                                 .top_p = sample % 5 == 0 ? 1.0f : 0.9f,
                                 .seed = static_cast<uint64_t>(sample) << 33},
                        .eos_tokens = sample % 2 == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{3, 9, 17}});
  }
  return requests;
}

GenerationPlan plan_of(int64_t stages, int64_t slots, int64_t pages) {
  return {.longest = 64,
          .top_k = 0,
          .limits = {.steps_in_flight = stages,
                     .max_sequences = (slots + stages - 1) / stages,
                     .prompt_tokens = 16,
                     .caches = {.slots = slots, .pages = pages, .page_size = 4}}};
}

Completion completed_alone(const Request& request) {
  KeptCompletions completions;
  LiveRequests source({request}, {0}, {-1});
  Threads(1).run([&](size_t, Session& session) {
    const GenerationPlan plan = plan_of(1, 1, 16);
    Generator generator(session.links(), plan, session.compute());
    generator.run(&source, {&completions}, [](int64_t) {});
  });
  return completions.all.at(request.sample);
}

TEST(SessionTest, JobAfterJobOnALoadedPipelineHasTheBitsOfRunsOfTheirOwn) {
  const ModelConfig config = ShardSet::open(golden_shards(kCase, 4)).config();
  const Samples few = random_samples(5, 9, 1, config.vocab), long_ones = random_samples(3, 40, 2, config.vocab);
  const MicroBatches of_few(few.offsets, few.ids, {2, 0}), of_long_ones(long_ones.offsets, long_ones.ids, {1, 0});
  const std::vector<Request> requests = requests_of(config);
  std::vector<int64_t> comes, leaves;
  for (size_t i = 0; i < requests.size(); ++i) {
    comes.push_back(static_cast<int64_t>(i) * (i < 12 ? 2 : 40));  // the last ones when nothing is left to do
    leaves.push_back(i % 5 == 1 ? comes.back() + 1 + static_cast<int64_t>(i) : -1);
  }
  LiveRequests source(requests, comes, leaves);
  LogitsCollector first, second;
  KeptCompletions completions;
  const GenerationPlan plan = plan_of(4, 8, 40);
  const int channels = Threads(4).run([&](size_t stage, Session& session) {
    score_samples(session, stage == 0, few, of_few, first);
    score_samples(session, stage == 0, long_ones, of_long_ones, second);
    Generator generator(session.links(), plan, session.compute());
    generator.run(stage == 0 ? &source : nullptr, {&completions}, [](int64_t) {});
    EXPECT_TRUE(generator.finished());
    EXPECT_EQ(generator.used_slots(), 0) << "stage " << stage;
    EXPECT_EQ(generator.free_pages(), plan.limits.caches.pages) << "stage " << stage;
  });
  EXPECT_EQ(channels, 1);  // the later jobs take the channel of the first
  EXPECT_EQ(first.logits, scored_alone(few));
  EXPECT_EQ(second.logits, scored_alone(long_ones));
  EXPECT_GE(source.gone.size(), 3u);
  for (const Request& request : requests) {
    if (source.gone.contains(request.sample)) continue;
    const Completion alone = completed_alone(request);
    ASSERT_TRUE(completions.all.contains(request.sample)) << request.sample;
    const Completion& found = completions.all.at(request.sample);
    EXPECT_EQ(found.token_ids, alone.token_ids) << request.sample;
    EXPECT_EQ(found.log_probs, alone.log_probs) << request.sample;
    EXPECT_EQ(found.reason, alone.reason) << request.sample;
    // What the first stage was told is what the last one handed out.
    const std::vector<DrawnToken>& told = source.told.at(request.sample);
    ASSERT_EQ(told.size(), alone.token_ids.size());
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].token, alone.token_ids[i]);
      EXPECT_EQ(told[i].log_prob, alone.log_probs[i]);
      EXPECT_EQ(told[i].ends.has_value(), i + 1 == told.size());
    }
  }
}

// Nobody asks for anything for longer than a stall may last.
TEST(SessionTest, IdleIsNoStall) {
  class LateRequest : public LiveRequests {
   public:
    LateRequest(std::vector<Request> requests, double at) : LiveRequests(std::move(requests), {0}, {-1}), at_(at) {}
    int64_t waiting() const override { return steady_seconds() < at_ ? 0 : LiveRequests::waiting(); }

   private:
    double at_;
  };
  const ModelConfig config = ShardSet::open(golden_shards(kCase, 4)).config();
  const Request request = requests_of(config)[3];
  LateRequest source({request}, steady_seconds() + 2.5);
  KeptCompletions completions;
  const GenerationPlan plan = plan_of(2, 2, 32);
  const ShardSet shards = ShardSet::open(golden_shards(kCase, 4));
  LocalLink link;
  LocalControlHub hub(2);
  LocalBoard board(2);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2);
  for (size_t stage = 0; stage < 2; ++stage)
    threads.emplace_back([&, stage] {
      try {
        LoadedStage loaded(kCase, equal_partition(config.layers, 2)[stage], DType::kF32);
        LocalChannel channel(stage == 0 ? nullptr : &link, stage == 0 ? &link : nullptr);
        LocalControlLink control(hub, stage);
        Watchdog watchdog = board.watchdog(stage, 0.8);
        Generator generator(
            {loaded.backend, loaded.pieces, &channel, &control, static_cast<int64_t>(stage), 2, watchdog}, plan,
            DType::kF32);
        generator.run(stage == 0 ? &source : nullptr, {&completions}, [](int64_t) {});
      } catch (const std::exception& error) {
        errors[stage] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(completions.all.at(request.sample).token_ids, completed_alone(request).token_ids);
}

}  // namespace
}  // namespace lfm2::test
