// Decodes ids as they come and gives whole characters only.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace lfm2 {

// Appends bytes to text as Rust's from_utf8_lossy does for all of them together: what is not UTF-8 becomes U+FFFD.
class Utf8Stream {
 public:
  // Appends what is complete; the beginning of a character waits for the rest.
  void feed(std::string_view bytes, std::string& text);
  // Appends U+FFFD where a character never became complete.
  void flush(std::string& text);

 private:
  std::string waiting_;  // at most three bytes
};

// Together the results of feed() and flush() are what tokenizers decodes from all ids.
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
