// A message begins with whether the run ends and with the numbers of admissions, added pages and entries. Lists follow,
// each behind its length.
#include "stage/pipeline/step.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/error.h"
#include "stage/support/words.h"

namespace lfm2 {

namespace {

using RuleWords = std::array<int32_t, kRuleWords>;

RuleWords words_of(const SamplingRule& rule) {
  RuleWords words{};
  std::memcpy(words.data(), &rule, sizeof rule);
  return words;
}

SamplingRule rule_of(const RuleWords& words) { return std::bit_cast<SamplingRule>(words); }

std::vector<int32_t> words_of(const std::vector<LogitEdit>& edits) {
  std::vector<int32_t> words;
  for (const LogitEdit& edit : edits) words.insert(words.end(), {edit.token, std::bit_cast<int32_t>(edit.bias)});
  return words;
}

std::vector<LogitEdit> edits_of_words(const std::vector<int32_t>& words) {
  expect(words.size() % kEditWords == 0, "Step: a list of edits that ends too early");
  std::vector<LogitEdit> edits;
  for (size_t at = 0; at < words.size(); at += kEditWords)
    edits.push_back({words[at], std::bit_cast<float>(words[at + 1])});
  return edits;
}

}  // namespace

std::vector<int32_t> to_words(const Step& step) {
  std::vector<int32_t> words{step.end ? 1 : 0, static_cast<int32_t>(step.admitted.size()),
                             static_cast<int32_t>(step.added.size()), static_cast<int32_t>(step.entries.size())};
  WordWriter writer(words);
  for (const auto* list : {&step.released, &step.dropped, &step.counted}) writer.add(*list);
  for (const Admission& one : step.admitted) {
    words.insert(words.end(), {one.slot, one.sample, one.prompt, one.known, one.cached, one.max_new, one.draw, one.tag,
                               one.likeliest, one.choices, one.choice, one.first, one.prompt_log_probs ? 1 : 0,
                               one.prompt_alone ? 1 : 0, static_cast<int32_t>(one.hidden)});
    const RuleWords rule = words_of(one.rule);
    words.insert(words.end(), rule.begin(), rule.end());
    writer.add(one.eos_tokens);
    writer.add(words_of(one.edits));
    writer.add(one.prompt_ids);
    writer.add(one.pages);
    writer.add(one.stop);
  }
  for (const AddedPage& one : step.added) words.insert(words.end(), {one.slot, one.page});
  for (const StepEntry& entry : step.entries) words.insert(words.end(), {entry.slot, entry.count});
  return words;
}

Step step_from_words(const std::vector<int32_t>& words) {
  WordReader reader(words);
  Step step;
  reader.take(step.end);
  const auto admitted = reader.take<int32_t>(), added = reader.take<int32_t>(), entries = reader.take<int32_t>();
  for (auto* list : {&step.released, &step.dropped, &step.counted}) reader.take(*list);
  for (int32_t i = 0; i < admitted; ++i) {
    Admission one;
    for (int32_t* part : {&one.slot, &one.sample, &one.prompt, &one.known, &one.cached, &one.max_new, &one.draw,
                          &one.tag, &one.likeliest, &one.choices, &one.choice, &one.first})
      reader.take(*part);
    reader.take(one.prompt_log_probs);
    reader.take(one.prompt_alone);
    reader.take(one.hidden);
    RuleWords rule{};
    for (int32_t& word : rule) reader.take(word);
    one.rule = rule_of(rule);
    reader.take(one.eos_tokens);
    one.edits = edits_of_words(reader.take<std::vector<int32_t>>());
    reader.take(one.prompt_ids);
    reader.take(one.pages);
    reader.take(one.stop);
    step.admitted.push_back(std::move(one));
  }
  for (int32_t i = 0; i < added; ++i) {
    AddedPage one;
    for (int32_t* part : {&one.slot, &one.page}) reader.take(*part);
    step.added.push_back(one);
  }
  for (int32_t i = 0; i < entries; ++i) {
    StepEntry entry;
    for (int32_t* part : {&entry.slot, &entry.count}) reader.take(*part);
    step.entries.push_back(entry);
  }
  expect(reader.at_end(), "Step: a message that goes on behind its end");
  return step;
}

}  // namespace lfm2
