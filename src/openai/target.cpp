// Tokens may reach over the seam between text and target, so the two are tokenised together.
#include "openai/target.h"

#include <iterator>
#include <string_view>

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "text/unicode/unicode_categories.h"

namespace lfm2 {

namespace {

size_t trailing_blanks(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (text[begin] & 0xc0) == 0x80) --begin;
    const Utf8Character character = first_character(text.substr(begin, end - begin));
    if (!character.valid || character.length != end - begin || !is_python_space(character.point)) break;
    end = begin;
  }
  return text.size() - end;
}

}  // namespace

bool is_python_space(uint32_t point) {
  const bool separator = point >= 0x1c && point <= 0x1f;  // only in Python
  return separator || contains(whitespace_set(), point);
}

int64_t join_target(std::string text, std::string target, const Tokenizer& tokenizer, std::vector<int32_t>& ids) {
  const size_t blanks = trailing_blanks(text);
  target.insert(0, text, text.size() - blanks, blanks);
  text.resize(text.size() - blanks);
  std::vector<int32_t> alone;
  tokenizer.encode(text, true, alone);
  ids.clear();
  tokenizer.encode(text + target, true, ids);
  return std::ssize(ids) - std::ssize(alone);
}

}  // namespace lfm2
