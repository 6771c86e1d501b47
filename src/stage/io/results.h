// The results of the last stage, row by row in order, and their consumers: files, validation, the hash of all logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/thread_pool.h"
#include "stage/io/samples/sample_offsets.h"
#include "stage/model/hidden.h"

namespace lfm2 {

enum class Positions : uint8_t { kLast, kAll, kNone };  // --logits: which positions become rows

// What a row of results holds: a job has one kind.
struct ResultKind {
  Positions positions = Positions::kLast;  // what rows are counted by: samples (kLast), or offsets say (kAll)
  int64_t top_k = 0;                       // --top-logprobs: the best top_k instead of all logits
  // --score: a row is a scored token of a sample; instead of logits it has the token's log-probability, and whether it
  // was the top-1 token. `positions` is kAll then, and offsets count scored tokens instead of tokens.
  bool score = false;
  // --hidden: there are hidden states instead of logits. `positions` is kAll for those of all positions, else kLast.
  Hidden hidden = Hidden::kNone;
  int64_t after_layer = 0;  // the states are the residual stream after this number of layers; 0: after the final norm
  // The lines of the job are /v1/embeddings': a sample has a row for each of its inputs. `positions` is kAll then, and
  // offsets count inputs instead of tokens.
  bool embeddings = false;

  int64_t columns() const { return score ? 1 : top_k; }  // of the ids and log-probabilities; 0: there are logits
  // Whether nothing but the last position of each sample is needed of the last stage's layers.
  bool of_last_positions() const {
    return hidden == Hidden::kNone ? positions == Positions::kLast : hidden == Hidden::kLast;
  }
};

std::string_view positions_name(const ResultKind& kind);  // "last", "mean", "all", "none" or "scored"
std::string states_name(const ResultKind& kind);          // "after the final norm", "after layer 3"

// Consecutive rows. Row numbers count samples (kLast) or tokens of the whole job (kAll; scored ones with --score).
struct ResultRows {
  int64_t first = 0, count = 0;
  // [count, vocab]; with --hidden the states, [count, hidden]; empty where columns() > 0.
  std::span<const float> logits = {};
  std::span<const int32_t> top_ids = {};    // --top-logprobs: [count, columns()]
  std::span<const int32_t> is_greedy = {};  // --score: [count], 1 for a top-1 token, else 0
  std::span<const float> log_probs = {};    // [count, columns()], of the tokens in top_ids, or of the scored ones
};

// `count` of `rows`, from its row `skip` on, as rows `first` of the job.
ResultRows some_rows(const ResultRows& rows, int64_t skip, int64_t count, int64_t first);

class ResultConsumer {
 public:
  virtual ~ResultConsumer() = default;
  virtual void consume(const ResultRows& rows) = 0;
};

// Takes each row by itself, and different rows from several threads at once.
class RowConsumer {
 public:
  virtual ~RowConsumer() = default;
  virtual void consume_row(const ResultRows& row) = 0;
};

// Whether results of one row are not finite. Of logits: whether no token can be drawn from them, because one is NaN or
// +infinity, or all are -infinity; log-probabilities of such a row are NaN (kernels/ops.h). Of scores and hidden
// states: whether any is NaN or infinite.
bool is_not_finite(const ResultRows& row, bool states);

// Counts such rows, beside a ResultHash, whose threads have them in their caches.
class NotFiniteRows : public RowConsumer {
 public:
  explicit NotFiniteRows(bool states) : states_(states) {}
  void consume_row(const ResultRows& row) override;
  int64_t count() const { return count_; }
  int64_t first_row() const { return first_row_; }  // its number in the job, where there is one

 private:
  const bool states_;
  std::atomic<int64_t> count_ = 0, first_row_ = std::numeric_limits<int64_t>::max();
};

// The sum of the XXH3-128 of all rows, each with its number as the seed: equal for equal bits, whatever the ranks,
// replicas and micro-batches.
class ResultHash : public ResultConsumer {
 public:
  // `beside` are given each row by the thread that has hashed it, whose cache still holds it.
  explicit ResultHash(ThreadPool* threads = nullptr, std::vector<RowConsumer*> beside = {})
      : threads_(threads), beside_(std::move(beside)) {}
  void consume(const ResultRows& rows) override;
  const std::vector<HashSum>& rows() const { return rows_; }  // of the last consume(), each row alone
  void add(const HashSum& rows) { sum_.add(rows); }           // of rows that an earlier run emitted
  const HashSum& sum() const { return sum_; }
  std::string hex() const { return sum_.hex(); }

 private:
  ThreadPool* threads_;
  std::vector<RowConsumer*> beside_;
  HashSum sum_;
  std::vector<HashSum> rows_;
};

// Hands the rows of a job of which some samples are left out on under their numbers in the whole job.
class RenumberedRows : public ResultConsumer {
 public:
  // `offsets` of the samples that are left, `numbers` and `all_offsets`: theirs in the whole job.
  RenumberedRows(Positions positions, const SampleOffsets& offsets, const SampleNumbers& numbers,
                 const SampleOffsets& all_offsets, std::vector<ResultConsumer*> consumers)
      : positions_(positions),
        offsets_(offsets),
        numbers_(numbers),
        all_offsets_(all_offsets),
        consumers_(std::move(consumers)) {}
  void consume(const ResultRows& rows) override;

 private:
  int64_t number_of(int64_t row) const;

  Positions positions_;
  const SampleOffsets& offsets_;
  const SampleNumbers& numbers_;
  const SampleOffsets& all_offsets_;
  std::vector<ResultConsumer*> consumers_;
};

// Is told of samples whose rows have all been emitted.
class FinishedSamples {
 public:
  virtual ~FinishedSamples() = default;
  virtual void finished(int64_t first, int64_t count, const HashSum& results) = 0;
};

// The last consumer: counts the samples whose rows all the others have taken, and tells `file`, which may be null.
class SampleCounter : public ResultConsumer {
 public:
  SampleCounter(Positions positions, const SampleOffsets& offsets, const ResultHash& hash, FinishedSamples* file)
      : positions_(positions), offsets_(offsets), hash_(hash), file_(file) {}
  void consume(const ResultRows& rows) override;
  int64_t count() const { return count_; }

 private:
  Positions positions_;
  const SampleOffsets& offsets_;
  const ResultHash& hash_;
  FinishedSamples* file_;
  HashSum open_;  // of a sample of which rows are still to come
  int64_t count_ = 0;
};

}  // namespace lfm2
