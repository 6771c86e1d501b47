// Streams the text of a completion: emits whole characters, and holds back bytes that may begin a stop text. All
// results together equal text_of() of the finished completion.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/stop_text.h"
#include "text/stream_decoder.h"

namespace lfm2 {

class AnswerStream {
 public:
  // The tokenizer must outlive this. Stop texts count only from token number `min_tokens` on.
  AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stops, int64_t min_tokens)
      : tokenizer_(tokenizer), stop_(std::move(stops)), min_tokens_(min_tokens) {}

  std::string feed(TokenId id) { return add(id, true); }
  // Adds a token whose bytes are not shown. The bytes still count for stop texts, since the last stage searches all
  // bytes. Returns held text that this token releases.
  std::string hide(TokenId id) { return add(id, false); }
  // The rest, after the last token.
  std::string flush() {
    std::string text = show(held_.size());
    utf8_.flush(text);
    return text;
  }

 private:
  std::string add(TokenId id, bool visible) {
    const std::string_view bytes = tokenizer_.is_special(id) ? std::string_view() : tokenizer_.bytes(id);
    held_ += bytes;
    visible_.resize(held_.size(), visible);
    const std::optional<int64_t> stopped = stop_.feed(bytes, ++tokens_ > min_tokens_);
    const int64_t shown = stopped ? *stopped : stop_.settled();
    std::string text = show(static_cast<size_t>(shown - shown_));
    if (stopped) {
      held_.clear();
      visible_.clear();
    }
    return text;
  }
  std::string show(size_t bytes) {
    std::string seen, text;
    for (size_t i = 0; i < bytes; ++i)
      if (visible_[i]) seen += held_[i];
    utf8_.feed(seen, text);
    held_.erase(0, bytes);
    visible_.erase(visible_.begin(), visible_.begin() + static_cast<std::ptrdiff_t>(bytes));
    shown_ += static_cast<int64_t>(bytes);
    return text;
  }

  const Tokenizer& tokenizer_;
  StopText stop_;
  Utf8Stream utf8_;
  std::string held_;           // bytes that may be the beginning of a stop text
  std::vector<bool> visible_;  // [bytes of held_]
  int64_t shown_ = 0, tokens_ = 0, min_tokens_;
};

}  // namespace lfm2
