// A message begins with whether the run ends and with the numbers of admissions, added pages and entries. Lists follow,
// each behind its length.
#include "stage/pipeline/step.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/error.h"

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

constexpr size_t words_for(size_t bytes) { return (bytes + sizeof(int32_t) - 1) / sizeof(int32_t); }

// Reads a message word by word.
class WordReader {
 public:
  explicit WordReader(const std::vector<int32_t>& words) : words_(words) {}
  int32_t next() {
    expect(at_ < words_.size(), "Step: a message that ends too early");
    return words_[at_++];
  }
  std::vector<int32_t> list() {
    const int32_t count = next();
    expect(count >= 0 && static_cast<size_t>(count) <= words_.size() - at_, "Step: a message that ends too early");
    const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += static_cast<size_t>(count);
    return {begin, begin + count};
  }
  std::string text() {
    const auto bytes = static_cast<size_t>(next());
    expect(bytes <= (words_.size() - at_) * sizeof(int32_t), "Step: a message that ends too early");
    std::string text(bytes, '\0');
    std::memcpy(text.data(), words_.data() + at_, bytes);
    at_ += words_for(bytes);
    return text;
  }
  bool at_end() const { return at_ == words_.size(); }

 private:
  const std::vector<int32_t>& words_;
  size_t at_ = 0;
};

void append_list(std::vector<int32_t>& words, const std::vector<int32_t>& list) {
  words.push_back(static_cast<int32_t>(list.size()));
  words.insert(words.end(), list.begin(), list.end());
}

// The number of bytes, then the bytes.
void append_text(std::vector<int32_t>& words, const std::string& text) {
  words.push_back(static_cast<int32_t>(text.size()));
  const size_t first = words.size();
  words.resize(first + words_for(text.size()), 0);
  std::memcpy(words.data() + first, text.data(), text.size());
}

}  // namespace

std::vector<int32_t> to_words(const Step& step) {
  std::vector<int32_t> words{step.end ? 1 : 0, static_cast<int32_t>(step.admitted.size()),
                             static_cast<int32_t>(step.added.size()), static_cast<int32_t>(step.entries.size())};
  append_list(words, step.released);
  append_list(words, step.dropped);
  append_list(words, step.counted);
  for (const Admission& one : step.admitted) {
    words.insert(words.end(), {one.slot, one.sample, one.prompt, one.known, one.cached, one.max_new, one.draw, one.tag,
                               one.likeliest, one.choices, one.choice, one.first, one.prompt_log_probs ? 1 : 0,
                               one.prompt_alone ? 1 : 0, static_cast<int32_t>(one.hidden)});
    const RuleWords rule = words_of(one.rule);
    words.insert(words.end(), rule.begin(), rule.end());
    append_list(words, one.eos_tokens);
    append_list(words, words_of(one.edits));
    append_list(words, one.prompt_ids);
    append_list(words, one.pages);
    words.push_back(static_cast<int32_t>(one.stop.size()));
    for (const std::string& text : one.stop) append_text(words, text);
  }
  for (const AddedPage& one : step.added) words.insert(words.end(), {one.slot, one.page});
  for (const StepEntry& entry : step.entries) words.insert(words.end(), {entry.slot, entry.count});
  return words;
}

Step step_from_words(const std::vector<int32_t>& words) {
  WordReader reader(words);
  Step step;
  step.end = reader.next() != 0;
  const int32_t admitted = reader.next(), added = reader.next(), entries = reader.next();
  step.released = reader.list();
  step.dropped = reader.list();
  step.counted = reader.list();
  for (int32_t i = 0; i < admitted; ++i) {
    Admission one;
    for (int32_t* part : {&one.slot, &one.sample, &one.prompt, &one.known, &one.cached, &one.max_new, &one.draw,
                          &one.tag, &one.likeliest, &one.choices, &one.choice, &one.first})
      *part = reader.next();
    one.prompt_log_probs = reader.next() != 0;
    one.prompt_alone = reader.next() != 0;
    one.hidden = static_cast<Hidden>(reader.next());
    RuleWords rule{};
    for (int32_t& word : rule) word = reader.next();
    one.rule = rule_of(rule);
    one.eos_tokens = reader.list();
    one.edits = edits_of_words(reader.list());
    one.prompt_ids = reader.list();
    one.pages = reader.list();
    for (int32_t left = reader.next(); left > 0; --left) one.stop.push_back(reader.text());
    step.admitted.push_back(std::move(one));
  }
  for (int32_t i = 0; i < added; ++i) {
    AddedPage one;
    for (int32_t* part : {&one.slot, &one.page}) *part = reader.next();
    step.added.push_back(one);
  }
  for (int32_t i = 0; i < entries; ++i) {
    StepEntry entry;
    for (int32_t* part : {&entry.slot, &entry.count}) *part = reader.next();
    step.entries.push_back(entry);
  }
  expect(reader.at_end(), "Step: a message that goes on behind its end");
  return step;
}

}  // namespace lfm2
