// What a generation hands out: finished samples, in the order in which they finish; and the files they go to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "stage/checksum.h"
#include "stage/output_file.h"

namespace lfm2 {

enum class FinishReason : uint8_t {
  kStop,   // an end-of-text token, which is the last of token_ids
  kLength  // as many tokens as asked for, or as the model has positions
};
std::string_view name(FinishReason reason);  // "stop", "length"

struct Completion {
  int64_t sample = 0;
  FinishReason reason = FinishReason::kLength;
  std::vector<int32_t> token_ids;    // what was generated, without the prompt
  std::vector<float> log_probs;      // [tokens]: of each of them
  std::vector<int32_t> top_ids;      // [tokens, top_k]
  std::vector<float> top_log_probs;  // [tokens, top_k]
};

class CompletionConsumer {
 public:
  virtual ~CompletionConsumer() = default;
  virtual void take(const Completion& completion) = 0;
};

// The sum of the XXH3-128 of all samples' tokens, each with its number as the seed: equal for equal texts, whatever the
// order in which they finished.
class CompletionHash : public CompletionConsumer {
 public:
  static HashSum of(const Completion& completion);
  void take(const Completion& completion) override;
  void add(const HashSum& completions) { sum_.add(completions); }  // that were handed out before
  std::string hex() const { return sum_.hex(); }
  int64_t count() const { return count_; }  // taken

 private:
  HashSum sum_;
  int64_t count_ = 0;
};

class CompletionFile : public CompletionConsumer {
 public:
  virtual void start_over() = 0;  // a benchmark generates the same again: the file holds the last pass
  virtual void keep() = 0;        // the run ends early: what is finished is durable
  virtual void commit() = 0;      // the file is whole, in the order of the samples: give it its name
};

// Refuses endings that hold no completions: Error(kUsage).
void check_completion_form(const std::filesystem::path& path);
// .jsonl: a line a sample, {"id", "token_ids", "finish_reason"}, with --top-logprobs also "logprobs" [tokens],
// "top_ids" and "top_logprobs" [tokens, k]. .h5: token_ids [all tokens], offsets [samples + 1], finish_reasons
// [samples] (0 stop, 1 length), and with --top-logprobs logprobs [all tokens], top_ids and top_logprobs [all tokens,
// k]. `job.kind.top_k` says how many; `job.samples()` are expected.
std::unique_ptr<CompletionFile> create_completion_file(const std::filesystem::path& path, const OutputJob& job);
// Goes on with what a run of the same job left; `begun.content` becomes what of it is intact.
std::unique_ptr<CompletionFile> resume_completion_file(const std::filesystem::path& path, const OutputJob& job,
                                                       Unfinished& begun);

}  // namespace lfm2
