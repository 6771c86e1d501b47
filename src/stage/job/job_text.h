// The text side of a job on one rank. Rank 0 reads lines and has the tokenizer, the templates and
// generation_config.json. Ranks that write texts of completions, or search for stop texts, have the tokenizer.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "comm/mpi_world.h"
#include "grammar/constraint_cache.h"
#include "openai/generation_config.h"
#include "stage/io/inputs/input_file.h"
#include "stage/io/lines/line_reader.h"
#include "stage/job/options.h"
#include "text/text_model.h"

namespace lfm2 {

class ShardSet;
struct ModelConfig;

// The most tokens of a sample. With --score this is one more than the model's positions, because nothing is predicted
// after the last token; with --stride it is larger still.
int64_t max_sample_tokens(const Options& options, const ModelConfig& config);

// The number of ranks of each replica. Error(kUsage) if the replicas would differ.
int ranks_of_a_pipeline(int ranks, int replicas);

// Called with each piece of the input that rank 0 reads: tells the watchdog of progress. Error(kStopped) on request.
void pulse_while_reading(MpiWorld& world);

enum class JobKind : uint8_t { kScores, kEmbeds, kContinues };

class JobText {
 public:
  // Collective. Opens an input of lines, on rank 0, and determines the kind of job. Error(kUsage) for options that
  // contradict each other in a job of that kind.
  JobText(const Options& options, MpiWorld& world);

  bool continues() const { return kind_ == JobKind::kContinues; }
  // Whether the lines are /v1/embeddings'.
  bool embeds() const { return kind_ == JobKind::kEmbeds; }
  // The time of the job: that of the resumed run, else now. Equal on all ranks.
  std::time_t now() const { return now_; }

  // Rank 0: reads the text files beside the shards, or in --tokenizer, that the job needs.
  void open(const ShardSet& shards);
  // Rank 0, after open(): the samples of an input of lines, or of --prompt.
  Samples read(const ModelConfig& config, ThreadPool& threads);
  // Collective, after open() and read(): sends the tokenizer to the last rank of each pipeline if that rank writes
  // texts or searches for stop texts, and generation_config.json to all ranks of replicas.
  void share(const ModelConfig& config, double timeout_seconds);

  const Tokenizer* tokenizer() const;  // null if this rank has none
  // For the reader of requests and for draws; null if this rank has no tokenizer.
  grammar::ConstraintCache* constraints() const { return constraints_.get(); }
  // Rank 0, after open(): null if there is no tokenizer. A conversation has one once read() has succeeded.
  const TextModel* model() const { return model_ ? &*model_ : nullptr; }
  const std::string& missing() const { return missing_; }  // why model() is null
  const SamplingOverrides& generation_config() const { return generation_config_.sampling; }
  std::string checksum() const { return model_ ? model_->checksum() : ""; }  // of tokenizer and templates

 private:
  std::time_t time_of_job() const;
  void read_generation_config(const std::filesystem::path& folder);

  const Options& options_;
  MpiWorld& world_;
  JobKind kind_ = JobKind::kScores;
  int writer_ = 0;  // the rank that writes the output
  std::time_t now_ = 0;
  std::unique_ptr<LineReader> lines_;
  std::optional<TextModel> model_;      // rank 0
  std::optional<Tokenizer> tokenizer_;  // see share(); not rank 0
  std::unique_ptr<grammar::ConstraintCache> constraints_;
  bool stops_ = false;   // rank 0: whether completions may end at stop texts or are constrained
  std::string missing_;  // why there is no model
  struct {
    std::string text;
    SamplingOverrides sampling;
  } generation_config_;
};

}  // namespace lfm2
