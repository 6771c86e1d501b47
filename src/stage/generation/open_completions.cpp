// The message to the first stage has six words for each token: its id, whether and why the completion ends with it, its
// log-probability, the number of likeliest tokens beside each token, the number of scored tokens of the prompt, and
// that of values of a hidden state. The likeliest tokens follow with their log-probabilities, the scored tokens with
// theirs and each with its own likeliest ones, and the hidden state.
#include "stage/generation/open_completions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "kernels/error.h"

namespace lfm2 {

namespace {

constexpr size_t kTokenWords = 6;
constexpr int32_t kGoesOn = 0, kStops = 1, kIsLongEnough = 2, kFails = 3;

// Token `at`'s likeliest tokens, `count` of them.
void append_likeliest(const std::vector<int32_t>& ids, const std::vector<float>& log_probs, size_t at, size_t count,
                      std::vector<int32_t>& words) {
  for (size_t k = at * count; k < (at + 1) * count; ++k) {
    words.push_back(ids[k]);
    words.push_back(std::bit_cast<int32_t>(log_probs[k]));
  }
}

// Rows [first, first + count) of the log-probabilities beside tokens; of each row the first `columns`.
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
    const auto drawn = static_cast<size_t>(one.known - one.prompt);
    const auto [found, is_new] = open_.try_emplace(one.sample);
    Open& open = found->second;
    expect(drawn == open.completion.token_ids.size(), "OpenCompletions: a sequence comes back with another text");
    if (drawn == 0) {  // it begins, perhaps again
      open.completion.prompt = {};
      open.completion.error = {};
      open.rows.reset();
      open.row_count = 0;
    }
    if (!is_new) continue;
    open.completion.sample = one.choice > 0 ? one.first : one.sample;
    open.completion.choice = one.choice;
    open.choices = one.choices;
    open.completion.prompt_tokens = one.prompt;
    open.completion.tag = one.tag;
    open.max_new = one.max_new;
    open.likeliest = one.likeliest;
    open.min_tokens = one.rule.min_tokens;
    open.eos_tokens = one.eos_tokens;
    open.prompt_alone = one.prompt_alone;
    open.hidden_kind = one.hidden;
    if (!live_) open.completion.prompt_ids = one.prompt_ids;
    if (one.stop.empty()) continue;
    expect(token_text_ != nullptr, "OpenCompletions: stop texts without the texts of tokens");
    open.stop.emplace(one.stop);
  }
}

// Whether the completion ends with this token, the newest one. Looked at before the sequence goes on, so no token comes
// behind a stop text.
bool OpenCompletions::stops(Open& open, int32_t token) const {
  Completion& completion = open.completion;
  if (open.stop) {
    const bool may_stop = static_cast<int64_t>(completion.token_ids.size()) > open.min_tokens;
    completion.text_bytes = open.stop->feed(token_text_(token), may_stop);
    if (completion.text_bytes) return true;
  }
  return std::find(open.eos_tokens.begin(), open.eos_tokens.end(), token) != open.eos_tokens.end();
}

OpenCompletions::Open& OpenCompletions::find(int32_t sample) {
  const auto found = open_.find(sample);
  expect(found != open_.end(), "OpenCompletions: results of a sample that is not open");
  return found->second;
}

void OpenCompletions::take_scored(const StepSamples& samples, const StepResults::Tokens& scored) {
  int64_t first = 0;
  for (const auto& [sample, count] : samples.scored) {
    Open& open = find(sample);
    TokenLogProbs& prompt = open.completion.prompt;
    const float* values = scored.log_probs.as<const float>() + first;
    prompt.log_probs.insert(prompt.log_probs.end(), values, values + count);
    if (std::any_of(values, values + count, [](float value) { return std::isnan(value); }))
      open.completion.error = "log-probabilities of the prompt are not finite (NaN)";
    const int64_t columns = live_ ? std::min<int64_t>(open.likeliest, columns_of(scored)) : columns_of(scored);
    append_top(scored, first, count, columns, prompt.top_ids, prompt.top_log_probs);
    first += count;
  }
}

void OpenCompletions::take_hidden(const StepSamples& samples, const Tensor& hidden) {
  int64_t first = 0;
  for (const auto& [sample, count] : samples.hidden) {
    Open& open = find(sample);
    if (!open.rows) open.rows.emplace(hidden.dim(1));
    const bool mean = open.hidden_kind == Hidden::kMean;
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

// What is asked about the prompt, behind a first token.
void OpenCompletions::append_prompt(Open& open, std::vector<int32_t>& words) const {
  const TokenLogProbs& prompt = open.completion.prompt;
  const size_t tokens = prompt.log_probs.size(), likeliest = tokens == 0 ? 0 : prompt.top_ids.size() / tokens;
  for (size_t token = 0; token < tokens; ++token) {
    words.push_back(std::bit_cast<int32_t>(prompt.log_probs[token]));
    append_likeliest(prompt.top_ids, prompt.top_log_probs, token, likeliest, words);
  }
  for (const float value : open.hidden) words.push_back(std::bit_cast<int32_t>(value));
  open.completion.prompt = {};
  open.hidden = {};
}

std::vector<int32_t> OpenCompletions::take(const StepSamples& samples, const StepResults& results) {
  std::vector<int32_t> words, likeliest_ids;
  std::vector<float> likeliest_log_probs;
  take_scored(samples, results.scored);
  take_hidden(samples, results.hidden);
  progress_ = 0;
  const int64_t columns = columns_of(results.drawn);
  for (size_t i = 0; i < samples.drawn.size(); ++i) {
    const int32_t token = results.drawn.ids.as<const int32_t>()[i];
    if (!open_.contains(samples.drawn[i])) {  // it was fed once too often: see Scheduler
      words.insert(words.end(), {token, kGoesOn, 0, 0, 0, 0});
      continue;
    }
    Open& open = find(samples.drawn[i]);
    Completion& completion = open.completion;
    const float log_prob = results.drawn.log_probs.as<const float>()[i];
    if (std::isnan(log_prob) && !open.prompt_alone)  // of such logits `sample` draws no token
      completion.error = fmt::format("token {} of the answer: its logits are not finite (NaN or infinity)",
                                     completion.token_ids.size() + 1);
    if (!completion.error.empty()) {
      words.insert(words.end(), {token, kFails, 0, 0, 0, 0});
      progress_ += open.max_new - static_cast<int64_t>(completion.token_ids.size());
      completion.reason = FinishReason::kError;
      finish(std::move(open_.extract(samples.drawn[i]).mapped()));
      continue;
    }
    completion.token_ids.push_back(token);
    completion.log_probs.push_back(log_prob);
    if (!live_)
      append_top(results.drawn, static_cast<int64_t>(i), 1, columns, completion.top_ids, completion.top_log_probs);
    const bool stops = this->stops(open, token);
    const auto length = static_cast<int64_t>(completion.token_ids.size());
    const int32_t end = stops ? kStops : length >= open.max_new ? kIsLongEnough : kGoesOn;
    const int64_t likeliest = std::min<int64_t>(open.likeliest, columns);
    likeliest_ids.clear();
    likeliest_log_probs.clear();
    append_top(results.drawn, static_cast<int64_t>(i), 1, likeliest, likeliest_ids, likeliest_log_probs);
    const bool prompt = live_ && length == 1;
    words.insert(words.end(), {token, end, std::bit_cast<int32_t>(log_prob), static_cast<int32_t>(likeliest),
                               prompt ? static_cast<int32_t>(completion.prompt.log_probs.size()) : 0,
                               prompt ? static_cast<int32_t>(open.hidden.size()) : 0});
    append_likeliest(likeliest_ids, likeliest_log_probs, 0, static_cast<size_t>(likeliest), words);
    if (prompt) append_prompt(open, words);
    progress_ += 1;
    if (end == kGoesOn) continue;
    progress_ += open.max_new - length;
    completion.reason = stops ? FinishReason::kStop : FinishReason::kLength;
    finish(std::move(open_.extract(samples.drawn[i]).mapped()));
  }
  return words;
}

// Hands on the completion, or, of several choices, the last one that ends hands on all.
void OpenCompletions::finish(Open open) {
  Completion whole = std::move(open.completion);
  if (open.prompt_alone) {
    for (auto* list : {&whole.token_ids, &whole.top_ids}) list->clear();
    for (auto* list : {&whole.log_probs, &whole.top_log_probs}) list->clear();
  }
  if (open.choices > 1) {
    std::vector<Completion>& ended = waiting_[whole.sample];
    ended.push_back(std::move(whole));
    if (static_cast<int32_t>(ended.size()) < open.choices) return;
    std::vector<Completion> choices = std::move(waiting_.extract(ended.front().sample).mapped());
    std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.choice < b.choice; });
    whole = std::move(choices.front());
    whole.others.assign(std::make_move_iterator(choices.begin() + 1), std::make_move_iterator(choices.end()));
  }
  for (CompletionConsumer* consumer : consumers_) consumer->take(whole);
}

std::vector<DrawnToken> tokens_of_message(const std::vector<int32_t>& words) {
  std::vector<DrawnToken> tokens;
  size_t at = 0;
  const auto expect_left = [&](size_t count) {
    expect(words.size() - at >= count, "tokens_of_message: a message of another length");
  };
  const auto number = [&] { return std::bit_cast<float>(words[at++]); };
  const auto read_likeliest = [&](size_t count, std::vector<int32_t>& ids, std::vector<float>& log_probs) {
    for (size_t k = 0; k < count; ++k) {
      ids.push_back(words[at++]);
      log_probs.push_back(number());
    }
  };
  while (at < words.size()) {
    expect_left(kTokenWords);
    DrawnToken& one = tokens.emplace_back(DrawnToken{.token = words[at]});
    if (words[at + 1] == kStops) one.ends = FinishReason::kStop;
    if (words[at + 1] == kIsLongEnough) one.ends = FinishReason::kLength;
    if (words[at + 1] == kFails) one.ends = FinishReason::kError;
    at += 2;
    one.log_prob = number();
    const auto likeliest = static_cast<size_t>(words[at]), scored = static_cast<size_t>(words[at + 1]),
               hidden = static_cast<size_t>(words[at + 2]);
    at += 3;
    for (const size_t count : {likeliest, scored, hidden}) expect_left(count);  // so that the next sum is no overflow
    expect_left(2 * likeliest + scored * (1 + 2 * likeliest) + hidden);
    read_likeliest(likeliest, one.top_ids, one.top_log_probs);
    for (size_t token = 0; token < scored; ++token) {
      one.prompt.log_probs.push_back(number());
      read_likeliest(likeliest, one.prompt.top_ids, one.prompt.top_log_probs);
    }
    for (size_t i = 0; i < hidden; ++i) one.hidden.push_back(number());
  }
  return tokens;
}

}  // namespace lfm2
