// Tokens and their bytes as soon as no stop text can end the text before them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/stop_text.h"
#include "text/tokenizer.h"

namespace lfm2 {

class SettledTokens {
 public:
  // Bytes that belong to the text: of the token that begins with them, or of the one before.
  struct Piece {
    std::optional<TokenId> begins;
    std::string bytes;
  };
  // The tokenizer must outlive this. No stop text ends the text before its token number `min_tokens`. The text has at
  // most `max_bytes` bytes: of a finished one it is known where it ends.
  SettledTokens(const Tokenizer& tokenizer, std::vector<std::string> stops, int64_t min_tokens,
                int64_t max_bytes = std::numeric_limits<int64_t>::max())
      : tokenizer_(tokenizer), stop_(std::move(stops)), min_tokens_(min_tokens), left_(max_bytes) {}

  // The next token, of which nothing comes out after a stop text. Special tokens have no bytes.
  std::vector<Piece> feed(TokenId id) {
    if (stopped_) return {};
    const std::string_view bytes = tokenizer_.is_special(id) ? std::string_view() : tokenizer_.bytes(id);
    held_.push_back({id, std::string(bytes)});
    const std::optional<int64_t> stopped = stop_.feed(bytes, ++tokens_ > min_tokens_);
    std::vector<Piece> pieces = release(stopped ? *stopped : stop_.settled());
    stopped_ = stopped.has_value();
    if (stopped_) held_.clear();
    return pieces;
  }
  // The rest, after the last token.
  std::vector<Piece> flush() { return release(std::numeric_limits<int64_t>::max()); }

 private:
  // What precedes byte number `end` of the text.
  std::vector<Piece> release(int64_t end) {
    std::vector<Piece> pieces;
    while (!held_.empty()) {
      Piece& front = held_.front();
      const auto size = static_cast<int64_t>(front.bytes.size());
      const int64_t count = std::min({size, end - released_, left_});
      if (size > 0 && count <= 0) break;
      pieces.push_back({front.begins, front.bytes.substr(0, static_cast<size_t>(count))});
      front.begins.reset();
      front.bytes.erase(0, static_cast<size_t>(count));
      released_ += count;
      left_ -= count;
      if (count < size) break;
      held_.pop_front();
    }
    return pieces;
  }

  const Tokenizer& tokenizer_;
  StopText stop_;
  const int64_t min_tokens_;
  int64_t left_;  // bytes that may still come
  std::deque<Piece> held_;
  int64_t tokens_ = 0, released_ = 0;
  bool stopped_ = false;
};

}  // namespace lfm2
