#include "stage/pipeline/shared_samples.h"

#include <gtest/gtest.h>

namespace lfm2 {
namespace {

// Samples 0, 1, 2 ... with prompts of two tokens; of sample 1 there are three choices.
class Listed : public RequestSource {
 public:
  explicit Listed(int samples) {
    for (int32_t sample = 0; sample < samples; ++sample)
      for (int32_t choice = 0; choice < (sample == 1 ? 3 : 1); ++choice)
        left_.push_back({.sample = choice == 0 ? sample : 100 + choice,
                         .choices = sample == 1 ? 3 : 1,
                         .choice = choice,
                         .first = choice == 0 ? 0 : sample,
                         .prompt = {1, 2},
                         .max_new = 1});
  }
  int64_t waiting() const override { return std::ssize(left_); }
  bool ended() const override { return left_.empty(); }
  std::optional<Request> next() override {
    if (left_.empty()) return {};
    Request first = left_.front();
    left_.pop_front();
    return first;
  }

 private:
  std::deque<Request> left_;
};

SampleToken last_token(int32_t sample) { return {sample, {.ends = FinishReason::kLength}}; }

std::vector<int32_t> pop_all(RequestSource& source) {
  std::vector<int32_t> samples;
  while (const std::optional<Request> request = source.next()) samples.push_back(request->sample);
  return samples;
}

TEST(SharedSamplesTest, GoToWhoeverHasRoom) {
  SharedSamples shared(std::make_unique<Listed>(8), 2, {.sequences = 2, .waiting_tokens = 100});
  RequestSource &first = shared.replica(0), &second = shared.replica(1);
  EXPECT_EQ(first.waiting(), 10);
  EXPECT_EQ(second.next()->sample, 0);
  EXPECT_EQ(second.next()->sample, 1);
  EXPECT_EQ(second.waiting(), 0) << "both of its slots are used";
  EXPECT_FALSE(second.next());
  EXPECT_EQ(pop_all(first), (std::vector<int32_t>{2, 3})) << "the choices of sample 1 stay together";
  second.drawn({{0, {}}, last_token(1)});  // a token that is not the last frees no slot
  EXPECT_EQ(pop_all(second), (std::vector<int32_t>{101}));
  first.drawn({last_token(2), last_token(3)});
  EXPECT_EQ(pop_all(first), (std::vector<int32_t>{4, 5}));
  second.drawn({last_token(0), last_token(101)});
  EXPECT_EQ(pop_all(second), (std::vector<int32_t>{102, 6}));
  first.drawn({last_token(4), last_token(5)});
  EXPECT_EQ(pop_all(first), (std::vector<int32_t>{7}));
  EXPECT_EQ(first.waiting() + second.waiting(), 0);
  first.drawn({last_token(7)});
  EXPECT_FALSE(first.ended()) << "the other replica has open samples";
  second.drawn({last_token(6), last_token(102)});
  EXPECT_TRUE(first.ended());
  EXPECT_TRUE(second.ended());
}

TEST(SharedSamplesTest, PromptsThatWaitTakeRoom) {
  SharedSamples shared(std::make_unique<Listed>(1), 2, {.sequences = 100, .waiting_tokens = 3});
  EXPECT_EQ(pop_all(shared.replica(1)), (std::vector<int32_t>{0}));
  SharedSamples more(std::make_unique<Listed>(8), 2, {.sequences = 100, .waiting_tokens = 3});
  RequestSource& replica = more.replica(0);
  EXPECT_EQ(pop_all(replica), (std::vector<int32_t>{0, 1})) << "two tokens are fewer than three, four are not";
  replica.begun(1, 0);
  EXPECT_EQ(pop_all(replica), (std::vector<int32_t>{101}));
  replica.begun(0, 0);
  replica.begun(0, 0);  // as after a preemption: counts once
  replica.begun(101, 0);
  EXPECT_EQ(pop_all(replica), (std::vector<int32_t>{102, 2}));
}

}  // namespace
}  // namespace lfm2
