// The filters on lists, dicts and other values with items.
#include <algorithm>

#include "kernels/error.h"
#include "text/jinja/builtins/attributes.h"
#include "text/jinja/builtins/filters.h"
#include "text/jinja/builtins/methods.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

// A generator of what `fill` collects. Python's generators fail only when they are asked for what goes wrong, and a
// template need not ask.
template <class Fill>
Value generate(Heap& heap, Fill&& fill) {
  std::vector<Value> values;
  const Value* failure = nullptr;
  try {
    fill(values);
  } catch (const Error& error) {
    failure = heap.make<Value>(heap.text(error.what()));
  }
  return heap.iterator("generator", values, failure);
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
  if (input.is(Kind::kIterator)) {
    auto& rest = input.as<Iterator>().rest;
    if (!rest.empty()) {
      const Value first = rest.front();
      rest = rest.subspan(1);
      return first;
    }
  }
  const auto items = items_of(heap, input);
  return items.empty() ? heap.undefined(Undefined::Why::kOther, "No first item, sequence was empty.") : items.front();
}

Value last_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "last", arguments, {});
  if (input.is(Kind::kIterator)) heap.fail(fmt::format("'{}' object is not reversible", type_name(input)));
  const auto items = items_of(heap, input);
  return items.empty() ? heap.undefined(Undefined::Why::kOther, "No last item, sequence was empty.") : items.back();
}

Value reverse_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "reverse", arguments, {});
  const auto items = items_of(heap, input);
  std::vector<Value> reversed(items.rbegin(), items.rend());
  heap.charge(items.size() / 8);
  if (!input.is_text()) return input.is(Kind::kIterator) ? heap.list(reversed) : heap.iterator("reversed", reversed);
  std::string text;
  for (const Value& character : reversed) text += character.as_text();
  return heap.text(text);
}

Value join_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "join", arguments, {"d", "attribute"});
  const Value between = bound[0].is_missing() ? Value::text({}) : str(heap, bound[0]);
  std::string out;
  bool first = true;
  for (const Value& item : items_of(heap, input)) {
    if (!std::exchange(first, false)) append_str(heap, out, between);
    append_str(heap, out, follow(heap, item, bound[1]));
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

std::vector<Value> copy_of(std::span<const Value> values) { return {values.begin(), values.end()}; }

Value ignore_case(Heap& heap, const Value& value) {
  if (!value.is_text()) return value;
  heap.charge_bytes(16 * value.as_text().size());
  return heap.text(lower(value.as_text()));
}

// The values, sorted by their keys. Values with equal keys keep their order, in reverse too.
Value sorted(Heap& heap, std::span<const Value> values, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(heap, keys[b], keys[a]) : less(heap, keys[a], keys[b]);
  });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(values[i]);
  return heap.list(result);
}

Value sort_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const auto values = items_of(heap, input);
  std::vector<Value> keys;
  std::vector<Value> attributes{bound[2]};
  if (bound[2].is_text())  // several of them, between commas
    attributes = copy_of(items_of(heap, split(heap, bound[2].as_text(), Value::text(","), -1)));
  for (const Value& value : values) {
    std::vector<Value> parts;
    for (const Value& attribute : attributes) {
      const Value key = follow(heap, value, attribute);
      parts.push_back(truth(bound[1]) ? key : ignore_case(heap, key));
    }
    keys.push_back(heap.list(parts));
  }
  return sorted(heap, values, keys, truth(bound[0]));
}

Value dictsort_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound[1].is_missing() ? "key" : text_argument(heap, bound[1], "dictsort: by");
  if (by != "key" && by != "value") heap.fail("You can only sort by either \"key\" or \"value\"");
  if (!input.is(Kind::kDict))
    refuse(heap, input, fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  std::vector<Value> pairs, keys;
  for (const DictEntry& entry : input.as<Dict>().entries) {
    const Value pair[] = {entry.key, entry.value};
    pairs.push_back(heap.tuple(pair));
    const Value& key = by == "key" ? entry.key : entry.value;
    keys.push_back(truth(bound[0]) ? key : ignore_case(heap, key));
  }
  return sorted(heap, pairs, keys, truth(bound[2]));
}

Value unique_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "unique", arguments, {"case_sensitive", "attribute"});
  return generate(heap, [&](std::vector<Value>& result) {
    DictBuilder seen(heap);
    for (const Value& value : items_of(heap, input)) {
      const Value key = follow(heap, value, bound[1]);
      if (seen.add(truth(bound[0]) ? key : ignore_case(heap, key))) result.push_back(value);
    }
  });
}

template <bool kGreatest>
Value extreme_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "min and max", arguments, {"case_sensitive", "attribute"});
  const auto values = items_of(heap, input);
  if (values.empty()) return heap.undefined(Undefined::Why::kOther, "No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& value) {
    const Value key = follow(heap, value, bound[1]);
    return truth(bound[0]) ? key : ignore_case(heap, key);
  };
  Value best = values[0], best_key = key_of(best);
  for (const Value& value : values.subspan(1)) {
    const Value key = key_of(value);
    if (!(kGreatest ? less(heap, best_key, key) : less(heap, key, best_key))) continue;
    best = value;
    best_key = key;
  }
  return best;
}

Value sum_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "sum", arguments, {"attribute", "start"});
  Value sum = bound[1].is_missing() ? Value::integer(0) : bound[1];
  if (sum.is_text()) heap.fail("sum() can't sum strings");
  for (const Value& value : items_of(heap, input)) {
    heap.charge(1);
    const Value item = follow(heap, value, bound[0]);
    // From Python 3.12 on, sum() of floats corrects what rounding loses.
    if (sum.is(Kind::kReal) || item.is(Kind::kReal)) heap.fail("sum of floats is not supported");
    sum = arithmetic(heap, Operator::kAdd, sum, item);
  }
  return sum;
}

// What is empty or none has no items for map, select and their like.
std::span<const Value> items_or_none(Heap& heap, const Value& value) {
  return truth(value) ? items_of(heap, value) : std::span<const Value>();
}

// The arguments behind the first `count`.
Arguments behind(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

void map_values(Heap& heap, const Value& input, const Arguments& arguments, std::vector<Value>& result) {
  const auto values = items_or_none(heap, input);
  if (arguments.positional.empty()) {
    const std::vector<Value> bound = bind(heap, "map", arguments, {"attribute", "default"}, 1);
    for (const Value& value : values) {
      heap.charge(1);
      result.push_back(follow(heap, value, bound[0], bound[1]));
    }
    return;
  }
  if (values.empty()) return;
  const std::string_view name = text_argument(heap, arguments.positional[0], "the filter for map");
  const Filter* filter = find_filter(name);
  if (filter == nullptr) heap.fail(fmt::format("No filter named '{}'.", name));
  if (filter->call == nullptr) heap.fail(fmt::format("filter '{}' is not supported", name));
  const Arguments rest = behind(arguments, 1);
  for (const Value& value : values) result.push_back(apply_filter(heap, *filter, value, rest));
}

Value map_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  return generate(heap, [&](std::vector<Value>& result) { map_values(heap, input, arguments, result); });
}

// select, reject, selectattr and rejectattr.
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
    if (test == nullptr) heap.fail(fmt::format("No test named '{}'.", name));
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

}  // namespace

const Filter kSequenceFilters[] = {
    {"count", length_filter, true},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter, true},
    {"last", last_filter},
    {"length", length_filter, true},
    {"list", list_filter, true},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<true, false>},
    {"reverse", reverse_filter},
    {"select", select_filter<false, true>},
    {"selectattr", select_filter<true, true>},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};
const size_t kSequenceFilterCount = std::size(kSequenceFilters);

Value follow(Heap& heap, Value value, const Value& attribute, const Value& otherwise) {
  if (attribute.is_missing() || attribute.is_none()) return value;
  const auto step = [&](const Value& key) {
    value = get_item(heap, value, key);
    if (value.is_undefined() && !otherwise.is_missing() && !otherwise.is_none()) value = otherwise;
  };
  if (!attribute.is_text()) {
    step(attribute);
    return value;
  }
  std::string_view rest = attribute.as_text();
  for (bool more = true; more;) {
    const size_t end = rest.find('.');
    const std::string_view part = rest.substr(0, end);
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    step(number ? Value::integer(std::stol(std::string(part))) : Value::text(part));
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + 1);
  }
  return value;
}

}  // namespace lfm2::jinja
