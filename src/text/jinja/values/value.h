// The values of a template: the types of Python that chat templates use. A Value is small and copied freely. It points
// to data in the Heap of one rendering, in the template or in the caller's JSON. That data is constant, except for a
// namespace's attributes and the position of an iterator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lfm2::jinja {

// Python's integers have any size. These have 128 bits, and larger results are refused.
__extension__ using Integer = __int128;

enum class Kind : uint8_t {
  kMissing,  // no value: an unset variable or an omitted argument
  kUndefined,
  kNone,
  kBoolean,
  kInteger,
  kDigits,  // an integer of the conversation with more bits than Integer, which can only be printed
  kReal,
  kText,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      // dict.items(), .keys() and .values()
  kIterator,  // yields its items once: a generator
  kNamespace,
  kMacro,
  kMethod,  // of a text, list or dict, bound to it
  kFunction,
  kLoop,
};

struct Items;
struct Dict;
struct Range;
struct View;
struct Iterator;
struct Namespace;
struct Macro;
struct Method;
struct Loop;
struct Undefined;
enum class Function : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

class Value {
 public:
  Value() : integer_(0) {}
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value) {
    Value result(Kind::kBoolean);
    result.integer_ = value;
    return result;
  }
  static Value integer(Integer value) {
    Value result(Kind::kInteger);
    result.integer_ = value;
    return result;
  }
  static Value digits(std::string_view text) {
    Value result = Value::text(text);
    result.kind_ = Kind::kDigits;
    return result;
  }
  static Value real(double value) {
    Value result(Kind::kReal);
    result.real_ = value;
    return result;
  }
  static Value text(std::string_view text, bool markup = false) {
    Value result(Kind::kText);
    result.markup_ = markup;
    result.text_ = {text.data() == nullptr ? "" : text.data(), text.size()};  // C functions need a non-null pointer
    return result;
  }
  static Value function(Function function) {
    Value result(Kind::kFunction);
    result.integer_ = static_cast<int>(function);
    return result;
  }
  static Value object(Kind kind, void* object) {
    Value result(kind);
    result.object_ = object;
    return result;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_text() const { return kind_ == Kind::kText; }
  bool is_integral() const { return kind_ == Kind::kInteger || kind_ == Kind::kBoolean; }
  bool is_number() const { return is_integral() || kind_ == Kind::kReal; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  // Text that the template declared safe: Python's Markup, whose + escapes the other operand.
  bool is_markup() const { return markup_; }

  // Each may be called only for values of its kind.
  bool as_boolean() const { return integer_ != 0; }
  Integer as_integer() const { return integer_; }                                             // a boolean is 0 or 1
  double as_real() const { return is(Kind::kReal) ? real_ : static_cast<double>(integer_); }  // of any number
  std::string_view as_text() const { return {text_.data, text_.bytes}; }
  Function as_function() const { return static_cast<Function>(integer_); }
  template <class T>
  T& as() const {
    return *static_cast<T*>(object_);
  }
  const void* address() const { return object_; }

 private:
  explicit Value(Kind kind) : kind_(kind), integer_(0) {}

  struct Text {
    const char* data;
    size_t bytes;
  };
  Kind kind_ = Kind::kMissing;
  bool markup_ = false;
  union {
    Integer integer_;
    double real_;
    Text text_;
    void* object_;
  };
};

// Lists and tuples. `depth` counts the levels of lists, tuples and dicts.
struct Items {
  std::span<const Value> values;
  int depth = 1;
};

struct DictEntry {
  Value key, value;
};

// `table` is empty for a small dict, else a hash table with open addressing of indices into `entries`, plus 1.
struct Dict {
  std::span<const DictEntry> entries;
  std::span<const uint32_t> table;
  int depth = 1;
};

struct Range {
  Integer start = 0, stop = 0, step = 1;
  size_t count = 0;
};

struct View {
  const char* type;  // "dict_items" and so on
  Items items;
};

struct Iterator {
  std::span<const Value> rest;
  const Value* failure = nullptr;  // message of the error that follows the items
};

// Why a value is undefined, for the error message when it is used.
struct Undefined {
  enum class Why : uint8_t { kName, kAttribute, kElement, kParameter, kOther };
  Why why;
  std::string_view name;  // or the whole message
  const char* type = "";  // of what lacks the attribute
};

const char* type_name(const Value& value);  // as Python's messages name it

}  // namespace lfm2::jinja
