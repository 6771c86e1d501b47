// Values as Python and JSON write them: the literals of both, mixed as models mix them.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/json/json.h"
#include "openai/answer/python_string.h"

namespace lfm2 {

// Reads the value that comes next, at most 64 levels deep: words of both languages, numbers (read_number), strings
// (read_string), lists, tuples and sets, which become lists, and objects, whose keys become text. NoLiteral for
// everything else, such as names, operators and calls.
OrderedJson read_literal(TextCursor& in, const LiteralSyntax& syntax, StringPlace place);

// Builds an object entry by entry. Of a repeated key the later value counts, in the place of the first.
class ObjectBuilder {
 public:
  void set(std::string key, OrderedJson value) {
    auto& entries = object_.get_ref<OrderedJson::object_t&>();
    const auto [found, is_new] = places_.try_emplace(key, entries.size());
    if (is_new)
      entries.push_back({std::move(key), std::move(value)});
    else
      entries.data()[found->second].second = std::move(value);
  }
  OrderedJson finish() { return std::move(object_); }

 private:
  OrderedJson object_ = OrderedJson::object();
  std::map<std::string, size_t> places_;  // key -> index in the object, which would look for it among all
};

}  // namespace lfm2
