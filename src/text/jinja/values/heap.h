// The memory, steps and depth that one rendering may use. Everything that a rendering makes lives here until it ends,
// so that values are plain pointers, circles do no harm, and the limit on what is made is the limit on memory.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/values/limits.h"
#include "text/jinja/values/value.h"

namespace lfm2::jinja {

class Heap {
 public:
  Heap(const Limits& limits, std::string what);
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }
  void set_line(int line) { line_ = line; }
  // Error(kData) with the template's name and the line.
  [[noreturn]] void fail(const std::string& message) const;
  // The same with the message of an earlier failure.
  [[noreturn]] void fail_again(std::string_view message) const;

  // Counts steps of work. Copying and searching count by bytes: since bytes are fast, one step covers many of them.
  void charge(size_t steps) {
    if (steps > steps_left_) fail_steps();
    steps_left_ -= steps;
    if (--until_look_ == 0) look();
  }
  void charge_bytes(size_t bytes) { charge(bytes / 64); }
  void charge_memory(size_t bytes) {
    if (bytes > memory_left_) fail_memory();
    memory_left_ -= bytes;
  }

  template <class T, class... Arguments>
  T* make(Arguments&&... arguments) {
    return new (allocate(sizeof(T), alignof(T))) T{std::forward<Arguments>(arguments)...};
  }
  template <class T>
  std::span<T> copy_array(std::span<const T> values) {
    T* items = static_cast<T*>(allocate(values.size() * sizeof(T), alignof(T)));
    std::uninitialized_copy(values.begin(), values.end(), items);
    return {items, values.size()};
  }

  // For containers that grow. Their memory must be charged separately.
  std::pmr::memory_resource* memory() { return &arena_; }

  Value text(std::string_view text, bool markup = false);  // a copy
  Value concatenate(std::string_view a, std::string_view b, bool markup = false);
  Value sequence(Kind kind, std::span<const Value> values);  // kList or kTuple
  Value list(std::span<const Value> values) { return sequence(Kind::kList, values); }
  Value tuple(std::span<const Value> values) { return sequence(Kind::kTuple, values); }
  Value iterator(std::span<const Value> values, const Value* failure = nullptr);
  Value undefined(Undefined::Why why, std::string_view name, const char* type = "");
  int depth_of(
      std::span<const Value> values) const;  // the depth of a container of these values; refuses too deep nesting
  void check_depth(int value_depth) const;

  // Counts one level of nesting of the evaluation during its lifetime.
  class Level {
   public:
    explicit Level(Heap& heap) : heap_(heap) {
      if (++heap_.depth_ > heap_.limits_.depth) heap_.fail_depth();
    }
    ~Level() { --heap_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Heap& heap_;
  };

 private:
  void* allocate(size_t bytes, size_t alignment) {
    charge_memory(bytes);
    return arena_.allocate(bytes, alignment);
  }
  void look();  // checks the time limit and the stop flag
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_memory() const;
  [[noreturn]] void fail_depth();

  static constexpr int kCallsOfLook = 256;  // look() runs once in this number of calls of charge()

  // Reserved memory after a text that concatenate() made, so that the next piece is appended in place.
  struct Growing {
    const char* end = nullptr;
    size_t room = 0;
  };

  Limits limits_;
  std::string what_;
  int line_ = 0;
  int depth_ = 0;
  size_t steps_left_ = limits_.steps;
  const double begin_seconds_;  // of the thread's processor time
  int until_look_ = kCallsOfLook;
  size_t memory_left_ = limits_.memory_bytes;
  std::array<Growing, 4> growing_;
  size_t next_growing_ = 0;
  std::pmr::monotonic_buffer_resource arena_;
};

// Collects the entries of a dict. A later value of an equal key replaces the earlier value and keeps its place.
class DictBuilder {
 public:
  explicit DictBuilder(Heap& heap) : heap_(heap) {}
  void set(const Value& key, const Value& value);
  bool add(const Value& key);  // false if the key exists already
  Value finish();

 private:
  Heap& heap_;
  std::vector<DictEntry> entries_;
  std::vector<uint32_t> table_;
};

const Value* find_in(Heap& heap, const Dict& dict, const Value& key);  // null if absent

}  // namespace lfm2::jinja
