// --score: which tokens are scored, the bytes and words of their text, and the sums for perplexity. Rank 0 finds the
// tokens; the last stages write their scores and add them up.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "base/words.h"
#include "stage/io/results.h"

namespace lfm2 {

struct Samples;
class Tokenizer;

// Completes samples.scored: if the input names no targets, every token of a sample but the first is scored. With a
// tokenizer it also counts the text of the scored tokens: samples.scored_bytes and .scored_words. Error(kData) naming
// `what` for a sample without a token to score. `pulse` is called from time to time.
void find_scored(Samples& samples, const Tokenizer* tokenizer, const std::string& what,
                 const std::function<void()>& pulse);

// A sum that does not depend on the order or grouping of its values, because it adds integers. Values are rounded to
// multiples of 2^-32, and clamped to 2^31.
class OrderFreeSum {
 public:
  OrderFreeSum() = default;
  OrderFreeSum(int64_t whole, uint64_t parts) : whole_(whole), parts_(parts) {}
  void add(double value);
  void add(const OrderFreeSum& other);
  double value() const { return static_cast<double>(whole_) + static_cast<double>(parts_) * 0x1p-32; }
  int64_t whole() const { return whole_; }
  uint64_t parts() const { return parts_; }  // below 2^32, in units of 2^-32
  bool operator==(const OrderFreeSum&) const = default;
  friend void for_each_field(MaybeConst<OrderFreeSum> auto& sum, const auto& each) {  // see base/words.h
    each(sum.whole_, sum.parts_);
  }

 private:
  int64_t whole_ = 0;
  uint64_t parts_ = 0;
};

struct ScoreSums {
  int64_t tokens = 0;      // scored tokens
  int64_t greedy = 0;      // scored tokens that are top-1
  int64_t not_finite = 0;  // scored tokens whose log-probability is not finite; no sum includes them
  OrderFreeSum log_probs, squares;

  void add(float log_prob, bool is_greedy);
  void add(const ScoreSums& other);
  bool operator==(const ScoreSums&) const = default;
};
void for_each_field(MaybeConst<ScoreSums> auto& sums, const auto& each) {  // see base/words.h
  each(sums.tokens, sums.greedy, sums.not_finite, sums.log_probs, sums.squares);
}

OrderedJson as_json(const ScoreSums& sums);  // without loss of precision

// exp(-Σ log-probability / units), with its standard error. The error of the sum treats tokens as independent, and is
// propagated through the exponential. Both are NaN if a log-probability is not finite; the error also for a single
// token.
struct Perplexity {
  double value = 0, standard_error = 0;
};
// `units`: the number of scored tokens, or of words or bytes of their text.
Perplexity perplexity(const ScoreSums& sums, int64_t units);

// Adds up the scores that it consumes.
class ScoreCounter : public ResultConsumer {
 public:
  void consume(const ResultRows& rows) override;
  const ScoreSums& sums() const { return sums_; }

 private:
  ScoreSums sums_;
};

// The line of a sample in .jsonl: "logprobs", "is_greedy", "sum_logprob", "tokens" and "bytes" (null if `bytes` is
// negative, which means unknown).
class ScoreLine {
 public:
  void add(float log_prob, bool is_greedy);
  std::string pop_line(std::string_view name, int64_t bytes);  // with its line end; starts the next line

 private:
  std::string log_probs_, greedy_;
  double sum_ = 0;
  int64_t tokens_ = 0;
};
// Parses such a line. Error(kData) naming `what` if it is invalid.
struct LineScores {
  std::vector<int32_t> is_greedy;
  std::vector<float> log_probs;
};
LineScores parse_score_line(std::string_view line, const std::string& what);

}  // namespace lfm2
