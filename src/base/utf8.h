// UTF-8 as Rust's standard library reads it, which decides where `tokenizers` puts U+FFFD.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2 {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Character {
  uint32_t point;   // undefined where it is not valid
  uint32_t length;  // bytes of the character, or the invalid bytes that one U+FFFD replaces
  bool valid;
  bool cut;  // invalid only because the text ends within the character
};

// The character at the front of `text`, which must not be empty.
inline Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  const uint32_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {0, 1, false, false};
  // After these lead bytes the second byte has a narrower range, which excludes overlong forms, surrogates and code
  // points beyond U+10FFFF.
  uint8_t low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  uint32_t point = lead & (0xffu >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) {
    if (i == text.size()) return {0, i, false, true};
    if (byte(i) < low || byte(i) > high) return {0, i, false, false};
    point = point << 6 | (byte(i) & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  return {point, length, true, false};
}

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (!character.valid) return false;
    text.remove_prefix(character.length);
  }
  return true;
}

// The number of characters of a text in UTF-8.
inline int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

// A text for a message: at most 80 bytes of it, and "…" in the place of more.
inline std::string cut_short(std::string text) {
  if (text.size() <= 80) return text;
  size_t end = 80;
  while ((text[end] & 0xc0) == 0x80) --end;  // no character is cut
  text.resize(end);
  return text + "…";
}

inline void append_utf8(std::string& text, uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
    return;
  }
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(kLead[more] | point >> (6 * more));
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (point >> (6 * i) & 0x3f));
}

}  // namespace lfm2
