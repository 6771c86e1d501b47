// Words are what Python's str.split() finds: runs of characters that are no whitespace.
#include "stage/io/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "openai/target.h"
#include "stage/io/inputs/input_file.h"
#include "text/tokenizer.h"

namespace lfm2 {

namespace {

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  bool inside = false;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const bool space = character.valid && is_python_space(character.point);
    if (!space && !inside) ++words;
    inside = !space;
    text.remove_prefix(character.length);
  }
  return words;
}

}  // namespace

void find_scored(Samples& samples, const Tokenizer* tokenizer, const std::string& what,
                 const std::function<void()>& pulse) {
  const bool targets = samples.scored.samples() > 0;
  samples.scored_words = tokenizer != nullptr ? 0 : -1;
  for (int64_t sample = 0; sample < samples.count(); ++sample) {
    if (!targets) samples.scored.push_back(samples.scored.back() + samples.offsets.length(sample) - 1);
    const int64_t scored = samples.scored.length(sample);
    if (scored < 1)
      throw Error(ExitCode::kData,
                  fmt::format("{} has {} token, expected at least 2 with --score: the first one is given",
                              samples.where(sample, what), samples.offsets.length(sample)));
    if (tokenizer == nullptr) continue;
    const std::string text = tokenizer->decode(samples.tokens(samples.offsets[sample + 1] - scored, scored), false);
    samples.scored_bytes.push_back(samples.scored_bytes.back() + static_cast<int64_t>(text.size()));
    samples.scored_words += count_words(text);
    if (sample % 4096 == 0) pulse();
  }
}

void OrderFreeSum::add(double value) {
  constexpr double kMax = 0x1p31;
  value = std::clamp(value, -kMax, kMax);
  const double whole = std::floor(value);
  add({static_cast<int64_t>(whole), static_cast<uint64_t>(std::nearbyint((value - whole) * 0x1p32))});
}

void OrderFreeSum::add(const OrderFreeSum& other) {
  const uint64_t parts = parts_ + other.parts_;
  whole_ += other.whole_ + static_cast<int64_t>(parts >> 32);
  parts_ = parts & 0xffffffffu;
}

void ScoreSums::add(float log_prob, bool is_greedy) {
  ++tokens;
  if (is_greedy) ++greedy;
  if (!std::isfinite(log_prob)) {
    ++not_finite;
    return;
  }
  const auto value = static_cast<double>(log_prob);
  log_probs.add(value);
  squares.add(value * value);
}

void ScoreSums::add(const ScoreSums& other) {
  tokens += other.tokens;
  greedy += other.greedy;
  not_finite += other.not_finite;
  log_probs.add(other.log_probs);
  squares.add(other.squares);
}

Perplexity perplexity(const ScoreSums& sums, int64_t units) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (sums.not_finite > 0 || sums.tokens == 0 || units <= 0) return {kNone, kNone};
  const auto count = static_cast<double>(sums.tokens), all_units = static_cast<double>(units);
  const double sum = sums.log_probs.value(), value = std::exp(-sum / all_units);
  // A single token has no standard deviation: 0 / 0.
  const double variance = std::max(0.0, sums.squares.value() - sum * sum / count) / (count - 1);
  return {value, value * std::sqrt(count * variance) / all_units};
}

OrderedJson as_json(const ScoreSums& sums) {
  const auto parts = [](const OrderFreeSum& sum) { return OrderedJson{sum.whole(), sum.parts()}; };
  return {{"tokens", sums.tokens},
          {"likeliest", sums.greedy},
          {"not_finite", sums.not_finite},
          {"log_probs", parts(sums.log_probs)},
          {"squares", parts(sums.squares)}};
}

void ScoreCounter::consume(const ResultRows& rows) {
  for (size_t row = 0; row < static_cast<size_t>(rows.count); ++row)
    sums_.add(rows.log_probs[row], rows.is_greedy[row] != 0);
}

void ScoreLine::add(float log_prob, bool is_greedy) {
  for (std::string* list : {&log_probs_, &greedy_})
    if (!list->empty()) *list += ',';
  append_values(log_probs_, std::span<const float>(&log_prob, 1));
  greedy_ += is_greedy ? "true" : "false";
  sum_ += static_cast<double>(log_prob);
  ++tokens_;
}

std::string ScoreLine::pop_line(std::string_view name, int64_t bytes) {
  std::string sum;
  append_values(sum, std::span<const double>(&sum_, 1));
  std::string line =
      fmt::format("{{\"id\":{},\"logprobs\":[{}],\"is_greedy\":[{}],\"sum_logprob\":{},\"tokens\":{},\"bytes\":{}}}\n",
                  name, log_probs_, greedy_, sum, tokens_, bytes < 0 ? "null" : std::to_string(bytes));
  *this = {};
  return line;
}

LineScores parse_score_line(std::string_view line, const std::string& what) {
  const Json json = parse_json(line, what);
  LineScores scores;
  try {
    for (const Json& value : json.at("logprobs"))
      scores.log_probs.push_back(value.is_null() ? std::numeric_limits<float>::quiet_NaN() : value.get<float>());
    for (const Json& value : json.at("is_greedy")) scores.is_greedy.push_back(value.get<bool>() ? 1 : 0);
  } catch (const Json::exception&) {
    throw Error(ExitCode::kData, what + ": expected a line of scores");
  }
  if (scores.log_probs.size() != scores.is_greedy.size())
    throw Error(ExitCode::kData, what + ": expected the same number of logprobs and of is_greedy");
  return scores;
}

}  // namespace lfm2
