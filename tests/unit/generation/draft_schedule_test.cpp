// The scheduler with drafts: what is accepted, what is voided, which steps run ahead, and random conversations.
#include "support/draft_simulation.h"

namespace lfm2::test {
namespace {

TEST(DraftScheduleTest, RightDraftsAreAllAccepted) {
  for (const int64_t stages : {1, 3})
    for (const int64_t drafts : {1, 2, 4, 9}) {
      const DraftSimulation simulation = one_text(Guess::kRight, drafts, stages);
      // The first token follows the prompt; then each step brings one token more than its drafts.
      EXPECT_EQ(simulation.steps, 1 + (39 + drafts) / (drafts + 1)) << drafts;
      EXPECT_EQ(std::reduce(simulation.counts.accepted.begin(), simulation.counts.accepted.end()),
                simulation.counts.draft_tokens);
      EXPECT_EQ(simulation.counts.draft_tokens, 40 - simulation.steps);
    }
}

TEST(DraftScheduleTest, WrongDraftsCostNoToken) {
  for (const Guess kind : {Guess::kWrong, Guess::kLate, Guess::kRandom, Guess::kWrongLater})
    for (const int64_t drafts : {1, 2, 4, 9}) one_text(kind, drafts, 1);
  const DraftSimulation wrong = one_text(Guess::kWrong, 4, 1);
  EXPECT_EQ(wrong.steps, 40);
  EXPECT_EQ(wrong.counts.draft_rounds, 38);  // neither the step of the prompt nor the last one has drafts
  EXPECT_EQ(std::reduce(wrong.counts.accepted.begin(), wrong.counts.accepted.end()), 0);
}

// A text without repetitions is not held up: its sequence runs ahead.
TEST(DraftScheduleTest, NoMatchRunsAhead) {
  DraftSimulation simulation{draft_limits(1, 1, 4, 30, 4), {}, [](const Request&, int64_t) {
                               struct Silent : Drafter {
                                 Tokens propose(std::span<const int32_t>, int64_t) override { return {}; }
                                 bool may_propose(std::span<const int32_t>, int64_t) override { return false; }
                               };
                               return std::make_unique<Silent>();
                             }};
  simulation.requests.push_back(draft_request(0, {1, 2}, 20));
  LiveRequests source(simulation.requests, {0}, {-1});
  simulation.run(source);
  EXPECT_GT(simulation.ahead, 0);
}

// With fewer sequences than stages, drafts follow their tokens through the stages that would idle.
TEST(DraftScheduleTest, DraftsAreStreamedThroughIdleStages) {
  for (const int64_t stages : {2, 3, 4})
    for (const Guess guess : {Guess::kRight, Guess::kWrong, Guess::kLate, Guess::kRandom, Guess::kWrongLater}) {
      DraftSimulation simulation{draft_limits(stages, 1, 4, 30, 3), {}, drafters_of({guess})};
      simulation.limits.streams_drafts = true;
      simulation.requests.push_back(draft_request(0, {1, 2}, 40));
      LiveRequests source(simulation.requests, {0}, {-1});
      simulation.run(source);
      EXPECT_GT(simulation.streamed, 0);
      const auto tokens = std::ssize(simulation.texts[0]) - 2;
      if (guess == Guess::kRight) {  // each step draws a token, and its draft follows it, unless the text has ended
        EXPECT_EQ(simulation.counts.accepted_tokens(), tokens - 1);
        EXPECT_LE(simulation.steps, tokens + stages - 1);
      }
      if (guess == Guess::kWrong) {
        EXPECT_EQ(simulation.counts.accepted_tokens(), 0);
      }
    }
}

// Penalties keep a sequence from streaming, and its steps are measured, so that a number can be chosen.
TEST(DraftScheduleTest, ASequenceThatCannotStreamHasBlocks) {
  DraftSimulation simulation{draft_limits(3, 1, 4, 80, 3), {}, drafters_of({Guess::kRight})};
  simulation.limits.streams_drafts = true;
  simulation.limits.fixed_drafts = false;
  simulation.requests.push_back(draft_request(0, {1, 2}, 100));
  simulation.requests.back().rule.repetition_penalty = 2;
  LiveRequests source(simulation.requests, {0}, {-1});
  simulation.run(source);
  EXPECT_EQ(simulation.streamed, 0);
  EXPECT_GT(simulation.counts.draft_tokens, 0);
}

// Drafts take no page that another sequence needs.
TEST(DraftScheduleTest, DraftsPreemptNothing) {
  for (const bool drafts : {false, true}) {
    DraftSimulation simulation{draft_limits(1, 3, 2, 3 * 12, 5), {}, {}};
    if (drafts) simulation.drafters = drafters_of({Guess::kWrong});
    for (int32_t sample = 0; sample < 3; ++sample)
      simulation.requests.push_back(draft_request(sample, {sample, 1}, 22));
    LiveRequests source(simulation.requests, {0, 0, 0}, {-1, -1, -1});
    simulation.run(source);
    EXPECT_EQ(simulation.counts.preemptions, 0);
  }
}

// Conversations and prompts that begin alike come, go and are cancelled, with few pages and drafters of all kinds.
TEST(DraftScheduleTest, RandomConversations) {
  std::mt19937 random(17);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  SchedulerCounts sum;
  int64_t ahead = 0, streamed = 0, accepted = 0, gone = 0;
  for (int job = 0; job < 150; ++job) {
    SCOPED_TRACE(job);
    DraftSimulation simulation{{}, {}, drafters_of({Guess::kRandom, Guess::kRight, Guess::kWrongLater, Guess::kLate})};
    if (job % 3 == 0) simulation.drafters = drafters_of({Guess::kRandom, Guess::kNone, Guess::kWrong});
    std::vector<Request>& requests = simulation.requests;
    std::vector<int64_t> comes, leaves;
    int64_t longest = 0;
    const int64_t count = between(2, 30), page = between(1, 7);
    for (int32_t sample = 0; sample < count; ++sample) {
      Tokens prompt(static_cast<size_t>(between(0, 12)), static_cast<int32_t>(between(0, 1)));
      if (sample > 0 && between(0, 3) > 0) {  // the next turn of a conversation, or another end of one
        prompt = plain_text(requests[static_cast<size_t>(between(0, sample - 1))]);
        prompt.resize(std::min<size_t>(prompt.size(), static_cast<size_t>(between(1, 80))));
      }
      for (int64_t more = between(1, 6); more > 0; --more) prompt.push_back(static_cast<int32_t>(between(0, 4)));
      Request& request = requests.emplace_back(draft_request(sample, prompt, between(1, 30)));
      if (between(0, 2) == 0) request.rule.repetition_penalty = 2;
      if (between(0, 9) == 0) request.prompt_log_probs = true;
      if (between(0, 9) == 0) request.draft = false;
      comes.push_back((comes.empty() ? 0 : comes.back()) + between(0, 12));
      leaves.push_back(between(0, 4) == 0 ? comes.back() + between(0, 30) : -1);
      longest = std::max(longest, std::ssize(prompt) + request.max_new);
    }
    const int64_t slots = between(1, 8), drafts = between(1, 9);
    LiveRequests source(requests, comes, leaves);
    simulation.limits =
        draft_limits(between(1, 4), slots, page, pages_for(longest, page) * between(2, 2 + slots) / 2, drafts);
    simulation.limits.draft_rows = between(1, simulation.limits.draft_rows);
    simulation.limits.fixed_drafts = job % 2 == 0;
    simulation.limits.streams_drafts = job % 4 < 3;
    simulation.limits.caches.keeps_prefixes = job % 5 != 4;
    simulation.run(source);
    if (HasFailure()) return;
    sum.preemptions += simulation.counts.preemptions;
    sum.draft_rounds += simulation.counts.draft_rounds;
    sum.draft_tokens += simulation.counts.draft_tokens;
    accepted += std::reduce(simulation.counts.accepted.begin(), simulation.counts.accepted.end());
    ahead += simulation.ahead;
    streamed += simulation.streamed;
    gone += std::ssize(source.gone);
  }
  EXPECT_GT(sum.preemptions, 50);
  EXPECT_GT(sum.draft_rounds, 3000);
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(sum.draft_tokens - accepted, 2000);
  EXPECT_GT(ahead, 100);
  EXPECT_GT(streamed, 500);
  EXPECT_GT(gone, 100);
}

}  // namespace
}  // namespace lfm2::test
