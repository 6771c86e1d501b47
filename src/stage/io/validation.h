// --reference: compares every row with a reference and collects the differences.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/words.h"
#include "stage/io/results.h"

namespace lfm2 {

// A sum of numbers below 2^40, to 2^-50 each. It is one of integers, so the order of the rows does not matter.
struct OrderlessSum {
  int64_t coarse = 0, fine = 0;  // in units of 2^-20 and of 2^-50
  int64_t not_summed = 0;        // larger numbers, infinities and NaN, for which the sum is NaN
  void add(double x);
  void add(const OrderlessSum& other);
  double value() const;
};
void for_each_field(MaybeConst<OrderlessSum> auto& sum, const auto& each) {  // see base/words.h
  each(sum.coarse, sum.fine, sum.not_summed);
}

struct Verdict {
  int64_t rows = 0;
  int64_t top1_equal = 0;         // rows whose top-1 token (ties: lower id) equals the reference's
  double largest_difference = 0;  // NaN if only one side is NaN
  OrderlessSum kl = {};           // over rows, of KL(softmax(reference) || softmax(ours)), nats
  double tolerance = 0;
  bool of_scores = false;  // --score: a row is a scored token, and there is no divergence
  double mean_kl() const { return rows > 0 ? kl.value() / static_cast<double>(rows) : 0; }
  bool valid() const { return rows > 0 && largest_difference <= tolerance; }
};
void for_each_field(MaybeConst<Verdict> auto& verdict, const auto& each) {  // see base/words.h
  each(verdict.rows, verdict.top1_equal, verdict.largest_difference, verdict.kl, verdict.tolerance, verdict.of_scores);
}

// Reference logits by row; with --score, the log-probability of a scored token, and 1 if the token is top-1, else 0.
class Reference {
 public:
  virtual ~Reference() = default;
  virtual void read(int64_t first, int64_t count, std::vector<float>& into) const = 0;
};

// A .bin as in outputs.bin, or an .h5 with `logits` [samples, vocab], [tokens, vocab] or [samples, length, vocab]. If
// the file has every position and the job only last ones, those are compared. Error(kData) if samples, positions or
// vocab differ from the job's.
std::unique_ptr<Reference> open_reference(const std::filesystem::path& path, Positions positions,
                                          const SampleOffsets& offsets, int64_t vocab);

// With --score: an .h5 with `logprobs` and `is_greedy` [scored tokens], as an output of --score. Error(kData) if their
// number is not `rows`.
std::unique_ptr<Reference> open_score_reference(const std::filesystem::path& path, int64_t rows);

class Validation : public ResultConsumer {
 public:
  Validation(std::unique_ptr<Reference> reference, int64_t vocab, double tolerance)
      : reference_file_(std::move(reference)), vocab_(vocab), tolerance_(tolerance) {}
  void start_over() { sums_ = {}; }  // a benchmark repeats the job
  void consume(const ResultRows& rows) override;
  Verdict verdict() const;

 private:
  void compare_logits(std::span<const float> ours, std::span<const float> reference);
  void add_difference(float ours, float reference);

  std::unique_ptr<Reference> reference_file_;
  int64_t vocab_;
  double tolerance_;
  Verdict sums_;
  std::vector<float> reference_;
};

}  // namespace lfm2
