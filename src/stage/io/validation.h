// --reference: compares every row with a reference and sums up.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/words.h"
#include "stage/io/results.h"

namespace lfm2 {

struct Verdict {
  int64_t rows = 0;
  int64_t top1_equal = 0;         // rows whose largest logit (ties: lower id) is the reference's
  double largest_difference = 0;  // NaN where one side is NaN and the other is not
  double mean_kl = 0;             // mean over rows of KL(softmax(reference) || softmax(ours)), nats
  double tolerance = 0;
  bool of_scores = false;  // --score: a row is a scored token, and there is no divergence
  bool valid() const { return rows > 0 && largest_difference <= tolerance; }
};
void for_each_field(MaybeConst<Verdict> auto& verdict, const auto& each) {  // see base/words.h
  each(verdict.rows, verdict.top1_equal, verdict.largest_difference, verdict.mean_kl, verdict.tolerance,
       verdict.of_scores);
}

// Reference logits by row; or the log-probability of a scored token, and 1 if it is the top-1 token, else 0.
class Reference {
 public:
  virtual ~Reference() = default;
  virtual void read(int64_t first, int64_t count, std::vector<float>& into) const = 0;
};

// .bin as in outputs.bin; .h5 with `logits` [samples, vocab], [tokens, vocab] or [samples, length, vocab]: where the
// file holds every position and the job wants the last ones, those are taken. Error(kData) where samples, positions or
// vocab differ from the job's.
std::unique_ptr<Reference> open_reference(const std::filesystem::path& path, Positions positions,
                                          const SampleOffsets& offsets, int64_t vocab);

// With --score: .h5 with `logprobs` and `is_greedy` [scored tokens], as an output of --score has them. Error(kData) for
// another number than `rows`.
std::unique_ptr<Reference> open_score_reference(const std::filesystem::path& path, int64_t rows);

class Validation : public ResultConsumer {
 public:
  Validation(std::unique_ptr<Reference> reference, int64_t vocab, double tolerance)
      : reference_file_(std::move(reference)), vocab_(vocab), tolerance_(tolerance) {}
  void start_over() { sums_ = {}; }  // a benchmark emits the results again
  void consume(const ResultRows& rows) override;
  Verdict verdict() const;

 private:
  void compare_logits(std::span<const float> ours, std::span<const float> reference);
  void add_difference(float ours, float reference);

  std::unique_ptr<Reference> reference_file_;
  int64_t vocab_;
  double tolerance_;
  Verdict sums_;  // mean_kl holds the sum until verdict()
  std::vector<float> reference_;
};

}  // namespace lfm2
