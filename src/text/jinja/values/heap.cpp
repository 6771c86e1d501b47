#include "text/jinja/values/heap.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "text/jinja/values/operators.h"

namespace lfm2::jinja {

namespace {

constexpr size_t kSmallDict = 8;  // up to this number of entries, search is linear

// The slot of the table that contains, or would contain, the key.
size_t place_of(Heap& heap, std::span<const DictEntry> entries, std::span<const uint32_t> table, const Value& key) {
  size_t place = hash(heap, key) & (table.size() - 1);
  while (table[place] != 0 && !equal(heap, entries[table[place] - 1].key, key)) {
    heap.charge(1);
    place = (place + 1) & (table.size() - 1);
  }
  return place;
}

const DictEntry* find_entry(Heap& heap, std::span<const DictEntry> entries, std::span<const uint32_t> table,
                            const Value& key) {
  if (!table.empty()) {
    const uint32_t index = table[place_of(heap, entries, table, key)];
    return index == 0 ? nullptr : &entries[index - 1];
  }
  if (!key.is_text()) hash(heap, key);  // refuses values that cannot be keys
  for (const DictEntry& entry : entries)
    if (equal(heap, entry.key, key)) return &entry;
  return nullptr;
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

Heap::Heap(const Limits& limits, std::string what)
    : limits_(limits), what_(std::move(what)), begin_seconds_(thread_seconds()) {}

void Heap::look() {
  until_look_ = kCallsOfLook;
  if (limits_.stop != nullptr && limits_.stop->load(std::memory_order_relaxed))
    throw Error(ExitCode::kStopped, fmt::format("{}: stopped while the template was rendered", what_));
  if (thread_seconds() - begin_seconds_ > limits_.processor_seconds)
    fail(fmt::format("the template takes more than {} s of processor time", limits_.processor_seconds));
}

void Heap::fail(const std::string& message) const {
  throw Error(ExitCode::kData, line_ > 0 ? fmt::format("{}: line {}: {}", what_, line_, message)
                                         : fmt::format("{}: {}", what_, message));
}

void Heap::fail_again(std::string_view message) const { throw Error(ExitCode::kData, std::string(message)); }

void Heap::fail_steps() const { fail(fmt::format("the template takes more than {} steps", limits_.steps)); }

void Heap::fail_memory() const {
  fail(fmt::format("the template makes more than {} MiB of values", limits_.memory_bytes >> 20));
}

void Heap::fail_depth() {
  --depth_;  // no Level was made
  fail(fmt::format("the template nests calls and expressions deeper than {} levels", limits_.depth));
}

Value Heap::text(std::string_view text, bool markup) {
  if (text.empty()) return Value::text({}, markup);
  charge_bytes(text.size());
  char* copy = static_cast<char*>(allocate(text.size(), 1));
  std::memcpy(copy, text.data(), text.size());
  return Value::text({copy, text.size()}, markup);
}

Value Heap::concatenate(std::string_view a, std::string_view b, bool markup) {
  if (b.empty()) return Value::text(a, markup);
  if (a.empty()) return Value::text(b, markup);
  for (Growing& growing : growing_) {
    if (growing.end != a.data() + a.size() || growing.room < b.size()) continue;
    charge_bytes(b.size());
    std::memcpy(const_cast<char*>(growing.end), b.data(), b.size());
    growing = {growing.end + b.size(), growing.room - b.size()};
    return Value::text({a.data(), a.size() + b.size()}, markup);
  }
  constexpr size_t kLong = 256;
  const size_t bytes = a.size() + b.size();
  const size_t room = bytes < kLong ? 0 : bytes;
  charge_bytes(bytes);
  char* joined = static_cast<char*>(allocate(bytes + room, 1));
  std::memcpy(joined, a.data(), a.size());
  std::memcpy(joined + a.size(), b.data(), b.size());
  if (room > 0) growing_[next_growing_++ % growing_.size()] = {joined + bytes, room};
  return Value::text({joined, bytes}, markup);
}

int Heap::depth_of(std::span<const Value> values) const {
  int depth = 0;
  for (const Value& value : values) {
    if (value.is_sequence()) depth = std::max(depth, value.as<Items>().depth);
    if (value.is(Kind::kDict)) depth = std::max(depth, value.as<Dict>().depth);
    if (value.is(Kind::kView)) depth = std::max(depth, value.as<View>().items.depth);
  }
  check_depth(depth + 1);
  return depth + 1;
}

void Heap::check_depth(int value_depth) const {
  if (value_depth > limits_.value_depth) fail(fmt::format("a value nested deeper than {} levels", limits_.value_depth));
}

Value Heap::sequence(Kind kind, std::span<const Value> values) {
  charge(values.size() / 8);
  const int depth = depth_of(values);
  return Value::object(kind, make<Items>(copy_array(values), depth));
}

Value Heap::iterator(std::span<const Value> values, const Value* failure) {
  return Value::object(Kind::kIterator, make<Iterator>(copy_array(values), failure));
}

Value Heap::undefined(Undefined::Why why, std::string_view name, const char* type) {
  return Value::object(Kind::kUndefined, make<Undefined>(why, name, type));
}

void DictBuilder::set(const Value& key, const Value& value) {
  heap_.charge(1);
  if (const DictEntry* found = find_entry(heap_, entries_, table_, key)) {
    entries_[static_cast<size_t>(found - entries_.data())].value = value;
    return;
  }
  heap_.charge_memory(sizeof(DictEntry));
  entries_.push_back({key, value});
  if (entries_.size() <= kSmallDict) return;
  if (entries_.size() * 2 > table_.size()) {
    table_.assign(table_.empty() ? 4 * kSmallDict : 2 * table_.size(), 0);
    for (size_t i = 0; i < entries_.size(); ++i)
      table_[place_of(heap_, entries_, table_, entries_[i].key)] = static_cast<uint32_t>(i + 1);
  } else {
    table_[place_of(heap_, entries_, table_, key)] = static_cast<uint32_t>(entries_.size());
  }
}

bool DictBuilder::add(const Value& key) {
  const size_t before = entries_.size();
  set(key, Value::none());
  return entries_.size() > before;
}

Value DictBuilder::finish() {
  int depth = 1;
  for (const DictEntry& entry : entries_) depth = std::max(depth, heap_.depth_of(std::span(&entry.value, 1)));
  const auto entries = heap_.copy_array(std::span<const DictEntry>(entries_));
  const auto table = heap_.copy_array(std::span<const uint32_t>(table_));
  return Value::object(Kind::kDict, heap_.make<Dict>(entries, table, depth));
}

const Value* find_in(Heap& heap, const Dict& dict, const Value& key) {
  const DictEntry* found = find_entry(heap, dict.entries, dict.table, key);
  return found == nullptr ? nullptr : &found->value;
}

}  // namespace lfm2::jinja
