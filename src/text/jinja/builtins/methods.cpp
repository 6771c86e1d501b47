// Lists' and dicts' methods, and the tables; those of text are in text_methods.cpp.
#include "text/jinja/builtins/methods.h"

#include "text/jinja/values/operators.h"

namespace lfm2::jinja {

namespace {

Value dict_view(Heap& heap, const Value& self, const Arguments& arguments, const char* type) {
  bind(heap, "a dict's method", arguments, {});
  std::vector<Value> values;
  const std::string_view kind(type);
  for (const DictEntry& entry : self.as<Dict>().entries) {
    const Value pair[] = {entry.key, entry.value};
    values.push_back(kind == "dict_items" ? heap.tuple(pair) : kind == "dict_keys" ? entry.key : entry.value);
  }
  heap.charge(values.size() / 8);
  const int depth = heap.depth_of(values);
  const Items items{heap.copy_array(std::span<const Value>(values)), depth};
  return Value::object(Kind::kView, heap.make<View>(type, items));
}

Value dict_items(Heap& heap, const Value& self, const Arguments& arguments) {
  return dict_view(heap, self, arguments, "dict_items");
}
Value dict_keys(Heap& heap, const Value& self, const Arguments& arguments) {
  return dict_view(heap, self, arguments, "dict_keys");
}
Value dict_values(Heap& heap, const Value& self, const Arguments& arguments) {
  return dict_view(heap, self, arguments, "dict_values");
}

Value dict_get(Heap& heap, const Value& self, const Arguments& arguments) {
  if (!arguments.keyword.empty()) heap.fail("get() takes no keyword arguments");
  const std::vector<Value> bound = bind(heap, "get()", arguments, {"key", "default"}, 1);
  const Value* found = find_in(heap, self.as<Dict>(), bound[0]);
  if (found != nullptr) return *found;
  return bound[1].is_missing() ? Value::none() : bound[1];
}

Value copy(Heap& heap, const Value& self, const Arguments& arguments) {
  bind(heap, "copy()", arguments, {});
  return self;  // nothing can change either of the two
}

Value list_count(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value item = bind(heap, "count()", arguments, {"value"}, 1)[0];
  Integer count = 0;
  for (const Value& value : self.as<Items>().values) count += equal(heap, value, item) ? 1 : 0;
  return Value::integer(count);
}

Value list_index(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value item = bind(heap, "index()", arguments, {"value"}, 1)[0];
  const auto values = self.as<Items>().values;
  for (size_t i = 0; i < values.size(); ++i)
    if (equal(heap, values[i], item)) return Value::integer(static_cast<Integer>(i));
  heap.fail("index(): the value is not in the list");
}

constexpr Named<Call> kDictMethods[] = {{"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
                                        {"get", dict_get},     {"copy", copy},      {"fromkeys", nullptr}};
constexpr Named<Call> kListMethods[] = {{"copy", copy}, {"count", list_count}, {"index", list_index}};

}  // namespace

const Named<Call>* find_dict_method(std::string_view name) { return find_named(kDictMethods, name); }
const Named<Call>* find_list_method(std::string_view name) { return find_named(kListMethods, name); }

}  // namespace lfm2::jinja
