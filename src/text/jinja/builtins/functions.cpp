// Functions, and how the arguments of all calls are matched with parameters.
#include <algorithm>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

constexpr Integer kMaxRange = 100000;  // as in Jinja's sandbox

Value make_range(Heap& heap, const Arguments& arguments) {
  if (!arguments.keyword.empty()) heap.fail("range() takes no keyword arguments");
  const std::vector<Value> bound = bind(heap, "range()", arguments, {"start", "stop", "step"}, 1);
  const auto number = [&](const Value& value) { return integer_argument(heap, value, "an argument of range()"); };
  Range range;
  range.start = bound[1].is_missing() ? 0 : number(bound[0]);
  range.stop = number(bound[1].is_missing() ? bound[0] : bound[1]);
  range.step = bound[2].is_missing() ? 1 : number(bound[2]);
  if (range.step == 0) heap.fail("range() arg 3 must not be zero");
  constexpr Integer kLarge = Integer{1} << 100;
  for (const Integer value : {range.start, range.stop, range.step})
    if (value > kLarge || value < -kLarge) heap.fail(unsupported("a range of numbers of more than 100 bits"));
  const Integer distance = range.step > 0 ? range.stop - range.start : range.start - range.stop;
  const Integer width = range.step > 0 ? range.step : -range.step;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / width + 1;
  if (count > kMaxRange)
    heap.fail(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange));
  range.count = static_cast<size_t>(count);
  return Value::object(Kind::kRange, heap.make<Range>(range));
}

// dict() and namespace() accept only named arguments.
Value make_dict(Heap& heap, const Arguments& arguments, std::string_view what = "dict()") {
  if (!arguments.positional.empty()) heap.fail(unsupported(fmt::format("{} of anything but named arguments", what)));
  DictBuilder builder(heap);
  for (const auto& [name, value] : arguments.keyword) builder.set(Value::text(name), value);
  return builder.finish();
}

Value make_namespace(Heap& heap, const Arguments& arguments) {
  const Value dict = make_dict(heap, arguments, "namespace()");
  auto* space = heap.make<Namespace>(std::pmr::vector<NamespaceEntry>(heap.memory()));
  for (const DictEntry& entry : dict.as<Dict>().entries) space->entries.push_back({entry.key.as_text(), entry.value});
  return Value::object(Kind::kNamespace, space);
}

// Appends one directive of strftime, which begins at `at`, and moves `at` past it.
void append_directive(Heap& heap, std::string& out, std::string_view format, size_t& at, const std::tm& time) {
  const std::string directive(format.substr(at, 2));
  at += directive.size();
  if (directive.size() < 2 || std::string_view("aAbBdHIjmMpSyY%").find(directive[1]) == std::string_view::npos)
    heap.fail(unsupported(fmt::format("strftime_now with '{}'", directive)));
  char buffer[256];
  out.append(buffer, std::strftime(buffer, sizeof buffer, directive.c_str(), &time));
}

Value strftime_now(Heap& heap, const Arguments& arguments, std::time_t now) {
  const Value argument = bind(heap, "strftime_now()", arguments, {"format"}, 1)[0];
  const std::string_view format = text_argument(heap, argument, "the format of strftime_now()");
  heap.charge(format.size());
  heap.charge_memory(64 * format.size());
  std::tm time{};
  if (localtime_r(&now, &time) == nullptr) heap.fail("strftime_now: a time that has no date");
  std::string out;
  for (size_t at = 0; at < format.size();) {
    if (format[at] == '%')
      append_directive(heap, out, format, at, time);
    else
      out += format[at++];
  }
  return heap.text(out);
}

[[noreturn]] void raise_exception(Heap& heap, const Arguments& arguments) {
  const Value message = bind(heap, "raise_exception()", arguments, {"message"}, 1)[0];
  std::string text;
  append_str(heap, text, message);
  heap.fail(text);
}

}  // namespace

std::vector<Value> bind(Heap& heap, std::string_view what, const Arguments& arguments,
                        std::initializer_list<std::string_view> parameters, size_t required) {
  std::vector<Value> values(parameters.size());
  if (arguments.positional.size() > values.size())
    heap.fail(fmt::format("{}: {} arguments, at most {}", what, arguments.positional.size(), values.size()));
  std::copy(arguments.positional.begin(), arguments.positional.end(), values.begin());
  for (const auto& [name, value] : arguments.keyword) {
    const auto* found =
        std::find_if(parameters.begin(), parameters.end(), [&keyword = name](std::string_view parameter) {
          return parameter == keyword || (parameter.starts_with(kNotSupported) && parameter.substr(1) == keyword);
        });
    if (found == parameters.end()) heap.fail(fmt::format("{}: no argument is named '{}'", what, name));
    Value& place = values[static_cast<size_t>(found - parameters.begin())];
    if (!place.is_missing()) heap.fail(fmt::format("{}: argument '{}' is given twice", what, name));
    place = value;
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (const std::string_view name = parameters.begin()[i]; name.starts_with(kNotSupported) && !values[i].is_missing())
      heap.fail(unsupported(fmt::format("the argument '{}' of {}", name.substr(1), what)));
  for (size_t i = 0; i < required; ++i)
    if (values[i].is_missing()) heap.fail(fmt::format("{}: argument '{}' is missing", what, parameters.begin()[i]));
  return values;
}

std::string_view text_argument(Heap& heap, const Value& value, std::string_view what) {
  if (!value.is_text()) refuse(heap, value, fmt::format("{} is a {}, expected a str", what, type_name(value)));
  return value.as_text();
}

Integer integer_argument(Heap& heap, const Value& value, std::string_view what) {
  if (!value.is_integral()) refuse(heap, value, fmt::format("{} is a {}, expected an int", what, type_name(value)));
  return value.as_integer();
}

std::optional<Function> find_function(std::string_view name) {
  // In the order of Function.
  constexpr std::string_view kNames[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<Function>(found - std::begin(kNames));
}

Value call_function(Heap& heap, Function function, const Arguments& arguments, std::time_t now) {
  switch (function) {
    case Function::kRange:
      return make_range(heap, arguments);
    case Function::kNamespace:
      return make_namespace(heap, arguments);
    case Function::kDict:
      return make_dict(heap, arguments);
    case Function::kRaiseException:
      raise_exception(heap, arguments);
    case Function::kStrftimeNow:
      return strftime_now(heap, arguments, now);
  }
  return {};
}

}  // namespace lfm2::jinja
