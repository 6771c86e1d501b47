// Streams the text of a completion: emits whole characters, and holds back bytes that may begin a stop text. All
// results together equal text_of() of the finished completion.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/settled_tokens.h"
#include "text/stream_decoder.h"

namespace lfm2 {

class AnswerStream {
 public:
  // The tokenizer must outlive this. Stop texts count only from token number `min_tokens` on.
  AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stops, int64_t min_tokens)
      : tokens_(tokenizer, std::move(stops), min_tokens) {}

  std::string feed(TokenId id) { return text_of(tokens_.feed(id)); }
  // The rest, after the last token.
  std::string flush() {
    std::string text = text_of(tokens_.flush());
    utf8_.flush(text);
    return text;
  }

 private:
  std::string text_of(const std::vector<SettledTokens::Piece>& pieces) {
    std::string text;
    for (const SettledTokens::Piece& piece : pieces) utf8_.feed(piece.bytes, text);
    return text;
  }

  SettledTokens tokens_;
  Utf8Stream utf8_;
};

}  // namespace lfm2
