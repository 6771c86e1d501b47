#include "support/generation_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "stage/dspark/dspark_weights.h"
#include "stage/generation/proposed_drafts.h"
#include "stage/io/sample_requests.h"
#include "stage/shards/shard_reader.h"
#include "support/golden.h"
#include "support/loaded_stage.h"
#include "support/local_channel.h"
#include "support/local_control_link.h"
#include "support/local_watchdogs.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

class Collected : public CompletionConsumer {
 public:
  void consume(const Completion& completion) override {
    EXPECT_TRUE(all.emplace(completion.sample, completion).second) << "a sample twice";
  }
  std::map<int64_t, Completion> all;
};

// Remembers what it is told of the stages and the caches.
class ToldRequests : public SampleRequests {
 public:
  using SampleRequests::SampleRequests;
  void stage_seconds(int64_t stage, double busy, double total) override {
    EXPECT_LE(busy, total);
    busy_of[stage] = busy;
  }
  void caches(int64_t used_slots, int64_t used_pages) override {
    most_slots = std::max(most_slots, used_slots);
    most_pages = std::max(most_pages, used_pages);
  }
  void begun(int32_t, int64_t tokens) override { cached += tokens; }  // that the prefix cache had
  std::map<int64_t, double> busy_of;
  int64_t most_slots = 0, most_pages = 0, cached = 0;
};

void plan_for(const Request& request, GenerationPlan& plan) {
  plan.counts |= request.rule.counts();
  plan.constrained |= !request.constraint.empty();
  plan.edits = std::max(plan.edits, static_cast<int64_t>(edits_of(request).size()));
}

CacheShape caches_of(const GenerationSettings& settings, int64_t slots, int64_t longest, int64_t window) {
  CacheShape caches{.slots = slots,
                    .page_size = settings.page_size,
                    .keeps_prefixes = settings.keeps_prefixes,
                    .max_drafts = settings.max_drafts,
                    .window = settings.gives_back ? window : 0};
  caches.set_pages(settings.pages > 0 ? settings.pages : slots * pages_for(longest, settings.page_size),
                   settings.prompt_tokens);
  return caches;
}

// Every page of layers with a window was given back.
void expect_no_windows(const Generator& generator, int64_t* most) {
  if (generator.windows() == nullptr) return;
  EXPECT_EQ(generator.windows()->held(), 0);
  if (most != nullptr) *most = generator.windows()->most_held();
}

// Of a case of golden/dspark; nothing if the name is empty.
std::optional<DsparkFiles> plan_dspark(const std::string& name, GenerationPlan& plan) {
  if (name.empty()) return {};
  DsparkFiles files = DsparkFiles::open(golden_dir() / "dspark" / name);
  plan.taps = files.config.taps;
  plan.limits.asks_for_drafts = true;
  plan.drafters = [](const Request&, int64_t) { return std::make_unique<ProposedDrafts>(); };
  return files;
}

struct LoadedDrafter {
  LoadedDrafter(const DsparkFiles& files, LoadedStage& target)
      : weights(files, target.backend, target.compute, target.stage().embedding(), target.stage().lm_head()),
        model(weights, files.config) {
    weights.finish();
  }
  DsparkWeights weights;
  Dspark model;
};

// The plan of a rank: the last one loads the drafter.
GenerationPlan with_drafter(GenerationPlan plan, const std::optional<DsparkFiles>& files, LoadedStage& target,
                            std::optional<LoadedDrafter>& drafter) {
  if (files && target.stage().last()) plan.dspark = &drafter.emplace(*files, target).model;
  return plan;
}

}  // namespace

std::map<int64_t, Completion> generate(const std::string& golden_case, const Samples& samples,
                                       const GenerationSettings& settings, int64_t* preemptions, int64_t* cached) {
  const ModelConfig config = ShardSet::open(golden_shards(golden_case, 4)).config();
  const std::vector<LayerRange> ranges =
      settings.cut.empty() ? equal_partition(config.layers, settings.stages) : settings.cut;
  const Request each{
      .max_new = settings.max_new, .rule = settings.rule, .eos_tokens = settings.eos_tokens, .stop = settings.stop};
  const RequestDefaults defaults{.of_ids = each, .of_text = each};
  GenerationPlan plan{.top_k = settings.top_k, .limits = {}, .times_interval = settings.times_interval};
  plan_for(each, plan);
  for (const SampleRules& rules : samples.rules.distinct()) plan_for(request_by_rules(defaults, rules, 0), plan);
  for (int64_t i = 0; i < samples.count(); ++i)
    plan.longest =
        std::max(plan.longest, cached_positions(samples.offsets[i + 1] - samples.offsets[i], settings.max_new));
  const int64_t slots = std::min(settings.slots, samples.count());
  plan.limits = {.steps_in_flight = settings.stages,
                 .max_sequences = (slots + settings.stages - 1) / settings.stages,
                 .streams_drafts = settings.streams_drafts,
                 .fixed_drafts = settings.fixed_drafts,
                 .prompt_tokens = settings.prompt_tokens,
                 .caches = caches_of(settings, slots, plan.longest, config.window)};
  plan.limits.draft_rows = settings.max_drafts * plan.limits.max_sequences;
  plan.limits.vocab = config.vocab;
  plan.drafters = settings.drafters;
  const std::optional<DsparkFiles> dspark = plan_dspark(settings.dspark, plan);
  plan.limits.counted_prefixes = plan.longest;
  std::vector<LocalLink> links(ranges.size());
  LocalControlHub hub(ranges.size());
  Collected collected;
  LocalBoard board(ranges.size());
  std::vector<std::thread> ranks;
  std::vector<std::exception_ptr> errors(ranges.size());
  for (size_t rank = 0; rank < ranges.size(); ++rank)
    ranks.emplace_back([&, rank] {
      try {
        LoadedStage loaded(golden_case, ranges[rank], settings.compute, 1, settings.cache);
        std::optional<LoadedDrafter> drafter;
        const GenerationPlan own_plan = with_drafter(plan, dspark, loaded, drafter);
        LocalChannel channel(rank == 0 ? nullptr : &links[rank - 1],
                             rank + 1 == ranges.size() ? nullptr : &links[rank]);
        LocalControlLink control(hub, rank);
        Watchdog watchdog = board.watchdog(rank);
        Generator generator({.backend = loaded.backend,
                             .pieces = loaded.pieces,
                             .channel = &channel,
                             .control = &control,
                             .index = static_cast<int64_t>(rank),
                             .stages = settings.stages,
                             .watchdog = watchdog},
                            own_plan, settings.compute);
        ToldRequests requests(samples, {0, samples.count()}, defaults, config.max_positions);
        generator.run(
            rank == 0 ? &requests : nullptr, {&collected}, [](int64_t) {}, {}, settings.token_text,
            settings.constraints);
        EXPECT_EQ(generator.used_slots(), 0);
        EXPECT_EQ(generator.free_pages(), plan.limits.caches.pages);
        expect_no_windows(generator, rank == 0 ? settings.most_window_pages : nullptr);
        if (rank == 0 && plan.times_interval > 0) {
          EXPECT_EQ(std::ssize(requests.busy_of), settings.stages);
          for (const auto& [stage, busy] : requests.busy_of) EXPECT_GT(busy, 0) << stage;
          EXPECT_EQ(requests.most_slots, slots);
          EXPECT_GE(requests.most_pages, slots);
        }
        if (rank == 0 && preemptions != nullptr) *preemptions = generator.counts().scheduled.preemptions;
        if (rank == 0 && cached != nullptr) *cached = requests.cached;
        if (rank == 0 && settings.counts != nullptr) *settings.counts = generator.counts().scheduled;
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  EXPECT_EQ(std::ssize(collected.all), samples.count());
  return collected.all;
}

Samples ragged_prompts(int64_t vocab) {
  Samples all{.ids = {}, .offsets = {0}};
  for (const int64_t length : {1, 7, 2, 40, 1, 3, 12, 5, 1}) {
    const Samples one = random_samples(1, length, static_cast<uint64_t>(length), vocab);
    all.ids.append(one.ids);
    all.offsets.push_back(static_cast<int64_t>(all.ids.size()));
  }
  return all;
}

void expect_same(const std::map<int64_t, Completion>& found, const std::map<int64_t, Completion>& expected) {
  for (const auto& [sample, completion] : expected) {
    EXPECT_EQ(found.at(sample).token_ids, completion.token_ids) << "sample " << sample;
    EXPECT_EQ(found.at(sample).log_probs, completion.log_probs);
    EXPECT_EQ(found.at(sample).top_log_probs, completion.top_log_probs);
    EXPECT_EQ(found.at(sample).reason, completion.reason);
  }
}

}  // namespace lfm2::test
