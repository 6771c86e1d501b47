// The filters on single values, and the tests.
#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

template <Value (*kChange)(Heap&, std::string_view)>
Value case_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "upper and its like", arguments, {});
  return kChange(heap, str(heap, input).as_text());
}

Value default_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(truth(bound[1]) && !truth(input))) return input;
  return bound[0].is_missing() ? Value::text({}) : bound[0];
}

Value safe_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "safe", arguments, {});
  return Value::text(str(heap, input).as_text(), true);
}

Value string_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "string", arguments, {});
  return str(heap, input);
}

std::optional<Integer> integer_of(std::string_view text) {
  std::string_view digits = strip(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(value, Integer{10}, &value) || __builtin_add_overflow(value, Integer{c - '0'}, &value))
      return std::nullopt;
  }
  return negative ? -value : value;
}

// Other texts that Python accepts as numbers (1.5, 1_000, nan, infinity, digits of other scripts) are refused.
bool may_be_number(std::string_view text) {
  return !is_ascii(text) || text.find_first_of("0123456789nN") != std::string_view::npos;
}

Value int_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const Value otherwise = bind(heap, "int", arguments, {"default", "!base"})[0];
  require_defined(heap, input);
  if (input.is_integral()) return Value::integer(input.as_integer());
  if (input.is(Kind::kDigits)) return input;
  if (input.is_text()) {
    if (const std::optional<Integer> whole = integer_of(input.as_text())) return Value::integer(*whole);
    if (may_be_number(input.as_text())) heap.fail(unsupported(fmt::format("int of '{}'", input.as_text())));
  }
  if (input.is(Kind::kReal)) {
    if (!(std::fabs(input.as_real()) < 0x1p53)) heap.fail(unsupported("int of a number of more than 53 bits"));
    return Value::integer(static_cast<Integer>(input.as_real()));
  }
  return otherwise.is_missing() ? Value::integer(0) : otherwise;
}

Value replace_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "replace", arguments, {"old", "new", "!count"}, 2);
  return replace(heap, str(heap, input).as_text(), str(heap, bound[0]).as_text(), str(heap, bound[1]).as_text());
}

Value trim_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "trim", arguments, {"!chars"});
  const Value text = str(heap, input);
  heap.charge_bytes(text.as_text().size());
  return Value::text(strip(text.as_text()));
}

// `width` blanks, or `width` itself if it is a text.
Value margin_of(Heap& heap, const Value& width, std::string_view what) {
  if (width.is_text()) return width;
  return arithmetic(heap, Operator::kMultiply, Value::text(" "), Value::integer(integer_argument(heap, width, what)));
}

Value indent_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "indent", arguments, {"width", "first", "!blank"});
  const Value margin = margin_of(heap, bound[0].is_missing() ? Value::integer(4) : bound[0], "the width of indent");
  const Value whole = heap.concatenate(text_argument(heap, input, "the value for indent"), "\n");
  const std::string_view text = whole.as_text();
  heap.charge_bytes(8 * text.size());
  std::string out;
  if (truth(bound[1])) out += margin.as_text();
  size_t at = 0;
  for (size_t number = 0; at < text.size(); ++number) {
    const LineEnd line = find_line_end(text, at);
    const bool margined = number > 0 && line.end > at;
    heap.charge_memory(line.end - at + 1 + (margined ? margin.as_text().size() : 0));
    if (number > 0) out += '\n';
    if (margined) out += margin.as_text();
    out += text.substr(at, line.end - at);
    at = line.next;
  }
  return heap.text(out);
}

// Each %s is the next argument.
Value format_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  if (!arguments.keyword.empty()) heap.fail(unsupported("the filter 'format' with named arguments"));
  const std::string_view form = text_argument(heap, input, "the value for format");
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    if (form[at] != '%') {
      out += form[at];
      continue;
    }
    if (form.substr(at, 2) != "%s") heap.fail(unsupported("the filter 'format' with anything but %s"));
    if (next == arguments.positional.size()) heap.fail("not enough arguments for format string");
    append_str(heap, out, arguments.positional[next++]);
    ++at;
  }
  if (next < arguments.positional.size()) heap.fail("not all arguments converted during string formatting");
  return heap.text(out);
}

// A list or tuple of two texts for tojson's separators.
void read_separators(Heap& heap, const Value& value, JsonForm& form) {
  const bool pair = value.is_sequence() && length(value) == size_t{2};
  if (!pair) heap.fail("tojson: separators must be two texts");
  form.between_items = text_argument(heap, value.as<Items>().values[0], "a separator of tojson");
  form.after_key = text_argument(heap, value.as<Items>().values[1], "a separator of tojson");
}

Value tojson_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound =
      bind(heap, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form;
  form.ascii = truth(bound[0]);
  form.sorted = truth(bound[3]);
  if (!bound[1].is_missing() && !bound[1].is_none()) {
    form.lines = true;
    form.between_items = ",";
    form.indent = margin_of(heap, bound[1], "tojson: indent").as_text();
  }
  if (!bound[2].is_missing() && !bound[2].is_none()) read_separators(heap, bound[2], form);
  std::string out;
  append_json(heap, out, input, form);
  return heap.text(out);
}

constexpr Named<Call> kFilters[] = {
    {"capitalize", case_filter<capitalize>},
    {"d", default_filter},
    {"default", default_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", case_filter<lower>},
    {"replace", replace_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", case_filter<title_of_words>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"upper", case_filter<upper>},
};

constexpr char kAny[] = "a test", kBooleans[] = "true and false", kDefined[] = "defined", kNumber[] = "number",
               kSequence[] = "sequence", kIterable[] = "iterable";

// A test without arguments; `kWhat` names it in messages.
template <const char* kWhat, bool (*kIs)(const Value&)>
bool plain_test(Heap& heap, const Value& value, const Arguments& arguments) {
  bind(heap, kWhat, arguments, {});
  return kIs(value);
}

template <Kind kKind>
bool is_kind(const Value& value) {
  return value.is(kKind);
}

template <bool kValue>
bool is_the_boolean(const Value& value) {
  return value.is(Kind::kBoolean) && value.as_boolean() == kValue;
}

template <Operator kOperator>
bool compares(Heap& heap, const Value& value, const Arguments& arguments) {
  return compare(heap, kOperator, value, bind(heap, "a comparing test", arguments, {"other"}, 1)[0]);
}

constexpr Named<Test> kTests[] = {
    {"defined", plain_test<kDefined, [](const Value& value) { return !value.is_undefined(); }>},
    {"undefined", plain_test<kAny, is_kind<Kind::kUndefined>>},
    {"none", plain_test<kAny, is_kind<Kind::kNone>>},
    {"boolean", plain_test<kAny, is_kind<Kind::kBoolean>>},
    {"true", plain_test<kBooleans, is_the_boolean<true>>},
    {"false", plain_test<kBooleans, is_the_boolean<false>>},
    {"number", plain_test<kNumber, [](const Value& value) { return value.is_number() || value.is(Kind::kDigits); }>},
    {"string", plain_test<kAny, is_kind<Kind::kText>>},
    {"mapping", plain_test<kAny, is_kind<Kind::kDict>>},
    {"sequence", plain_test<kSequence, [](const Value& value) { return length(value) && !value.is(Kind::kView); }>},
    {"iterable", plain_test<kIterable, is_iterable>},
    {"in", compares<Operator::kIn>},
    {"==", compares<Operator::kEqual>},
    {"eq", compares<Operator::kEqual>},
    {"equalto", compares<Operator::kEqual>},
};

}  // namespace

const Named<Call>* find_filter(std::string_view name) {
  const Named<Call>* found = find_named(kFilters, name);
  return found != nullptr ? found : find_sequence_filter(name);
}

const Named<Test>* find_test(std::string_view name) { return find_named(kTests, name); }

Value apply_filter(Heap& heap, const Named<Call>& filter, const Value& input, const Arguments& arguments) {
  heap.charge(1);
  const auto markup = [](const Value& value) { return value.is_markup(); };
  if (markup(input) || std::any_of(arguments.positional.begin(), arguments.positional.end(), markup))
    heap.fail(unsupported(fmt::format("the filter '{}' of text that is marked safe", filter.name)));
  return filter.call(heap, input, arguments);
}

}  // namespace lfm2::jinja
