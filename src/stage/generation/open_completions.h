// The last stage's part of a generation: holds the unfinished completions, decides when each of them ends, and collects
// the drawn tokens for the first stage.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/constraint_cache.h"
#include "stage/generation/step_runner.h"
#include "stage/pipeline/completion.h"
#include "stage/pipeline/hidden_rows.h"
#include "stage/pipeline/request_source.h"
#include "text/stop_text.h"

namespace lfm2 {

// Returns the bytes that a token adds to the text of a completion.
using TokenText = std::function<std::string_view(int32_t token)>;

// The samples to which the results of a step belong, in the order of the results.
struct StepSamples {
  struct Rows {
    int32_t sample = 0, count = 0;
  };
  std::vector<int32_t> drawn;             // the samples that draw a token; of a block, once for each row
  std::vector<int32_t> next_drafts = {};  // [drawn]: see StepArrays; empty: no row is followed by a draft
  std::vector<int32_t> streamed = {};     // [drawn]: see StepArrays; empty: no row is streamed
  std::vector<int32_t> draws = {};        // [drawn, 2]: see BatchLists; only read for streamed rows
  std::vector<Rows> scored, hidden;

  int32_t draft_after(size_t row) const { return next_drafts.empty() ? -1 : next_drafts[row]; }  // -1: none
};

class OpenCompletions {
 public:
  // Each of the `consumers` gets every completion when it ends. They must outlive this. `token_text` is needed if a
  // request has stop texts, `constraints` if one is constrained. `live`: see GenerationPlan.
  explicit OpenCompletions(std::vector<CompletionConsumer*> consumers, TokenText token_text = {}, bool live = false,
                           grammar::ConstraintCache* constraints = nullptr)
      : consumers_(std::move(consumers)), token_text_(std::move(token_text)), live_(live), constraints_(constraints) {}

  // Opens the completions of samples that the step admits, and removes those of samples that it drops. Called for every
  // step, in order.
  void apply(const Step& step);
  // Writes the masks [drawn, columns] of the next draws of these samples, once all earlier draws were results. A row of
  // a block has the mask after its drafts. Rows of unconstrained samples stay as they are. A row whose draw will be
  // dropped allows every token.
  void write_masks(const StepSamples& samples, int64_t columns, std::span<uint32_t> masks);
  // Adds the results of a step to the completions, and passes on those that end. Returns the message to the first
  // stage. It includes a token of a sample that has already ended; such a token has no other effect. Of a block it
  // includes the tokens up to the first that its draft is not, or that ends the sequence: rows after it followed a
  // wrong token. So does a streamed row whose draft is not the completion's newest token; its token has no effect.
  std::vector<DrawnToken> on_results(const StepSamples& samples, const StepResults& results);
  // The progress made by the last on_results(): the number of tokens drawn plus, for each completion that ended early,
  // the rest of its limit.
  int64_t progress() const { return progress_; }
  int64_t open() const { return static_cast<int64_t>(open_.size()); }

 private:
  struct Open {
    Request request;
    Completion completion;
    std::optional<StopText> stop;
    std::optional<grammar::Matcher> matcher;  // of the constraint
    int64_t masked = 0;                       // rows of the newest block that have its masks
    std::string limit;                        // why no more masks can be made; empty: they can
    // The requested hidden state, and the rows that it is made from.
    std::vector<float> hidden;
    std::optional<HiddenRows> rows;
    int32_t row_count = 0;
  };

  Open& find(int32_t sample);
  static bool follows(Open& open, const StepSamples& samples, size_t row);
  DrawnToken take(Open& open, const StepResults::Tokens& drawn, int64_t row);
  static bool write_mask(Open& open, std::span<uint32_t> words);
  static int64_t write_block(Open& open, std::span<const int32_t> drafts, std::span<uint32_t> words);
  bool stops(Open& open, int32_t token) const;
  void add_scored(const StepSamples& samples, const StepResults::Tokens& scored);
  void add_hidden(const StepSamples& samples, const Tensor& hidden);
  void finish(Open open);

  std::vector<CompletionConsumer*> consumers_;
  TokenText token_text_;
  bool live_;
  grammar::ConstraintCache* constraints_;
  std::map<int32_t, Open> open_;  // by sample
  // Ended choices that wait for the other choices of their completion; by the completion's sample.
  std::map<int64_t, std::vector<Completion>> waiting_;
  int64_t progress_ = 0;
};

}  // namespace lfm2
