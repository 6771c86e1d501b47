// Lists' and dicts' methods; those of text are in text_methods.cpp.
#include "text/jinja/builtins/methods.h"

#include "text/jinja/values/operators.h"

namespace lfm2::jinja {

namespace {

template <bool kPairs>
Value dict_view(Heap& heap, const Value& self, const Arguments& arguments) {
  bind(heap, "a dict's method", arguments, {});
  std::vector<Value> values;
  for (const DictEntry& entry : self.as<Dict>().entries) {
    const Value pair[] = {entry.key, entry.value};
    values.push_back(kPairs ? heap.tuple(pair) : entry.key);
  }
  heap.charge(values.size() / 8);
  const int depth = heap.depth_of(values);
  const Items items{heap.copy_array(std::span<const Value>(values)), depth};
  return Value::object(Kind::kView, heap.make<View>(kPairs ? "dict_items" : "dict_keys", items));
}

Value dict_get(Heap& heap, const Value& self, const Arguments& arguments) {
  if (!arguments.keyword.empty()) heap.fail("get() takes no keyword arguments");
  const std::vector<Value> bound = bind(heap, "get()", arguments, {"key", "default"}, 1);
  const Value* found = find_in(heap, self.as<Dict>(), bound[0]);
  if (found != nullptr) return *found;
  return bound[1].is_missing() ? Value::none() : bound[1];
}

constexpr Named<Call> kDictMethods[] = {{"items", dict_view<true>}, {"keys", dict_view<false>}, {"get", dict_get}};

}  // namespace

const Named<Call>* find_dict_method(std::string_view name) { return find_named(kDictMethods, name); }

}  // namespace lfm2::jinja
