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

// By the Unicode of `tokenizers`, which newer Pythons have: what they print of newer characters, older ones escape.
bool is_printable(char32_t character) {
  static const CodePointSet hidden = united(*category_set("C"), *category_set("Z"));
  return character == ' ' || !lfm2::contains(hidden, character);
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const unsigned first = byte_at(text, at);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const size_t bytes = character_bytes(first);
    if (first < 0xc2 || first > 0xf4 || text.size() - at < bytes) return false;
    const unsigned second = byte_at(text, at + 1);
    // The second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return false;
    for (size_t i = 2; i < bytes; ++i)
      if (!continues(byte_at(text, at + i))) return false;
    at += bytes;
  }
  return true;
}

char32_t next_character(std::string_view text, size_t& at) {
  const unsigned first = byte_at(text, at);
  const size_t bytes = character_bytes(first);
  char32_t character = bytes == 1 ? first : first & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) character = character << 6 | (byte_at(text, at + i) & 0x3f);
  at += bytes;
  return character;
}

void append_utf8(std::string& text, char32_t character) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto rest = [&](int shift) { add(0x80 | (character >> shift & 0x3f)); };
  if (character < 0x80) {
    add(character);
  } else if (character < 0x800) {
    add(0xc0 | character >> 6);
    rest(0);
  } else if (character < 0x10000) {
    add(0xe0 | character >> 12);
    rest(6);
    rest(0);
  } else {
    add(0xf0 | character >> 18);
    rest(12);
    rest(6);
    rest(0);
  }
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(static_cast<unsigned char>(byte)); }));
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
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-inf" : "inf";
    return;
  }
  // The shortest digits that read back as the value, as d.ddde±xx; Python then places the point by its own rule.
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) (out += '.') += digits.substr(1);
    fmt::format_to(std::back_inserter(out), "e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    ((out += "0.") += std::string(static_cast<size_t>(-exponent - 1), '0')) += digits;
  } else if (count <= exponent + 1) {
    ((out += digits) += std::string(static_cast<size_t>(exponent + 1 - count), '0')) += ".0";
  } else {
    const auto whole = static_cast<size_t>(exponent + 1);
    ((out += digits.substr(0, whole)) += '.') += digits.substr(whole);
  }
}

}  // namespace lfm2::jinja
