// The results of the last stage, row by row in order, and their consumers: files, validation, and the hash of all
// results.
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

// The content of a row of results. A job has one kind.
struct ResultKind {
  Positions positions = Positions::kLast;  // kLast: a row for each sample; kAll: rows counted by the offsets
  int64_t top_k = 0;                       // --top-logprobs: the top_k most probable tokens instead of all logits
  // --score: a row is a scored token. It has the token's log-probability, and whether the token is top-1, instead of
  // logits. `positions` is then kAll, and offsets count scored tokens instead of tokens.
  bool score = false;
  // --hidden: a row is a hidden state instead of logits. `positions` is kAll for states of all positions, else kLast.
  Hidden hidden = Hidden::kNone;
  int64_t after_layer = 0;  // hidden states are taken after this layer; 0: after the final norm
  // The job's lines are /v1/embeddings': a sample has a row for each of its inputs. `positions` is then kAll, and
  // offsets count inputs instead of tokens.
  bool embeddings = false;

  int64_t columns() const { return score ? 1 : top_k; }  // columns of ids and log-probabilities; 0: rows have logits
  // Whether results need only the last position of each sample.
  bool of_last_positions() const {
    return hidden == Hidden::kNone ? positions == Positions::kLast : hidden == Hidden::kLast;
  }
};

std::string_view positions_name(const ResultKind& kind);  // "last", "mean", "all", "none" or "scored"
std::string states_name(const ResultKind& kind);          // "after the final norm", "after layer 3"

// Consecutive rows. Row numbers count samples (kLast) or tokens of the whole job (kAll; with --score, scored tokens).
struct ResultRows {
  int64_t first = 0, count = 0;
  // [count, vocab]; with --hidden the states, [count, hidden]; empty where columns() > 0.
  std::span<const float> logits = {};
  std::span<const int32_t> top_ids = {};    // --top-logprobs: [count, columns()]
  std::span<const int32_t> is_greedy = {};  // --score: [count], 1 for a top-1 token, else 0
  std::span<const float> log_probs = {};    // [count, columns()], of the tokens in top_ids, or of the scored tokens
};

// `count` of the `rows`, after skipping `skip`, with row numbers from `first` on.
ResultRows some_rows(const ResultRows& rows, int64_t skip, int64_t count, int64_t first);

class ResultConsumer {
 public:
  virtual ~ResultConsumer() = default;
  virtual void consume(const ResultRows& rows) = 0;
};

// Consumes single rows; several threads may pass different rows at once.
class RowConsumer {
 public:
  virtual ~RowConsumer() = default;
  virtual void consume_row(const ResultRows& row) = 0;
};

// Whether a row's results are not finite. Of logits: whether no token can be drawn, because one is NaN or +infinity, or
// all are -infinity; the log-probabilities of such a row are NaN (kernels/ops.h). Of scores and hidden states: whether
// any value is NaN or infinite.
bool is_not_finite(const ResultRows& row, bool states);

// Counts such rows. It is called by the threads of ResultHash, which have the rows in their caches.
class NotFiniteRows : public RowConsumer {
 public:
  explicit NotFiniteRows(bool states) : states_(states) {}
  void consume_row(const ResultRows& row) override;
  int64_t count() const { return count_; }
  int64_t first_row() const { return first_row_; }  // its number in the job, if there is one

 private:
  const bool states_;
  std::atomic<int64_t> count_ = 0, first_row_ = std::numeric_limits<int64_t>::max();
};

// The sum of the XXH3-128 hashes of all rows, each seeded with its row number. Equal bits give equal sums, whatever the
// ranks, replicas and micro-batches.
class ResultHash : public ResultConsumer {
 public:
  // The thread that has hashed a row passes it to each of `beside`, while its cache still holds the row.
  explicit ResultHash(ThreadPool* threads = nullptr, std::vector<RowConsumer*> beside = {})
      : threads_(threads), beside_(std::move(beside)) {}
  void consume(const ResultRows& rows) override;
  const std::vector<HashSum>& rows() const { return rows_; }  // of the last consume(), one hash for each row
  void add(const HashSum& rows) { sum_.add(rows); }           // adds rows that an earlier run emitted
  const HashSum& sum() const { return sum_; }
  std::string hex() const { return sum_.hex(); }

 private:
  ThreadPool* threads_;
  std::vector<RowConsumer*> beside_;
  HashSum sum_;
  std::vector<HashSum> rows_;
};

// If samples are left out of a job, passes on the rows of the others under their numbers in the whole job.
class RenumberedRows : public ResultConsumer {
 public:
  // `offsets`: of the remaining samples. `numbers`, `all_offsets`: their numbers and offsets in the whole job.
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

// Is notified of samples whose rows have all been emitted.
class FinishedSamples {
 public:
  virtual ~FinishedSamples() = default;
  virtual void finished(int64_t first, int64_t count, const HashSum& results) = 0;
};

// The last consumer: counts the samples whose rows all other consumers have received, and notifies `file`, which may be
// null.
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
  HashSum open_;  // of a sample with rows still to come
  int64_t count_ = 0;
};

}  // namespace lfm2
