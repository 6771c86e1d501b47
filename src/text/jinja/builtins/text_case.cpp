#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/builtins/lower_case.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unsupported.h"

namespace lfm2::jinja {

namespace {

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

char32_t lower_character(char32_t character) {
  const auto* run = std::upper_bound(std::begin(kLower), std::end(kLower), character,
                                     [](char32_t value, const CaseRun& other) { return value < other.first; });
  if (run == std::begin(kLower)) return character;
  --run;
  if (character > run->last || (character - run->first) % run->stride != 0) return character;
  return static_cast<char32_t>(static_cast<int>(character) + run->difference);
}

// Changes each ASCII letter to upper case if `begins` is true of the character before it, else to lower case.
template <class Begins>
Value capitals(Heap& heap, std::string_view text, std::string_view name, Begins&& begins) {
  if (!is_ascii(text)) heap.fail(unsupported(fmt::format("{} of text beyond ASCII", name)));
  heap.charge_bytes(16 * text.size());
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) out += begins(i) ? ascii_upper(text[i]) : ascii_lower(text[i]);
  return heap.text(out);
}

}  // namespace

Value lower(Heap& heap, std::string_view text) {
  heap.charge_bytes(16 * text.size());
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    // The neighbours of a Σ decide its lower case.
    if (character == U'Σ') heap.fail(unsupported("lower of text with 'Σ'"));
    if (character < 0x80)
      out += ascii_lower(static_cast<char>(character));
    else if (character == U'İ')
      out += "i\u0307";
    else
      append_utf8(out, lower_character(character));
  }
  return heap.text(out);
}

Value upper(Heap& heap, std::string_view text) {
  return capitals(heap, text, "upper", [](size_t) { return true; });
}

Value capitalize(Heap& heap, std::string_view text) {
  return capitals(heap, text, "capitalize", [](size_t at) { return at == 0; });
}

Value title(Heap& heap, std::string_view text) {
  return capitals(heap, text, "title", [&](size_t at) {
    const char before = at == 0 ? ' ' : ascii_lower(text[at - 1]);
    return before < 'a' || before > 'z';
  });
}

Value title_of_words(Heap& heap, std::string_view text) {
  return capitals(heap, text, "title", [&](size_t at) {
    const char before = at == 0 ? ' ' : text[at - 1];
    return is_space(static_cast<unsigned char>(before)) ||
           std::string_view("-({[<").find(before) != std::string_view::npos;
  });
}

}  // namespace lfm2::jinja
