// Assembles whole characters from tokens that may contain parts of characters.
#include "text/stream_decoder.h"

#include "base/utf8.h"

namespace lfm2 {

void Utf8Stream::feed(std::string_view bytes, std::string& text) {
  waiting_ += bytes;
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const Utf8Character character = first_character(rest);
    if (character.cut) break;
    text += character.valid ? rest.substr(0, character.length) : kReplacementCharacter;
    rest.remove_prefix(character.length);
  }
  waiting_.erase(0, waiting_.size() - rest.size());
}

void Utf8Stream::flush(std::string& text) {
  if (!waiting_.empty()) text += kReplacementCharacter;
  waiting_.clear();
}

std::string utf8_text(std::string_view bytes) {
  Utf8Stream utf8;
  std::string text;
  utf8.feed(bytes, text);
  utf8.flush(text);
  return text;
}

std::string StreamDecoder::feed(TokenId id) {
  std::string text;
  if (!skip_special_tokens_ || !tokenizer_.is_special(id)) utf8_.feed(tokenizer_.bytes(id), text);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  utf8_.flush(text);
  return text;
}

}  // namespace lfm2
