// The filters on lists, dicts and other values with items.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// A generator of the items that `fill` collects. Python's generators fail only when the faulty item is requested, which
// a template need not do.
template <class Fill>
Value generate(Heap& heap, Fill&& fill) {
  std::vector<Value> values;
  const Value* failure = nullptr;
  try {
    fill(values);
  } catch (const Error& error) {
    failure = heap.make<Value>(heap.text(error.what()));
  }
  return heap.iterator(values, failure);
}

Value length_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "length", arguments, {});
  if (input.is_text()) heap.charge_bytes(input.as_text().size());
  const std::optional<size_t> count = length(input);
  if (!count) heap.fail(fmt::format("object of type '{}' has no len()", type_name(input)));
  return Value::integer(static_cast<Integer>(*count));
}

Value list_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "list", arguments, {});
  return heap.list(items_of(heap, input));
}

Value first_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "first", arguments, {});
  if (input.is(Kind::kIterator)) heap.fail(unsupported("the filter 'first' of a generator"));
  const auto items = items_of(heap, input);
  return items.empty() ? heap.undefined(Undefined::Why::kOther, "No first item, sequence was empty.") : items.front();
}

Value last_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "last", arguments, {});
  if (input.is(Kind::kIterator)) heap.fail(fmt::format("'{}' object is not reversible", type_name(input)));
  const auto items = items_of(heap, input);
  return items.empty() ? heap.undefined(Undefined::Why::kOther, "No last item, sequence was empty.") : items.back();
}

Value join_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const Value joint = bind(heap, "join", arguments, {"d", "!attribute"})[0];
  const Value between = joint.is_missing() ? Value::text({}) : str(heap, joint);
  std::string out;
  bool first = true;
  for (const Value& item : items_of(heap, input)) {
    if (!std::exchange(first, false)) append_str(heap, out, between);
    append_str(heap, out, item);
  }
  return heap.text(out);
}

Value items_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "items", arguments, {});
  return generate(heap, [&](std::vector<Value>& pairs) {
    if (input.is_undefined()) return;
    if (!input.is(Kind::kDict)) heap.fail("Can only get item pairs from a mapping.");
    for (const DictEntry& entry : input.as<Dict>().entries) {
      const Value pair[] = {entry.key, entry.value};
      pairs.push_back(heap.tuple(pair));
    }
  });
}

Value ignore_case(Heap& heap, const Value& value) { return value.is_text() ? lower(heap, value.as_text()) : value; }

// The values, sorted by their keys. Values with equal keys keep their order.
Value sorted(Heap& heap, std::span<const Value> values, const std::vector<Value>& keys) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return less(heap, keys[a], keys[b]); });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(values[i]);
  return heap.list(result);
}

Value sort_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const Value attribute = bind(heap, "sort", arguments, {"!reverse", "!case_sensitive", "attribute"})[2];
  if (attribute.is_text() && attribute.as_text().find(',') != std::string_view::npos)
    heap.fail(unsupported("the filter 'sort' by several attributes"));
  const auto values = items_of(heap, input);
  std::vector<Value> keys;
  for (const Value& value : values) {
    const Value key = ignore_case(heap, follow(heap, value, attribute));
    keys.push_back(heap.list(std::span(&key, 1)));  // as in Jinja, so that equal keys need no order
  }
  return sorted(heap, values, keys);
}

Value dictsort_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "dictsort", arguments, {"!case_sensitive", "!by", "!reverse"});
  if (!input.is(Kind::kDict))
    refuse(heap, input, fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  std::vector<Value> pairs, keys;
  for (const DictEntry& entry : input.as<Dict>().entries) {
    const Value pair[] = {entry.key, entry.value};
    pairs.push_back(heap.tuple(pair));
    keys.push_back(ignore_case(heap, entry.key));
  }
  return sorted(heap, pairs, keys);
}

Value unique_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "unique", arguments, {"!case_sensitive", "!attribute"});
  return generate(heap, [&](std::vector<Value>& result) {
    DictBuilder seen(heap);
    for (const Value& value : items_of(heap, input))
      if (seen.add(ignore_case(heap, value))) result.push_back(value);
  });
}

Value min_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "min", arguments, {"!case_sensitive", "!attribute"});
  const auto values = items_of(heap, input);
  if (values.empty()) return heap.undefined(Undefined::Why::kOther, "No aggregated item, sequence was empty.");
  Value least = values[0];
  for (const Value& value : values.subspan(1))
    if (less(heap, ignore_case(heap, value), ignore_case(heap, least))) least = value;
  return least;
}

// An undefined value or none has no items for map, select and similar filters.
std::span<const Value> items_or_none(Heap& heap, const Value& value) {
  return truth(value) ? items_of(heap, value) : std::span<const Value>();
}

// The arguments after the first `count`.
Arguments behind(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

void map_values(Heap& heap, const Value& input, const Arguments& arguments, std::vector<Value>& result) {
  const auto values = items_or_none(heap, input);
  if (arguments.positional.empty()) {
    const Value attribute = bind(heap, "map", arguments, {"attribute", "!default"}, 1)[0];
    for (const Value& value : values) {
      heap.charge(1);
      result.push_back(follow(heap, value, attribute));
    }
    return;
  }
  if (values.empty()) return;
  const std::string_view name = text_argument(heap, arguments.positional[0], "the filter for map");
  const Named<Call>* filter = find_filter(name);
  if (filter == nullptr) heap.fail(unknown(Naming::kFilter, name));
  const Arguments rest = behind(arguments, 1);
  for (const Value& value : values) result.push_back(apply_filter(heap, *filter, value, rest));
}

Value map_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  return generate(heap, [&](std::vector<Value>& result) { map_values(heap, input, arguments, result); });
}

// reject, selectattr and rejectattr.
template <bool kAttribute, bool kSelect>
void select_values(Heap& heap, const Value& input, const Arguments& arguments, std::vector<Value>& result) {
  const auto values = items_or_none(heap, input);
  if (values.empty()) return;
  const size_t before = kAttribute ? 1 : 0;
  if (arguments.positional.size() < before) heap.fail("Missing parameter for attribute name");
  const Named<Test>* test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > before) {
    const std::string_view name = text_argument(heap, arguments.positional[before], "the test for select or reject");
    test = find_test(name);
    if (test == nullptr) heap.fail(unknown(Naming::kTest, name));
    rest = behind(arguments, before + 1);
  }
  for (const Value& value : values) {
    heap.charge(1);
    const Value tested = kAttribute ? follow(heap, value, arguments.positional[0]) : value;
    if ((test == nullptr ? truth(tested) : test->call(heap, tested, rest)) == kSelect) result.push_back(value);
  }
}

template <bool kAttribute, bool kSelect>
Value select_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  return generate(
      heap, [&](std::vector<Value>& result) { select_values<kAttribute, kSelect>(heap, input, arguments, result); });
}

constexpr Named<Call> kSequenceFilters[] = {
    {"count", length_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"min", min_filter},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<true, false>},
    {"selectattr", select_filter<true, true>},
    {"sort", sort_filter},
    {"unique", unique_filter},
};

}  // namespace

const Named<Call>* find_sequence_filter(std::string_view name) { return find_named(kSequenceFilters, name); }

Value follow(Heap& heap, const Value& value, const Value& attribute) {
  if (attribute.is_missing() || attribute.is_none()) return value;
  const std::string_view name = text_argument(heap, attribute, "an attribute's name");
  if (name.find('.') != std::string_view::npos || name.find_first_not_of("0123456789") == std::string_view::npos)
    heap.fail(unsupported(fmt::format("'{}' as the name of an attribute", name)));
  return get_item(heap, value, attribute);
}

}  // namespace lfm2::jinja
