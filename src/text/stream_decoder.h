// Decodes ids one by one and emits only whole characters.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace lfm2 {

// Converts a stream of bytes to UTF-8 with the same result as Rust's from_utf8_lossy on all bytes: invalid bytes become
// U+FFFD.
class Utf8Stream {
 public:
  // Appends complete characters; an incomplete one waits for its remaining bytes.
  void feed(std::string_view bytes, std::string& text);
  // Appends U+FFFD if a character remained incomplete.
  void flush(std::string& text);

 private:
  std::string waiting_;  // at most three bytes
};

// The same for bytes that are all there.
std::string utf8_text(std::string_view bytes);

// The results of feed() and flush() together equal what `tokenizers` decodes from all ids.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string feed(TokenId id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  Utf8Stream utf8_;
};

}  // namespace lfm2
