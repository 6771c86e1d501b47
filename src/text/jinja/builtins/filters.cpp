// The filters on single values, and the table of all.
#include "text/jinja/builtins/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/builtins/methods.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

Value abs_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "abs", arguments, {});
  if (!input.is_number()) refuse(heap, input, fmt::format("bad operand type for abs(): '{}'", type_name(input)));
  if (input.is(Kind::kReal)) return Value::real(std::fabs(input.as_real()));
  return input.as_integer() < 0 ? negate(heap, input) : Value::integer(input.as_integer());
}

Value capitalize_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "capitalize", arguments, {});
  const Value text = str(heap, input);
  return find_text_method("capitalize")->call(heap, text, {});
}

template <bool kUpper>
Value case_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "upper and lower", arguments, {});
  const Value text = str(heap, input);
  return find_text_method(kUpper ? "upper" : "lower")->call(heap, text, {});
}

// Unlike str.title, words end only at spaces and at - ( { [ <.
Value title_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "title", arguments, {});
  const Value text = str(heap, input);
  if (!is_ascii(text.as_text())) heap.fail("title of text beyond ASCII is not supported");
  heap.charge_bytes(16 * text.as_text().size());
  std::string out = lower(text.as_text());
  bool inside = false;
  for (char& c : out) {
    if (!inside && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    inside = !is_space(static_cast<unsigned char>(c)) && std::string_view("-({[<").find(c) == std::string_view::npos;
  }
  return heap.text(out);
}

Value default_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(truth(bound[1]) && !truth(input))) return input;
  return bound[0].is_missing() ? Value::text({}) : bound[0];
}

Value escape_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "escape", arguments, {});
  return escape(heap, str(heap, input));
}

Value safe_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "safe", arguments, {});
  return Value::text(str(heap, input).as_text(), true);
}

Value string_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  bind(heap, "string", arguments, {});
  return str(heap, input);
}

// Python's float() of a text: digits may be grouped by _, spaces around are ignored.
std::optional<double> real_of(std::string_view text) {
  std::string digits(strip(text));
  if (!is_ascii(digits) || digits.find_first_of("xXpPn_") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (digits.empty() || end != digits.c_str() + digits.size() || digits.find('(') != std::string::npos)
    return std::nullopt;
  return value;
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

// Texts whose reading as a number needs rules of Python that are not here: 1_000, "nan", digits of other scripts, and
// more than 128 bits.
void refuse_odd_number(Heap& heap, std::string_view text, const char* filter) {
  const std::string_view digits = strip(text);
  const bool number = digits.find_first_of("0123456789") != std::string_view::npos;
  if (!is_ascii(digits) || (number && (digits.find('_') != std::string_view::npos || digits.size() > 30)))
    heap.fail(fmt::format("{} of this text is not supported", filter));
  const std::string_view word = digits.starts_with('-') || digits.starts_with('+') ? digits.substr(1) : digits;
  const std::string lowered = lower(word);
  if (lowered == "nan" || lowered == "inf" || lowered == "infinity")
    heap.fail(fmt::format("{} of '{}' is not supported", filter, digits));
}

Value int_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "int", arguments, {"default", "base"});
  if (!bound[1].is_missing()) heap.fail("int with a base is not supported");
  const Value otherwise = bound[0].is_missing() ? Value::integer(0) : bound[0];
  require_defined(heap, input);
  if (input.is_integral()) return Value::integer(input.as_integer());
  if (input.is(Kind::kDigits)) return input;
  double real = 0;
  if (input.is_text()) {
    refuse_odd_number(heap, input.as_text(), "int");
    if (const std::optional<Integer> whole = integer_of(input.as_text())) return Value::integer(*whole);
    const std::optional<double> read = real_of(input.as_text());
    if (!read) return otherwise;
    real = *read;
  } else if (input.is(Kind::kReal)) {
    real = input.as_real();
    if (std::isinf(real)) heap.fail("cannot convert float infinity to integer");
  } else {
    return otherwise;
  }
  if (!std::isfinite(real)) return otherwise;
  if (std::fabs(real) >= 0x1p126) heap.fail("an integer of more than 128 bits is not supported");
  return Value::integer(static_cast<Integer>(real));
}

Value float_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "float", arguments, {"default"});
  require_defined(heap, input);
  if (input.is_number()) return Value::real(input.as_real());
  if (input.is(Kind::kDigits)) heap.fail("float of an integer of more than 64 bits is not supported");
  if (input.is_text()) {
    refuse_odd_number(heap, input.as_text(), "float");
    if (const std::optional<double> read = real_of(input.as_text())) return Value::real(*read);
  }
  return bound[0].is_missing() ? Value::real(0) : bound[0];
}

Value round_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "round", arguments, {"precision", "method"});
  const Integer precision = bound[0].is_missing() ? 0 : integer_argument(heap, bound[0], "the precision of round");
  const std::string_view method =
      bound[1].is_missing() ? "common" : text_argument(heap, bound[1], "the method of round");
  if (!input.is_number()) refuse(heap, input, fmt::format("round of a {} is not supported", type_name(input)));
  if (precision < 0 || precision > 15) heap.fail("round to fewer than 0 or more than 15 digits is not supported");
  const int digits = static_cast<int>(precision);
  if (method == "common") {
    if (input.is_integral()) return Value::integer(input.as_integer());
    if (!std::isfinite(input.as_real())) return input;
    std::array<char, 400> buffer;  // printf rounds the exact value, ties to even, as Python does
    std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, input.as_real());
    return Value::real(std::strtod(buffer.data(), nullptr));
  }
  if (method != "ceil" && method != "floor") heap.fail("method must be common, ceil or floor");
  const double scale = std::pow(10.0, digits), scaled = input.as_real() * scale;
  if (!(std::fabs(scaled) < 0x1p53)) heap.fail("round of a number of more than 53 bits is not supported");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0);
}

Value replace_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "replace", arguments, {"old", "new", "count"}, 2);
  const Integer count =
      bound[2].is_missing() || bound[2].is_none() ? -1 : integer_argument(heap, bound[2], "the count of replace");
  return replace(heap, str(heap, input).as_text(), str(heap, bound[0]).as_text(), str(heap, bound[1]).as_text(), count);
}

Value trim_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const Value characters = bind(heap, "trim", arguments, {"chars"})[0];
  const Value text = str(heap, input);
  heap.charge_bytes(text.as_text().size());
  if (characters.is_missing() || characters.is_none()) return Value::text(strip(text.as_text()), text.is_markup());
  const std::string_view set = text_argument(heap, characters, "the argument of trim");
  heap.charge(text.as_text().size() * (set.size() / 64));
  return Value::text(strip(text.as_text(), Ends::kBoth, set), text.is_markup());
}

Value indent_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "indent", arguments, {"width", "first", "blank"});
  Value margin = Value::text("    ");
  if (bound[0].is_text())
    margin = bound[0];
  else if (!bound[0].is_missing())
    margin = arithmetic(heap, Operator::kMultiply, Value::text(" "),
                        Value::integer(integer_argument(heap, bound[0], "the width of indent")));
  const Value whole = heap.concatenate(text_argument(heap, input, "the value for indent"), "\n");
  const std::string_view text = whole.as_text();
  heap.charge_bytes(8 * text.size());
  std::string out;
  if (truth(bound[1])) out += margin.as_text();
  size_t at = 0;
  for (size_t number = 0; at < text.size(); ++number) {
    const LineEnd line = find_line_end(text, at);
    const bool margined = number > 0 && (truth(bound[2]) || line.end > at);
    heap.charge_memory(line.end - at + 1 + (margined ? margin.as_text().size() : 0));
    if (number > 0) out += '\n';
    if (margined) out += margin.as_text();
    out += text.substr(at, line.end - at);
    at = line.next;
  }
  return heap.text(out);
}

Value truncate_filter(Heap& heap, const Value& input, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "truncate", arguments, {"length", "killwords", "end", "leeway"});
  const auto number = [&](const Value& value, Integer otherwise) {
    return value.is_missing() || value.is_none() ? otherwise : integer_argument(heap, value, "an argument of truncate");
  };
  const Integer length = number(bound[0], 255), leeway = number(bound[3], 5);
  const std::string_view end = bound[2].is_missing() ? "..." : text_argument(heap, bound[2], "the end of truncate");
  const auto end_length = static_cast<Integer>(count_characters(end));
  if (length < end_length || leeway < 0) heap.fail("truncate: length or leeway is too small");
  if (input.is_text()) heap.charge_bytes(4 * input.as_text().size());
  const std::optional<size_t> found = lfm2::jinja::length(input);
  if (!found) heap.fail(fmt::format("object of type '{}' has no len()", type_name(input)));
  if (static_cast<Integer>(*found) <= length + leeway) return input;
  const std::string_view text = text_argument(heap, input, "the value for truncate");
  std::string_view cut = text.substr(0, byte_of_character(text, static_cast<size_t>(length - end_length)));
  if (!truth(bound[1])) cut = cut.substr(0, cut.rfind(' '));
  return heap.concatenate(cut, end);
}

// A list or tuple of two texts for tojson's separators.
void read_separators(Heap& heap, const Value& value, JsonForm& form) {
  const bool pair = (value.is(Kind::kList) || value.is(Kind::kTuple)) && length(value) == size_t{2};
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
    const Value margin = bound[1].is_text()
                             ? bound[1]
                             : arithmetic(heap, Operator::kMultiply, Value::text(" "),
                                          Value::integer(integer_argument(heap, bound[1], "tojson: indent")));
    form.indent = margin.as_text();
  }
  if (!bound[2].is_missing() && !bound[2].is_none()) read_separators(heap, bound[2], form);
  std::string out;
  append_json(heap, out, input, form);
  return heap.text(out);
}

constexpr Filter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", capitalize_filter},
    {"d", default_filter, true},
    {"default", default_filter, true},
    {"e", escape_filter, true},
    {"escape", escape_filter, true},
    {"float", float_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", case_filter<false>},
    {"replace", replace_filter, true},
    {"round", round_filter},
    {"safe", safe_filter, true},
    {"string", string_filter, true},
    {"title", title_filter},
    {"tojson", tojson_filter, true},
    {"trim", trim_filter, true},
    {"truncate", truncate_filter},
    {"upper", case_filter<true>},
    {"attr", nullptr},
    {"batch", nullptr},
    {"center", nullptr},
    {"filesizeformat", nullptr},
    {"forceescape", nullptr},
    {"format", nullptr},
    {"groupby", nullptr},
    {"pprint", nullptr},
    {"random", nullptr},
    {"slice", nullptr},
    {"striptags", nullptr},
    {"urlencode", nullptr},
    {"urlize", nullptr},
    {"wordcount", nullptr},
    {"wordwrap", nullptr},
    {"xmlattr", nullptr},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  for (const std::span<const Filter> table :
       {std::span<const Filter>(kFilters), {kSequenceFilters, kSequenceFilterCount}})
    for (const Filter& filter : table)
      if (filter.name == name) return &filter;
  return nullptr;
}

Value apply_filter(Heap& heap, const Filter& filter, const Value& input, const Arguments& arguments) {
  heap.charge(1);
  const auto markup = [](const Value& value) { return value.is_markup(); };
  if (!filter.takes_markup &&
      (input.is_markup() || std::any_of(arguments.positional.begin(), arguments.positional.end(), markup)))
    heap.fail(fmt::format("filter '{}' of text that is marked safe is not supported", filter.name));
  return filter.call(heap, input, arguments);
}

}  // namespace lfm2::jinja
