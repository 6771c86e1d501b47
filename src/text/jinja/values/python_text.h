// Operations of Python's str: they count characters, while the bytes are UTF-8. All text must be valid UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lfm2::jinja {

// Returns the character at `at` and moves `at` past it.
char32_t next_character(std::string_view text, size_t& at);

// The byte at which character number `index` begins; the text's size if it has fewer characters.
size_t byte_of_character(std::string_view text, size_t index);

// As text.find(part, from), but linear in the worst case.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);

bool is_space(char32_t character);  // as str.isspace
bool is_ascii(std::string_view text);

// Removes spaces, or the characters of `characters`, from one or both ends.
enum class Ends { kLeft, kRight, kBoth };
std::string_view strip(std::string_view text, Ends ends = Ends::kBoth,
                       std::optional<std::string_view> characters = std::nullopt);

// The end of the line that begins at `at`, and the beginning of the next one, as str.splitlines cuts them.
struct LineEnd {
  size_t end, next;
};
LineEnd find_line_end(std::string_view text, size_t at);

// Appends the run of printable ASCII from `at` up to a quote or a backslash, and returns its end. Runs make long texts
// fast.
size_t append_plain(std::string& out, std::string_view text, size_t at);
// \xe9, \u20ac or \U0001f30d
void append_code(std::string& out, char32_t character);
// repr(text): in quotes, with escapes.
void append_repr(std::string& out, std::string_view text);
// repr(value)
void append_real(std::string& out, double value);

}  // namespace lfm2::jinja
