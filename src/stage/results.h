// What the last stage hands out, row by row in order, and who takes it: files, validation, the hash of all logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "stage/checksum.h"

namespace lfm2 {

enum class Positions : uint8_t { kLast, kAll, kNone };  // --logits: which positions become rows

// What is handed out for each row: one is enough for a job.
struct ResultKind {
  Positions positions = Positions::kLast;
  int64_t top_k = 0;  // --top-logprobs: the best top_k instead of all logits
};

// Consecutive rows. Row numbers count samples (kLast) or tokens of the whole job (kAll).
struct ResultRows {
  int64_t first = 0, count = 0;
  std::span<const float> logits;         // [count, vocab]; empty where top_k > 0
  std::span<const int32_t> top_ids;      // [count, top_k]
  std::span<const float> top_log_probs;  // [count, top_k]
};

class ResultConsumer {
 public:
  virtual ~ResultConsumer() = default;
  virtual void take(const ResultRows& rows) = 0;
};

// The sum of the XXH3-128 of all rows, each with its number as the seed: equal for equal bits, whatever the ranks,
// replicas and micro-batches.
class ResultHash : public ResultConsumer {
 public:
  explicit ResultHash(ThreadPool* threads = nullptr) : threads_(threads) {}
  void take(const ResultRows& rows) override;
  std::string hex() const { return sum_.hex(); }

 private:
  ThreadPool* threads_;
  HashSum sum_;
  std::vector<HashSum> rows_;
};

}  // namespace lfm2
