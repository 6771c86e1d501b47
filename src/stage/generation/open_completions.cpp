// The message to the first stage has four words for each token: its id, whether and why the completion ends with it,
// its log-probability, and the number of likeliest tokens that follow, with their log-probabilities.
#include "stage/generation/open_completions.h"

#include <algorithm>
#include <bit>

#include "kernels/error.h"

namespace lfm2 {

namespace {

constexpr size_t kTokenWords = 4;
constexpr int32_t kGoesOn = 0, kStops = 1, kIsLongEnough = 2;

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

std::vector<int32_t> OpenCompletions::take(std::span<const int32_t> samples, const DrawnArrays& drawn) {
  std::vector<int32_t> words;
  const int64_t likeliest_columns = drawn.top_ids.data == nullptr ? 0 : drawn.top_ids.dim(1);
  progress_ = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto found = open_.find(samples[i]);
    expect(found != open_.end(), "OpenCompletions: a token of a sample that is not open");
    Open& open = found->second;
    Completion& completion = open.completion;
    const int32_t token = drawn.ids.as<const int32_t>()[i];
    const float log_prob = drawn.log_probs.as<const float>()[i];
    completion.token_ids.push_back(token);
    completion.log_probs.push_back(log_prob);
    if (drawn.top_ids.data != nullptr) {
      const int64_t k = drawn.top_ids.dim(1), first = static_cast<int64_t>(i) * k;
      const auto append = [&](auto& list, const auto* values) {
        list.insert(list.end(), values + first, values + first + k);
      };
      append(completion.top_ids, drawn.top_ids.as<const int32_t>());
      append(completion.top_log_probs, drawn.top_log_probs.as<const float>());
    }
    const bool stops = this->stops(open, token);
    const auto length = static_cast<int64_t>(completion.token_ids.size());
    const int32_t end = stops ? kStops : length >= open.max_new ? kIsLongEnough : kGoesOn;
    const int32_t likeliest = std::min(open.likeliest, static_cast<int32_t>(likeliest_columns));
    words.insert(words.end(), {token, end, std::bit_cast<int32_t>(log_prob), likeliest});
    for (int64_t k = 0, row = static_cast<int64_t>(i) * likeliest_columns; k < likeliest; ++k) {
      words.push_back(drawn.top_ids.as<const int32_t>()[row + k]);
      words.push_back(std::bit_cast<int32_t>(drawn.top_log_probs.as<const float>()[row + k]));
    }
    progress_ += 1;
    if (end == kGoesOn) continue;
    progress_ += open.max_new - length;
    completion.reason = stops ? FinishReason::kStop : FinishReason::kLength;
    finish(std::move(open_.extract(found).mapped()));
  }
  return words;
}

// Hands on the completion, or, of several choices, the last one that ends hands on all.
void OpenCompletions::finish(Open open) {
  Completion whole = std::move(open.completion);
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
  for (size_t at = 0; at < words.size();) {
    expect(words.size() - at >= kTokenWords, "tokens_of_message: a message of another length");
    DrawnToken& one =
        tokens.emplace_back(DrawnToken{.token = words[at], .log_prob = std::bit_cast<float>(words[at + 2])});
    if (words[at + 1] != kGoesOn) one.ends = words[at + 1] == kStops ? FinishReason::kStop : FinishReason::kLength;
    const auto likeliest = static_cast<size_t>(words[at + 3]);
    at += kTokenWords;
    expect(likeliest <= (words.size() - at) / 2, "tokens_of_message: a message of another length");
    for (size_t k = 0; k < likeliest; ++k, at += 2) {
      one.top_ids.push_back(words[at]);
      one.top_log_probs.push_back(std::bit_cast<float>(words[at + 1]));
    }
  }
  return tokens;
}

}  // namespace lfm2
