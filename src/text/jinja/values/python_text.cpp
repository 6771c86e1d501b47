#include "text/jinja/values/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>

#include "text/unicode/unicode_categories.h"

namespace lfm2::jinja {

namespace {

unsigned byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

size_t character_bytes(unsigned first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

bool continues(unsigned byte) { return (byte & 0xc0) == 0x80; }

// By the Unicode version of `tokenizers`, as in newer Pythons; older Pythons escape newer characters.
bool is_printable(char32_t character) {
  static const CodePointSet hidden = united(*category_set("C"), *category_set("Z"));
  return character == ' ' || !lfm2::contains(hidden, character);
}

}  // namespace

char32_t next_character(std::string_view text, size_t& at) {
  const unsigned first = byte_at(text, at);
  const size_t bytes = character_bytes(first);
  char32_t character = bytes == 1 ? first : first & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) character = character << 6 | (byte_at(text, at + i) & 0x3f);
  at += bytes;
  return character;
}

size_t byte_of_character(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += character_bytes(byte_at(text, at));
  return at;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> characters) {
  const auto goes = [&](size_t at, size_t bytes) {
    size_t end = at;
    return characters ? characters->find(text.substr(at, bytes)) != std::string_view::npos
                      : is_space(next_character(text, end));
  };
  if (ends != Ends::kRight) {
    while (!text.empty()) {
      const size_t bytes = character_bytes(byte_at(text, 0));
      if (!goes(0, bytes)) break;
      text.remove_prefix(bytes);
    }
  }
  if (ends != Ends::kLeft) {
    while (!text.empty()) {
      size_t at = text.size() - 1;
      while (continues(byte_at(text, at))) --at;
      if (!goes(at, text.size() - at)) break;
      text.remove_suffix(text.size() - at);
    }
  }
  return text;
}

LineEnd find_line_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    const char32_t c = next_character(text, next);
    if (c == '\r' && next < text.size() && text[next] == '\n') return {at, next + 1};
    if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)
      return {at, next};
    at = next;
  }
  return {at, at};
}

size_t append_plain(std::string& out, std::string_view text, size_t at) {
  size_t end = at;
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\'' && c != '\\'; };
  while (end < text.size() && plain(text[end])) ++end;
  out += text.substr(at, end - at);
  return end;
}

void append_code(std::string& out, char32_t character) {
  const auto code = static_cast<uint32_t>(character);
  if (code < 0x100)
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", code);
  else if (code < 0x10000)
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
  else
    fmt::format_to(std::back_inserter(out), "\\U{:08x}", code);
}

void append_repr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t at = 0; at < text.size();) {
    at = append_plain(out, text, at);
    if (at == text.size()) break;
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == static_cast<unsigned char>(quote) || c == '\\')
      (out += '\\') += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (is_printable(c))
      out += text.substr(begin, at - begin);
    else
      append_code(out, c);
  }
  out += quote;
}

void append_real(std::string& out, double value) {
  const std::string text = std::isnan(value) ? "nan" : fmt::format("{}", value);
  out += text;
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) out += ".0";
}

}  // namespace lfm2::jinja
