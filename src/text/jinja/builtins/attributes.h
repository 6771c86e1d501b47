// What `value.name`, `value[key]` and `value[a:b]` give in Jinja's sandbox.
#pragma once

#include <memory_resource>
#include <string_view>
#include <vector>

#include "text/jinja/values/heap.h"
#include "text/jinja/values/value.h"

namespace lfm2::jinja {

struct NamespaceEntry {
  std::string_view name;
  Value value;
};
// A namespace's attributes: the only thing that a template can change.
struct Namespace {
  std::pmr::vector<NamespaceEntry> entries;
};
Value* find_in(Heap& heap, Namespace& space, std::string_view name);

// Gives a loop its items one by one, as the loop or the template asks for them.
class LoopSource {
 public:
  virtual ~LoopSource() = default;
  virtual bool pull(Value& item) = 0;  // false at the end
  virtual size_t rest() = 0;           // how many are still to come
};

// What the body of a loop knows as `loop`. Items are asked for no further ahead than the template looks, because a
// loop's own condition may change while it goes.
struct Loop {
  LoopSource* source = nullptr;  // null when the loop is over
  size_t index0 = 0;
  Value before, current, after;  // `after` is missing as long as nobody looked
  bool ended = false;

  bool look_ahead() {
    if (after.is_missing() && !ended) ended = !source->pull(after);
    return !after.is_missing();
  }
};

Value get_attribute(Heap& heap, const Value& value, std::string_view name);  // value.name
Value get_item(Heap& heap, const Value& value, const Value& key);            // value[key]
// value[start:stop:step]; what is left out is missing or none.
Value get_slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace lfm2::jinja
