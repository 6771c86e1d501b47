// The built-ins of templates: filters, tests, functions, and the methods and attributes of values.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory_resource>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/values/operators.h"

namespace lfm2::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> keyword;
};

// Prefix of parameters that Python has and this interpreter lacks. An argument for such a parameter is refused by name.
inline constexpr char kNotSupported = '!';
// Matches arguments to parameters: one value for each parameter, missing if not given. Error for an unknown or repeated
// argument, and for fewer than `required`. `what` names the function.
std::vector<Value> bind(Heap& heap, std::string_view what, const Arguments& arguments,
                        std::initializer_list<std::string_view> parameters, size_t required = 0);

// Error if the value is not of this kind; `what` names the argument.
std::string_view text_argument(Heap& heap, const Value& value, std::string_view what);
Integer integer_argument(Heap& heap, const Value& value, std::string_view what);

// A built-in filter, test or method.
template <class Call>
struct Named {
  std::string_view name;
  Call call;
};
template <class Call, size_t kCount>
const Named<Call>* find_named(const Named<Call> (&table)[kCount], std::string_view name) {
  for (const Named<Call>& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

// Finds an entry by name; null if there is none.
using Call = Value (*)(Heap&, const Value& self, const Arguments&);
const Named<Call>* find_filter(std::string_view name);
const Named<Call>* find_sequence_filter(std::string_view name);
const Named<Call>* find_text_method(std::string_view name);
const Named<Call>* find_dict_method(std::string_view name);
using Test = bool (*)(Heap&, const Value& value, const Arguments&);
const Named<Test>* find_test(std::string_view name);

struct Method {
  Value self;
  const Named<Call>* method;
};

Value apply_filter(Heap& heap, const Named<Call>& filter, const Value& input, const Arguments& arguments);
// The attribute of a value that a filter names by its argument; the value itself if `attribute` is missing.
Value follow(Heap& heap, const Value& value, const Value& attribute);

// The functions that every chat template may call; nullopt where Jinja has no function of this name.
std::optional<Function> find_function(std::string_view name);
// `now` is the time that strftime_now shows, in the local time zone. raise_exception() is an Error with its message.
Value call_function(Heap& heap, Function function, const Arguments& arguments, std::time_t now);

Value split(Heap& heap, std::string_view text, std::string_view separator, Integer max_cuts);  // as str.split
Value replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to);

// Change the case of text, as Python's str methods do. All except lower() accept only ASCII, which suffices for names
// of roles and types.
Value lower(Heap& heap, std::string_view text);
Value upper(Heap& heap, std::string_view text);
Value capitalize(Heap& heap, std::string_view text);
Value title(Heap& heap, std::string_view text);           // capitalises each letter that follows a non-letter
Value title_of_words(Heap& heap, std::string_view text);  // the filter: capitalises only after spaces and - ( { [ <

struct NamespaceEntry {
  std::string_view name;
  Value value;
};
// A namespace's attributes, the only values that a template can change.
struct Namespace {
  std::pmr::vector<NamespaceEntry> entries;
};
Value* find_in(Heap& heap, Namespace& space, std::string_view name);

// Produces the items of a loop one by one, on demand.
class LoopSource {
 public:
  virtual ~LoopSource() = default;
  virtual bool pull(Value& item) = 0;  // false at the end
  virtual size_t rest() = 0;           // how many are still to come
};

// The variable `loop` of a loop's body. Items are pulled only as far ahead as the template looks, because the condition
// of the loop may change while it runs.
struct Loop {
  LoopSource* source = nullptr;  // null when the loop is over
  size_t index0 = 0;
  Value before, current, after;  // `after` is missing until it is read
  bool ended = false;

  bool look_ahead() {
    if (after.is_missing() && !ended) ended = !source->pull(after);
    return !after.is_missing();
  }
};

// Attribute and item access with the rules of Jinja's sandbox:
Value get_attribute(Heap& heap, const Value& value, std::string_view name);  // value.name
Value get_item(Heap& heap, const Value& value, const Value& key);            // value[key]
// value[start:stop:step]; an omitted bound is missing or none.
Value get_slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace lfm2::jinja
