// The methods of Python's str and dict.
#include <algorithm>

#include "base/utf8.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

// Most of Python's str methods take no keyword arguments.
std::vector<Value> bind_positional(Heap& heap, std::string_view what, const Arguments& arguments,
                                   std::initializer_list<std::string_view> parameters, size_t required = 0) {
  if (!arguments.keyword.empty()) heap.fail(fmt::format("{} takes no keyword arguments", what));
  return bind(heap, what, arguments, parameters, required);
}

bool is_given(const Value& value) { return !value.is_missing() && !value.is_none(); }

template <Ends kEnds>
Value strip_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value characters = bind_positional(heap, "strip()", arguments, {"chars"})[0];
  heap.charge_bytes(self.as_text().size());
  if (!is_given(characters)) return Value::text(strip(self.as_text(), kEnds));
  const std::string_view set = text_argument(heap, characters, "the argument of strip()");
  heap.charge(self.as_text().size() * (set.size() / 64));
  return Value::text(strip(self.as_text(), kEnds, set));
}

Value split_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "split()", arguments, {"sep", "maxsplit"});
  if (!is_given(bound[0])) heap.fail(unsupported("split() without a separator"));
  const Integer cuts = bound[1].is_missing() ? -1 : integer_argument(heap, bound[1], "maxsplit");
  return split(heap, self.as_text(), text_argument(heap, bound[0], "the separator of split()"), cuts);
}

template <bool kEnd>
Value startswith_method(Heap& heap, const Value& self, const Arguments& arguments) {
  constexpr std::string_view kName = kEnd ? "endswith()" : "startswith()";
  const Value part = bind_positional(heap, kName, arguments, {"prefix", "!start", "!end"}, 1)[0];
  if (part.is(Kind::kTuple)) heap.fail(unsupported(fmt::format("{} of a tuple", kName)));
  const std::string_view text = text_argument(heap, part, "the argument of startswith() or endswith()");
  heap.charge_bytes(std::min(self.as_text().size(), text.size()));
  return Value::boolean(kEnd ? self.as_text().ends_with(text) : self.as_text().starts_with(text));
}

Value replace_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::vector<Value> bound = bind_positional(heap, "replace()", arguments, {"old", "new", "!count"}, 2);
  return replace(heap, self.as_text(), text_argument(heap, bound[0], "the first argument of replace()"),
                 text_argument(heap, bound[1], "the second argument of replace()"));
}

template <Value (*kChange)(Heap&, std::string_view)>
Value case_method(Heap& heap, const Value& self, const Arguments& arguments) {
  bind_positional(heap, "upper() and its like", arguments, {});
  return kChange(heap, self.as_text());
}

Value find_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value part = bind_positional(heap, "find()", arguments, {"sub", "!start", "!end"}, 1)[0];
  const std::string_view text = self.as_text();
  heap.charge_bytes(2 * text.size());
  const size_t at = find_text(text, text_argument(heap, part, "the argument of find()"));
  return Value::integer(at == std::string_view::npos ? -1 : characters_of(text.substr(0, at)));
}

// Each {} is the next argument.
Value format_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::string_view form = self.as_text();
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    const bool brace = form[at] == '{' || form[at] == '}';
    if (!brace) {
      out += form[at];
      continue;
    }
    if (form.substr(at, 2) != "{}") heap.fail(unsupported("format() of a text with braces other than {}"));
    if (next == arguments.positional.size()) heap.fail("format(): more {} than arguments");
    append_str(heap, out, arguments.positional[next++]);
    ++at;
  }
  return heap.text(out);
}

constexpr Named<Call> kTextMethods[] = {
    {"strip", strip_method<Ends::kBoth>},
    {"lstrip", strip_method<Ends::kLeft>},
    {"rstrip", strip_method<Ends::kRight>},
    {"split", split_method},
    {"startswith", startswith_method<false>},
    {"endswith", startswith_method<true>},
    {"replace", replace_method},
    {"upper", case_method<upper>},
    {"lower", case_method<lower>},
    {"capitalize", case_method<capitalize>},
    {"title", case_method<title>},
    {"find", find_method},
    {"format", format_method},
};

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

const Named<Call>* find_text_method(std::string_view name) { return find_named(kTextMethods, name); }
const Named<Call>* find_dict_method(std::string_view name) { return find_named(kDictMethods, name); }

Value split(Heap& heap, std::string_view text, std::string_view separator, Integer max_cuts) {
  if (separator.empty()) heap.fail("empty separator");
  heap.charge_bytes(4 * text.size());
  std::vector<Value> pieces;
  const auto add = [&](std::string_view piece) {
    heap.charge_memory(sizeof(Value));
    pieces.push_back(Value::text(piece));
  };
  const auto may_cut = [&] { return max_cuts < 0 || static_cast<Integer>(pieces.size()) < max_cuts; };
  size_t begin = 0;
  for (size_t at; may_cut() && (at = find_text(text, separator, begin)) != std::string_view::npos;
       begin = at + separator.size())
    add(text.substr(begin, at - begin));
  add(text.substr(begin));
  return heap.list(pieces);
}

Value replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) heap.fail(unsupported("replacing the empty text"));
  heap.charge_bytes(text.size());
  std::string out;
  size_t begin = 0;
  const auto add = [&](std::string_view part) {
    heap.charge_memory(part.size());
    out += part;
  };
  for (size_t at; (at = find_text(text, from, begin)) != std::string_view::npos; begin = at + from.size()) {
    heap.charge(1);
    add(text.substr(begin, at - begin));
    add(to);
  }
  add(text.substr(begin));
  return heap.text(out);
}

}  // namespace lfm2::jinja
