// The methods of Python's str.
#include <algorithm>

#include "text/jinja/builtins/methods.h"
#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

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
  const Integer cuts = bound[1].is_missing() ? -1 : integer_argument(heap, bound[1], "maxsplit");
  return split(heap, self.as_text(), bound[0], cuts);
}

// Pieces from the right: only the number of cuts makes it differ from split().
Value rsplit_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::vector<Value> bound = bind(heap, "rsplit()", arguments, {"sep", "maxsplit"});
  const Integer cuts = bound[1].is_missing() ? -1 : integer_argument(heap, bound[1], "maxsplit");
  if (cuts < 0) return split(heap, self.as_text(), bound[0], -1);
  if (!is_given(bound[0])) heap.fail("rsplit() by spaces with maxsplit is not supported");
  const std::string_view separator = text_argument(heap, bound[0], "the separator of rsplit()");
  if (separator.empty()) heap.fail("empty separator");
  std::string_view rest = self.as_text();
  heap.charge_bytes(rest.size());
  heap.charge(rest.size() / 64 * separator.size());
  std::vector<Value> pieces;
  while (static_cast<Integer>(pieces.size()) < cuts) {
    const size_t at = rest.rfind(separator);
    if (at == std::string_view::npos) break;
    pieces.push_back(Value::text(rest.substr(at + separator.size())));
    rest = rest.substr(0, at);
  }
  pieces.push_back(Value::text(rest));
  std::reverse(pieces.begin(), pieces.end());
  return heap.list(pieces);
}

Value splitlines_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value keep = bind(heap, "splitlines()", arguments, {"keepends"})[0];
  const std::string_view text = self.as_text();
  heap.charge_bytes(8 * text.size());
  std::vector<Value> lines;
  for (size_t at = 0; at < text.size();) {
    const LineEnd line = find_line_end(text, at);
    heap.charge_memory(sizeof(Value));
    lines.push_back(Value::text(text.substr(at, (truth(keep) ? line.next : line.end) - at)));
    at = line.next;
  }
  return heap.list(lines);
}

template <bool kEnd>
Value startswith_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::vector<Value> bound = bind_positional(heap, "startswith()", arguments, {"prefix"}, 1);
  const auto matches = [&](const Value& part) {
    const std::string_view text = text_argument(heap, part, "the argument of startswith() or endswith()");
    heap.charge_bytes(std::min(self.as_text().size(), text.size()));
    return kEnd ? self.as_text().ends_with(text) : self.as_text().starts_with(text);
  };
  if (!bound[0].is(Kind::kTuple)) return Value::boolean(matches(bound[0]));
  const auto parts = bound[0].as<Items>().values;
  return Value::boolean(std::any_of(parts.begin(), parts.end(), matches));
}

Value replace_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const std::vector<Value> bound = bind_positional(heap, "replace()", arguments, {"old", "new", "count"}, 2);
  const Integer count = bound[2].is_missing() ? -1 : integer_argument(heap, bound[2], "count");
  return replace(heap, self.as_text(), text_argument(heap, bound[0], "the first argument of replace()"),
                 text_argument(heap, bound[1], "the second argument of replace()"), count);
}

template <std::string (*kChange)(std::string_view)>
Value case_method(Heap& heap, const Value& self, const Arguments& arguments) {
  bind_positional(heap, "upper() and lower()", arguments, {});
  heap.charge_bytes(16 * self.as_text().size());
  return heap.text(kChange(self.as_text()));
}

Value capitalize_method(Heap& heap, const Value& self, const Arguments& arguments) {
  bind_positional(heap, "capitalize()", arguments, {});
  heap.charge_bytes(32 * self.as_text().size());
  const std::optional<std::string> changed = capitalize(self.as_text());
  if (!changed) heap.fail("capitalize() of this text is not supported");
  return heap.text(*changed);
}

Value title_method(Heap& heap, const Value& self, const Arguments& arguments) {
  bind_positional(heap, "title()", arguments, {});
  if (!is_ascii(self.as_text())) heap.fail("title() of text beyond ASCII is not supported");
  heap.charge_bytes(16 * self.as_text().size());
  std::string out = lower(self.as_text());
  bool inside = false;
  for (char& c : out) {
    const bool letter = c >= 'a' && c <= 'z';
    if (letter && !inside) c = static_cast<char>(c - 'a' + 'A');
    inside = letter;
  }
  return heap.text(out);
}

Value join_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value items = bind_positional(heap, "join()", arguments, {"iterable"}, 1)[0];
  std::string out;
  bool first = true;
  for (const Value& item : items_of(heap, items)) {
    if (!std::exchange(first, false)) append_str(heap, out, self);
    text_argument(heap, item, "an item for join()");
    append_str(heap, out, item);
  }
  return heap.text(out);
}

template <bool kLast, bool kMustBe>
Value find_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value part = bind_positional(heap, "find() and index()", arguments, {"sub"}, 1)[0];
  const std::string_view text = self.as_text(), sought = text_argument(heap, part, "the argument of find()");
  heap.charge_bytes(2 * text.size());
  if (kLast) heap.charge(text.size() / 64 * sought.size());
  const size_t at = kLast ? text.rfind(sought) : find_text(text, sought);
  if (at == std::string_view::npos && kMustBe) heap.fail("substring not found");
  return Value::integer(at == std::string_view::npos ? -1 : static_cast<Integer>(count_characters(text.substr(0, at))));
}

Value count_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value part = bind_positional(heap, "count()", arguments, {"sub"}, 1)[0];
  const std::string_view text = self.as_text(), sought = text_argument(heap, part, "the argument of count()");
  heap.charge_bytes(2 * text.size());
  if (sought.empty()) return Value::integer(static_cast<Integer>(count_characters(text)) + 1);
  Integer count = 0;
  for (size_t at = find_text(text, sought); at != std::string_view::npos;
       at = find_text(text, sought, at + sought.size()))
    ++count;
  return Value::integer(count);
}

template <bool kEnd>
Value remove_method(Heap& heap, const Value& self, const Arguments& arguments) {
  const Value part = bind_positional(heap, "removeprefix() and removesuffix()", arguments, {"prefix"}, 1)[0];
  std::string_view text = self.as_text(), removed = text_argument(heap, part, "the argument of removeprefix()");
  heap.charge_bytes(std::min(text.size(), removed.size()));
  if (kEnd && text.ends_with(removed))
    text.remove_suffix(removed.size());
  else if (!kEnd && text.starts_with(removed))
    text.remove_prefix(removed.size());
  return Value::text(text);
}

// isdigit() and its like, for ASCII; the empty text is none of them.
template <bool (*kBelongs)(char)>
Value is_method(Heap& heap, const Value& self, const Arguments& arguments) {
  bind_positional(heap, "isdigit() and its like", arguments, {});
  const std::string_view text = self.as_text();
  heap.charge_bytes(text.size());
  if (!is_ascii(text)) heap.fail("isdigit(), isalpha() and their like of text beyond ASCII are not supported");
  return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), kBelongs));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_letter_or_digit(char c) { return is_digit(c) || is_letter(c); }
bool is_blank(char c) { return is_space(static_cast<unsigned char>(c)); }

Value format_method(Heap& heap, const Value& self, const Arguments& arguments) {
  return format_braces(heap, self.as_text(), arguments.positional, arguments.keyword);
}

constexpr Named<Call> kTextMethods[] = {
    {"strip", strip_method<Ends::kBoth>},
    {"lstrip", strip_method<Ends::kLeft>},
    {"rstrip", strip_method<Ends::kRight>},
    {"split", split_method},
    {"rsplit", rsplit_method},
    {"splitlines", splitlines_method},
    {"startswith", startswith_method<false>},
    {"endswith", startswith_method<true>},
    {"replace", replace_method},
    {"upper", case_method<upper>},
    {"lower", case_method<lower>},
    {"capitalize", capitalize_method},
    {"title", title_method},
    {"join", join_method},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
    {"removeprefix", remove_method<false>},
    {"removesuffix", remove_method<true>},
    {"isdigit", is_method<is_digit>},
    {"isalpha", is_method<is_letter>},
    {"isalnum", is_method<is_letter_or_digit>},
    {"isspace", is_method<is_blank>},
    {"format", format_method},
    {"casefold", nullptr},
    {"center", nullptr},
    {"encode", nullptr},
    {"expandtabs", nullptr},
    {"format_map", nullptr},
    {"isascii", nullptr},
    {"isdecimal", nullptr},
    {"isidentifier", nullptr},
    {"islower", nullptr},
    {"isnumeric", nullptr},
    {"isprintable", nullptr},
    {"istitle", nullptr},
    {"isupper", nullptr},
    {"ljust", nullptr},
    {"maketrans", nullptr},
    {"partition", nullptr},
    {"rjust", nullptr},
    {"rpartition", nullptr},
    {"swapcase", nullptr},
    {"translate", nullptr},
    {"zfill", nullptr},
};

}  // namespace

const Named<Call>* find_text_method(std::string_view name) { return find_named(kTextMethods, name); }

Value split(Heap& heap, std::string_view text, const Value& separator, Integer max_cuts) {
  std::vector<Value> pieces;
  const auto add = [&](std::string_view piece) {
    heap.charge_memory(sizeof(Value));
    pieces.push_back(Value::text(piece));
  };
  const auto may_cut = [&] { return max_cuts < 0 || static_cast<Integer>(pieces.size()) < max_cuts; };
  heap.charge_bytes(4 * text.size());
  if (is_given(separator)) {
    const std::string_view by = text_argument(heap, separator, "the separator of split()");
    if (by.empty()) heap.fail("empty separator");
    size_t begin = 0;
    for (size_t at; may_cut() && (at = find_text(text, by, begin)) != std::string_view::npos; begin = at + by.size())
      add(text.substr(begin, at - begin));
    add(text.substr(begin));
    return heap.list(pieces);
  }
  while (!(text = strip(text, Ends::kLeft)).empty()) {
    if (!may_cut()) {
      add(text);  // with its spaces at the end
      break;
    }
    size_t end = 0;
    for (size_t next = 0; end < text.size() && !is_space(next_character(text, next));) end = next;
    add(text.substr(0, end));
    text.remove_prefix(end);
  }
  return heap.list(pieces);
}

Value replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to, Integer max_count) {
  heap.charge_bytes(text.size());
  std::string out;
  size_t begin = 0;
  const auto add = [&](std::string_view part) {
    heap.charge_memory(part.size());
    out += part;
  };
  for (Integer count = 0; max_count < 0 || count < max_count; ++count) {
    heap.charge(1);
    if (from.empty()) {  // between all characters, and at both ends
      add(to);
      if (begin == text.size()) return heap.text(out);
      size_t end = begin;
      next_character(text, end);
      add(text.substr(begin, end - begin));
      begin = end;
      continue;
    }
    const size_t at = find_text(text, from, begin);
    if (at == std::string_view::npos) break;
    add(text.substr(begin, at - begin));
    add(to);
    begin = at + from.size();
  }
  add(text.substr(begin));
  return heap.text(out);
}

}  // namespace lfm2::jinja
