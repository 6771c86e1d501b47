// How completions grow and end.
#include "stage/generation/open_completions.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.h"

namespace lfm2 {

namespace {

// Rows [first, first + count) of the top logprobs, and the first `columns` of each row.
void append_top(const StepResults::Tokens& tokens, int64_t first, int64_t count, int64_t columns,
                std::vector<int32_t>& ids, std::vector<float>& log_probs) {
  for (int64_t row = first; row < first + count && columns > 0; ++row) {
    const int64_t at = row * tokens.top_ids.dim(1);
    const auto append = [&](auto& list, const auto* values) {
      list.insert(list.end(), values + at, values + at + columns);
    };
    append(ids, tokens.top_ids.as<const int32_t>());
    append(log_probs, tokens.top_log_probs.as<const float>());
  }
}

int64_t columns_of(const StepResults::Tokens& tokens) { return tokens.top_ids ? tokens.top_ids.dim(1) : 0; }

}  // namespace

void OpenCompletions::apply(const Step& step) {
  for (const int32_t sample : step.dropped)
    if (const auto found = open_.find(sample); found != open_.end()) {
      waiting_.erase(found->second.completion.sample);
      open_.erase(found);
    }
  for (const Admission& one : step.admitted) {
    const Request& request = one.request;
    const auto drawn = static_cast<size_t>(one.num_tokens - one.prompt);
    const auto [found, is_new] = open_.try_emplace(request.sample);
    Open& open = found->second;
    expect(drawn == open.completion.token_ids.size(), "OpenCompletions: a sequence comes back with another text");
    if (drawn == 0) {  // opens the completion, after a preemption again
      open.completion.prompt = {};
      open.completion.error = {};
      open.rows.reset();
      open.row_count = 0;
    }
    if (!is_new) continue;
    open.request = request;
    open.completion.sample = request.choice > 0 ? request.first : request.sample;
    open.completion.choice = request.choice;
    open.completion.prompt_tokens = one.prompt;
    open.completion.tag = request.tag;
    if (!live_) open.completion.prompt_ids = std::exchange(open.request.prompt, {});
    if (!request.constraint.empty()) {
      expect(constraints_ != nullptr, "OpenCompletions: a constraint without a vocabulary");
      open.matcher.emplace(constraints_->begin(request.constraint, request.eos_tokens));
    }
    if (request.stop.empty()) continue;
    expect(token_text_ != nullptr, "OpenCompletions: stop texts without the texts of tokens");
    open.stop.emplace(request.stop);
  }
}

void OpenCompletions::write_masks(const StepSamples& samples, int64_t columns, std::span<uint32_t> masks) {
  const auto width = static_cast<size_t>(columns);
  std::vector<size_t> firsts;  // the first row of each block, and their end
  for (size_t row = 0; row < samples.drawn.size(); ++row)
    if (row == 0 || samples.draft_after(row - 1) < 0) firsts.push_back(row);
  firsts.push_back(samples.drawn.size());
  constraints_->parallel_for(firsts.size() - 1, [&](size_t block) {
    const size_t first = firsts[block], rows = firsts[block + 1] - first;
    const auto found = open_.find(samples.drawn[first]);
    if (found != open_.end() && !found->second.matcher) return;
    const std::span words = masks.subspan(first * width, rows * width);
    int64_t masked = 0;
    if (found != open_.end())
      masked = found->second.masked =
          write_block(found->second, std::span(samples.next_drafts).subspan(rows > 1 ? first : 0, rows - 1), words);
    std::ranges::fill(words.subspan(static_cast<size_t>(masked) * width), ~uint32_t{0});
  });
}

// Writes the masks of the rows of a block until a draft is not allowed, ends the text, or is at a limit. Returns how
// many there are: no row after them can follow a right draft, except one at a limit, which comes first in a later step.
int64_t OpenCompletions::write_block(Open& open, std::span<const int32_t> drafts, std::span<uint32_t> words) {
  const size_t width = words.size() / (drafts.size() + 1);
  if (!write_mask(open, words.first(width))) return 0;
  const size_t before = open.matcher->taken();
  int64_t masked = 1;
  try {
    for (; std::cmp_less_equal(masked, drafts.size()); ++masked) {
      if (!open.matcher->take(drafts[static_cast<size_t>(masked) - 1])) break;
      const std::span own = words.subspan(static_cast<size_t>(masked) * width, width);
      open.matcher->mask(own);
      if (std::ranges::all_of(own, [](uint32_t word) { return word == 0; })) break;
    }
  } catch (const grammar::OutOfFuel&) {
  }
  open.matcher->undo(open.matcher->taken() - before);
  return masked;
}

// False where the text is at a limit: then its draw is an error.
bool OpenCompletions::write_mask(Open& open, std::span<uint32_t> words) {
  if (!open.limit.empty()) return false;
  try {
    open.matcher->mask(words);
    if (std::ranges::all_of(words, [](uint32_t word) { return word == 0; }))
      open.limit = "no token of the vocabulary continues the constrained text";
  } catch (const grammar::OutOfFuel& error) {
    open.limit = error.what();
  }
  return open.limit.empty();
}

// Whether the completion ends with its newest token. This is tested before the sequence continues, so no token follows
// a stop text.
bool OpenCompletions::stops(Open& open, int32_t token) const {
  Completion& completion = open.completion;
  if (open.stop) {
    const bool may_stop = std::ssize(completion.token_ids) > open.request.rule.min_tokens;
    completion.text_bytes = open.stop->feed(token_text_(token), may_stop);
    if (completion.text_bytes) return true;
  }
  const std::vector<int32_t>& ends = open.request.eos_tokens;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) return true;
  if (!open.matcher) return false;
  try {
    expect(open.matcher->take(token), "OpenCompletions: a token was drawn that its mask excludes");
    return open.matcher->must_end();
  } catch (const grammar::OutOfFuel& error) {  // of this text alone: its next token is an error
    open.limit = error.what();
    return false;
  }
}

OpenCompletions::Open& OpenCompletions::find(int32_t sample) {
  const auto found = open_.find(sample);
  expect(found != open_.end(), "OpenCompletions: results of a sample that is not open");
  return found->second;
}

void OpenCompletions::add_scored(const StepSamples& samples, const StepResults::Tokens& scored) {
  int64_t first = 0;
  for (const auto& [sample, count] : samples.scored) {
    Open& open = find(sample);
    TokenLogProbs& prompt = open.completion.prompt;
    const float* values = scored.log_probs.as<const float>() + first;
    prompt.log_probs.insert(prompt.log_probs.end(), values, values + count);
    if (std::any_of(values, values + count, [](float value) { return std::isnan(value); }))
      open.completion.error = "log-probabilities of the prompt are not finite (NaN)";
    const int64_t columns =
        live_ ? std::min<int64_t>(open.request.num_top_logprobs, columns_of(scored)) : columns_of(scored);
    append_top(scored, first, count, columns, prompt.top_ids, prompt.top_log_probs);
    first += count;
  }
}

void OpenCompletions::add_hidden(const StepSamples& samples, const Tensor& hidden) {
  int64_t first = 0;
  for (const auto& [sample, count] : samples.hidden) {
    Open& open = find(sample);
    if (!open.rows) open.rows.emplace(hidden.dim(1));
    const bool mean = open.request.hidden == Hidden::kMean;
    open.row_count += count;
    const bool ends = open.row_count == (mean ? open.completion.prompt_tokens : 1);
    const std::byte* rows = hidden.rows(first, count).data;
    const SampleRows part{count, ends ? open.row_count : 0};
    const std::span<const float> state = mean ? open.rows->means(hidden.dtype, rows, std::span(&part, 1))
                                              : open.rows->convert(hidden.dtype, rows, count);
    if (ends) {
      open.hidden.assign(state.begin(), state.end());
      if (!std::all_of(state.begin(), state.end(), [](float value) { return std::isfinite(value); }))
        open.completion.error = "the hidden state is not finite (NaN or infinity)";
      open.rows.reset();
    }
    first += count;
  }
}

// Adds the token of a row to the completion that it continues.
DrawnToken OpenCompletions::take(Open& open, const StepResults::Tokens& results, int64_t row) {
  DrawnToken drawn{.token = results.ids.as<const int32_t>()[row]};
  Completion& completion = open.completion;
  const int64_t columns = columns_of(results);
  const float log_prob = results.log_probs.as<const float>()[row];
  if (std::isnan(log_prob) && !open.request.prefill_only)  // of such logits `sample` draws no token
    completion.error = fmt::format("token {} of the answer: its logits are not finite (NaN or infinity)",
                                   completion.token_ids.size() + 1);
  if (!open.limit.empty()) completion.error = drawn.error = open.limit;
  if (!completion.error.empty()) {
    drawn.ends = FinishReason::kError;
    return drawn;
  }
  drawn.log_prob = log_prob;
  append_top(results, row, 1, std::min<int64_t>(open.request.num_top_logprobs, columns), drawn.top_ids,
             drawn.top_log_probs);
  completion.token_ids.push_back(drawn.token);
  completion.log_probs.push_back(log_prob);
  if (!live_) append_top(results, row, 1, columns, completion.top_ids, completion.top_log_probs);
  if (live_ && completion.token_ids.size() == 1) {
    drawn.prompt = std::exchange(completion.prompt, {});
    drawn.hidden = std::exchange(open.hidden, {});
  }
  progress_ += 1;
  if (stops(open, drawn.token))
    drawn.ends = FinishReason::kStop;
  else if (std::ssize(completion.token_ids) >= open.request.max_new)
    drawn.ends = FinishReason::kLength;
  return drawn;
}

// Whether the row follows the completion's newest token. A streamed row does if its draft was right, and all before it.
bool OpenCompletions::follows(Open& open, const StepSamples& samples, size_t row) {
  if (samples.streamed.empty() || samples.streamed[row] < 0) return true;
  Completion& completion = open.completion;
  if (samples.draws[2 * row + 1] != std::ssize(completion.token_ids)) return false;
  const bool right = completion.token_ids.back() == samples.streamed[row];
  completion.drafts.add(DraftCounts{1, right ? 1 : 0});
  return right;
}

std::vector<DrawnToken> OpenCompletions::on_results(const StepSamples& samples, const StepResults& results) {
  std::vector<DrawnToken> told;
  told.reserve(samples.drawn.size());
  add_scored(samples, results.scored);
  add_hidden(samples, results.hidden);
  progress_ = 0;
  for (size_t first = 0, end = 0; first < samples.drawn.size(); first = end) {
    end = first + 1;
    while (samples.draft_after(end - 1) >= 0) ++end;
    const auto found = open_.find(samples.drawn[first]);
    // The extra token of an ended sequence (see Scheduler), or one after a wrong draft.
    if (found == open_.end() || !follows(found->second, samples, first)) {
      told.push_back({.token = results.drawn.ids.as<const int32_t>()[first]});
      continue;
    }
    Open& open = found->second;
    for (size_t row = first; row < end; ++row) {
      DrawnToken& drawn = told.emplace_back(take(open, results.drawn, static_cast<int64_t>(row)));
      drawn.drafts = row == first ? static_cast<int32_t>(end - first - 1) : 0;
      drawn.drafted = drawn.ends != FinishReason::kError && drawn.token == samples.draft_after(row) &&
                      (!open.matcher || static_cast<int64_t>(row - first) + 1 < open.masked);
      open.completion.drafts.add(drawn);
      if (drawn.ends || !drawn.drafted) break;
    }
    if (!told.back().ends) continue;
    progress_ += open.request.max_new - std::ssize(open.completion.token_ids);
    open.completion.reason = *told.back().ends;
    finish(std::move(open_.extract(found).mapped()));
  }
  return told;
}

// Passes on the completion. If it has several choices, passes on all of them when the last one ends.
void OpenCompletions::finish(Open open) {
  Completion whole = std::move(open.completion);
  if (open.request.prefill_only) {
    for (auto* list : {&whole.token_ids, &whole.top_ids}) list->clear();
    for (auto* list : {&whole.log_probs, &whole.top_log_probs}) list->clear();
  }
  if (open.request.choices > 1) {
    std::vector<Completion>& ended = waiting_[whole.sample];
    ended.push_back(std::move(whole));
    if (static_cast<int32_t>(ended.size()) < open.request.choices) return;
    std::vector<Completion> choices = std::move(waiting_.extract(ended.front().sample).mapped());
    std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.choice < b.choice; });
    whole = std::move(choices.front());
    whole.others.assign(std::make_move_iterator(choices.begin() + 1), std::make_move_iterator(choices.end()));
  }
  for (CompletionConsumer* consumer : consumers_) consumer->consume(whole);
}

}  // namespace lfm2
