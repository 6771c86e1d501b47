// json.dumps().
#include <algorithm>
#include <cmath>
#include <vector>

#include "text/jinja/values/format.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/python_text.h"

namespace lfm2::jinja {

namespace {

// The most bytes of the text within JSON.
size_t json_bytes(std::string_view text, bool ascii) {
  size_t bytes = 2;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool escaped = byte < 0x20 && std::string_view("\b\t\n\f\r").find(c) == std::string_view::npos;
    bytes += escaped || byte == 0x7f ? 6 : byte < 0x20 || c == '"' || c == '\\' ? 2 : byte >= 0x80 && ascii ? 3 : 1;
  }
  return bytes;
}

void append_unit(std::string& out, uint32_t unit) {
  char text[] = "\\u0000";
  for (int i = 5; i >= 2; --i, unit >>= 4) text[i] = "0123456789abcdef"[unit & 15];
  out.append(text, 6);
}

void append_json_text(Heap& heap, std::string& out, std::string_view text, bool ascii) {
  heap.charge_bytes(text.size());
  heap.charge_memory(json_bytes(text, ascii));
  out += '"';
  for (size_t at = 0; at < text.size();) {
    at = append_plain(out, text, at);
    if (at == text.size()) break;
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == '"' || c == '\\') {
      (out += '\\') += static_cast<char>(c);
    } else if (c >= 0x20 && (c < 0x7f || !ascii)) {
      out += text.substr(begin, at - begin);
    } else if (const size_t escape = std::string_view("\b\t\n\f\r").find(static_cast<char>(c));
               c < 0x20 && escape != std::string_view::npos) {
      (out += '\\') += "btnfr"[escape];
    } else if (c < 0x10000) {
      append_unit(out, c);
    } else {
      append_unit(out, 0xd800 + ((c - 0x10000) >> 10));
      append_unit(out, 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
  }
  out += '"';
}

void append_json_real(std::string& out, double value) {
  if (std::isnan(value))
    out += "NaN";
  else if (std::isinf(value))
    out += value < 0 ? "-Infinity" : "Infinity";
  else
    append_real(out, value);
}

void append_json_key(Heap& heap, std::string& out, const Value& key, const JsonForm& form) {
  if (key.is_text()) {
    append_json_text(heap, out, key.as_text(), form.ascii);
    return;
  }
  if (!key.is_number() && !key.is_none())
    heap.fail(fmt::format("tojson: keys must be str, int, float, bool or None, not {}", type_name(key)));
  out += '"';
  append_json(heap, out, key, form);
  out += '"';
}

void append_break(Heap& heap, std::string& out, const JsonForm& form, int level) {
  if (!form.lines) return;
  heap.charge_memory(form.indent.size() * static_cast<size_t>(level));
  out += '\n';
  for (int i = 0; i < level; ++i) out += form.indent;
}

void append_json_dict(Heap& heap, std::string& out, const Dict& dict, const JsonForm& form, int level) {
  std::vector<const DictEntry*> entries;
  for (const DictEntry& entry : dict.entries) entries.push_back(&entry);
  if (form.sorted)
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const DictEntry* a, const DictEntry* b) { return less(heap, a->key, b->key); });
  out += '{';
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += form.between_items;
    append_break(heap, out, form, level + 1);
    append_json_key(heap, out, entries[i]->key, form);
    out += form.after_key;
    append_json(heap, out, entries[i]->value, form, level + 1);
  }
  if (!entries.empty()) append_break(heap, out, form, level);
  out += '}';
}

void append_json_list(Heap& heap, std::string& out, std::span<const Value> items, const JsonForm& form, int level) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += form.between_items;
    append_break(heap, out, form, level + 1);
    append_json(heap, out, items[i], form, level + 1);
  }
  if (!items.empty()) append_break(heap, out, form, level);
  out += ']';
}

}  // namespace

void append_json(Heap& heap, std::string& out, const Value& value, const JsonForm& form, int level) {
  heap.charge(1);
  heap.charge_memory(8 + form.between_items.size() + form.after_key.size());
  if (value.is_none()) {
    out += "null";
  } else if (value.is(Kind::kBoolean)) {
    out += value.as_boolean() ? "true" : "false";
  } else if (value.is(Kind::kInteger)) {
    out += integer_text(value.as_integer());
  } else if (value.is(Kind::kDigits)) {
    heap.charge_memory(value.as_text().size());
    out += value.as_text();
  } else if (value.is(Kind::kReal)) {
    append_json_real(out, value.as_real());
  } else if (value.is_text()) {
    append_json_text(heap, out, value.as_text(), form.ascii);
  } else if (value.is_sequence()) {
    append_json_list(heap, out, value.as<Items>().values, form, level);
  } else if (value.is(Kind::kDict)) {
    append_json_dict(heap, out, value.as<Dict>(), form, level);
  } else {
    heap.fail(fmt::format("tojson: Object of type {} is not JSON serializable", type_name(value)));
  }
}

}  // namespace lfm2::jinja
