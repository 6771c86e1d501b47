// Python's operators and its built-in len(), bool() and iter() on values. An operation that Python refuses is an Error.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "text/jinja/values/heap.h"
#include "text/jinja/values/value.h"

namespace lfm2::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kModulo,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn,
};

bool truth(const Value& value);
bool equal(Heap& heap, const Value& a, const Value& b);
size_t hash(Heap& heap, const Value& value);  // of what may be a key
bool less(Heap& heap, const Value& a, const Value& b);
bool compare(Heap& heap, Operator op, const Value& a, const Value& b);
bool contains(Heap& heap, const Value& container, const Value& item);

Value arithmetic(Heap& heap, Operator op, const Value& a, const Value& b);
Value negate(Heap& heap, const Value& value);

std::optional<size_t> length(const Value& value);  // nullopt if Python's len() refuses the value
bool is_iterable(const Value& value);
// All items in order: those of a sequence, a dict's keys, a text's characters, or the rest of an iterator, which is
// empty afterwards. Error if the value cannot be iterated.
std::span<const Value> items_of(Heap& heap, const Value& value);

// Refuses an operation on something undefined, with Python's message; anything else with `what`.
[[noreturn]] void refuse(const Heap& heap, const Value& value, const std::string& what);
void require_defined(const Heap& heap, const Value& value);

// The text with & < > ' " escaped for HTML.
Value escape(Heap& heap, const Value& value);

}  // namespace lfm2::jinja
