// Every list has its length before it; 64 bits are two words, and texts are padded to whole words.
#include "stage/io/completion_words.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/error.h"

namespace lfm2 {

namespace {

using Halves = std::array<int32_t, 2>;

constexpr size_t words_of(size_t bytes) { return (bytes + sizeof(int32_t) - 1) / sizeof(int32_t); }

class Writer {
 public:
  explicit Writer(std::vector<int32_t>& words) : words_(words) {}

  void add(int32_t value) { words_.push_back(value); }
  void add(int64_t value) {
    const auto halves = std::bit_cast<Halves>(value);
    words_.insert(words_.end(), halves.begin(), halves.end());
  }
  void add(const std::vector<int32_t>& list) {
    add(static_cast<int32_t>(list.size()));
    words_.insert(words_.end(), list.begin(), list.end());
  }
  void add(const std::vector<float>& list) {
    add(static_cast<int32_t>(list.size()));
    for (const float value : list) words_.push_back(std::bit_cast<int32_t>(value));
  }
  void add(const std::string& text) {
    add(static_cast<int32_t>(text.size()));
    const size_t at = words_.size();
    words_.resize(at + words_of(text.size()));
    std::memcpy(words_.data() + at, text.data(), text.size());
  }
  void add(const Completion& one) {
    add(one.sample);
    add(one.choice);
    add(one.prompt_tokens);
    add(one.tag);
    add(static_cast<int32_t>(one.reason));
    add(one.text_bytes.value_or(kNoBytes));
    add(one.token_ids);
    add(one.log_probs);
    add(one.top_ids);
    add(one.top_log_probs);
    add(one.prompt_ids);
    add(one.prompt.log_probs);
    add(one.prompt.top_ids);
    add(one.prompt.top_log_probs);
    add(one.error);
    add(static_cast<int32_t>(one.others.size()));
    for (const Completion& other : one.others) add(other);
  }

  static constexpr int64_t kNoBytes = -1;

 private:
  std::vector<int32_t>& words_;
};

class Reader {
 public:
  explicit Reader(std::span<const int32_t> words) : words_(words) {}

  bool at_end() const { return words_.empty(); }
  void take(int32_t& value) { value = next(1)[0]; }
  void take(int64_t& value) {
    Halves halves{};
    std::ranges::copy(next(halves.size()), halves.begin());
    value = std::bit_cast<int64_t>(halves);
  }
  void take(std::vector<int32_t>& list) {
    const std::span<const int32_t> words = next(length());
    list.assign(words.begin(), words.end());
  }
  void take(std::vector<float>& list) {
    for (const int32_t word : next(length())) list.push_back(std::bit_cast<float>(word));
  }
  void take(std::string& text) {
    const size_t bytes = length();
    text.assign(reinterpret_cast<const char*>(next(words_of(bytes)).data()), bytes);
  }
  void take(Completion& one) {
    int32_t reason = 0;
    int64_t text_bytes = 0;
    take(one.sample);
    take(one.choice);
    take(one.prompt_tokens);
    take(one.tag);
    take(reason);
    one.reason = static_cast<FinishReason>(reason);
    take(text_bytes);
    if (text_bytes != Writer::kNoBytes) one.text_bytes = text_bytes;
    take(one.token_ids);
    take(one.log_probs);
    take(one.top_ids);
    take(one.top_log_probs);
    take(one.prompt_ids);
    take(one.prompt.log_probs);
    take(one.prompt.top_ids);
    take(one.prompt.top_log_probs);
    take(one.error);
    one.others.resize(length());
    for (Completion& other : one.others) take(other);
  }

 private:
  size_t length() { return static_cast<size_t>(next(1)[0]); }
  std::span<const int32_t> next(size_t count) {
    expect(count <= words_.size(), "for_each_completion: a message is cut off");
    const std::span<const int32_t> list = words_.first(count);
    words_ = words_.subspan(count);
    return list;
  }

  std::span<const int32_t> words_;
};

}  // namespace

void append_words(std::vector<int32_t>& words, const Completion& completion) { Writer(words).add(completion); }

void for_each_completion(std::span<const int32_t> words, const std::function<void(const Completion&)>& take) {
  for (Reader reader(words); !reader.at_end();) {
    Completion one;
    reader.take(one);
    take(one);
  }
}

}  // namespace lfm2
