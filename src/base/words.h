// Encodes values as 32-bit words of a message. A length precedes each list and text, 64 bits are two words, and texts
// are padded to whole words. A struct lists its members in for_each_field(value, each), in its own namespace; each()
// accepts any number of fields.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lfm2 {

// The parameter of for_each_field(): const to encode the value, mutable to decode into it.
template <class T, class Value>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Value>;

template <class T>
inline constexpr bool kIsOneWord = std::is_enum_v<T> || std::is_same_v<T, bool>;

constexpr size_t words_of_text(size_t bytes) { return (bytes + sizeof(int32_t) - 1) / sizeof(int32_t); }

class WordWriter {
 public:
  explicit WordWriter(std::vector<int32_t>& words) : words_(words) {}

  template <class T>
  void add(const T& value) {
    if constexpr (kIsOneWord<T>) {
      words_.push_back(static_cast<int32_t>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
      const auto words = std::bit_cast<std::array<int32_t, sizeof(T) / sizeof(int32_t)>>(value);
      words_.insert(words_.end(), words.begin(), words.end());
    } else {
      for_each_field(value, [this](const auto&... fields) { (add(fields), ...); });
    }
  }
  void add(const std::string& text) {
    add_length(text.size());
    const size_t at = words_.size();
    words_.resize(at + words_of_text(text.size()));
    std::memcpy(words_.data() + at, text.data(), text.size());
  }
  template <class T>
  void add(const std::vector<T>& list) {
    add_length(list.size());
    if constexpr (std::is_same_v<T, int32_t>)
      words_.insert(words_.end(), list.begin(), list.end());
    else
      for (const T& one : list) add(one);
  }
  template <class T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <class A, class B>
  void add(const std::pair<A, B>& both) {
    add(both.first);
    add(both.second);
  }

 private:
  void add_length(size_t length) {
    expect(std::in_range<int32_t>(length), "WordWriter: a list or text is too long for a message");
    add(static_cast<int32_t>(length));
  }

  std::vector<int32_t>& words_;
};

class WordReader {
 public:
  explicit WordReader(std::span<const int32_t> words) : words_(words) {}

  bool at_end() const { return words_.empty(); }
  template <class T>
  void read(T& value) {
    if constexpr (kIsOneWord<T>) {
      value = static_cast<T>(next(1)[0]);
    } else if constexpr (std::is_arithmetic_v<T>) {
      std::array<int32_t, sizeof(T) / sizeof(int32_t)> words{};
      std::ranges::copy(next(words.size()), words.begin());
      value = std::bit_cast<T>(words);
    } else {
      for_each_field(value, [this](auto&... fields) { (read(fields), ...); });
    }
  }
  template <class T>
  T read() {
    T value{};
    read(value);
    return value;
  }
  void read(std::string& text) {
    const size_t bytes = length(sizeof(int32_t));
    text.assign(reinterpret_cast<const char*>(next(words_of_text(bytes)).data()), bytes);
  }
  template <class T>
  void read(std::vector<T>& list) {
    const size_t count = length(1);
    if constexpr (std::is_same_v<T, int32_t>) {
      const std::span<const int32_t> words = next(count);
      list.assign(words.begin(), words.end());
    } else {
      list.resize(count);
      for (T& one : list) read(one);
    }
  }
  template <class T>
  void read(std::optional<T>& value) {
    bool there = false;
    read(there);
    value.reset();
    if (there) read(value.emplace());
  }
  template <class A, class B>
  void read(std::pair<A, B>& both) {
    read(both.first);
    read(both.second);
  }

 private:
  // The length of a list. A word holds at most `in_a_word` of its elements.
  size_t length(size_t in_a_word) {
    const auto count = static_cast<size_t>(read<int32_t>());
    expect(count <= words_.size() * in_a_word, "WordReader: a message is cut off");
    return count;
  }
  std::span<const int32_t> next(size_t count) {
    expect(count <= words_.size(), "WordReader: a message is cut off");
    const std::span<const int32_t> words = words_.first(count);
    words_ = words_.subspan(count);
    return words;
  }

  std::span<const int32_t> words_;
};

// Encode a value as a message and decode it. Error(kSoftware) if `words` is not such a message.
template <class T>
std::vector<int32_t> to_words(const T& value) {
  std::vector<int32_t> words;
  WordWriter(words).add(value);
  return words;
}
template <class T>
T from_words(std::span<const int32_t> words) {
  WordReader reader(words);
  T value = reader.read<T>();
  expect(reader.at_end(), "from_words: a message that continues past its end");
  return value;
}
// The same as bytes, for collectives.
template <class T>
std::string to_bytes(const T& value) {
  const std::vector<int32_t> words = to_words(value);
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int32_t)};
}
template <class T>
T from_bytes(const std::string& bytes) {
  std::vector<int32_t> words(bytes.size() / sizeof(int32_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int32_t));
  return from_words<T>(words);
}

}  // namespace lfm2
