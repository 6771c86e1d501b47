// What a model's text consists of while its tokens come: its thought, its calls of tools, and all other text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "openai/answer/call_reader.h"
#include "openai/answer/message_form.h"
#include "openai/answer/thought_reader.h"
#include "text/settled_tokens.h"
#include "text/stream_decoder.h"

namespace lfm2 {

struct AnswerPart {
  enum class Kind : uint8_t { kThought, kContent, kCall };
  Kind kind;
  std::string text;       // of a call: its arguments, a JSON object as text
  std::string name = {};  // of a call: its function
  bool operator==(const AnswerPart&) const = default;
};
// Adds a part to others. A text continues one of its kind that is the last of them.
void append_part(std::vector<AnswerPart>& parts, AnswerPart part);

// The tokens that begin and end calls and thoughts; -1 where a tokenizer has no such special token.
struct AnswerTokens {
  int32_t begin_call = -1, end_call = -1, begin_thought = -1, end_thought = -1;
};
AnswerTokens answer_tokens(const Tokenizer& tokenizer);

// Together the parts are the text as it stands, without the tags of the thought, without the calls, and without special
// tokens. They do not depend on how the text is cut into tokens. Bytes that are no UTF-8 become U+FFFD.
class AnswerReader {
 public:
  // `settled` has the tokenizer, which must outlive this.
  AnswerReader(const AnswerTokens& tokens, const MessageForm& form, SettledTokens settled)
      : tokens_(tokens), form_(form), settled_(std::move(settled)), thought_(form.in_thought) {}

  void feed(TokenId id) { read(settled_.feed(id)); }
  // After the last token. `cut`: the text ended because of its length, so a list of calls may lack its end.
  void end(bool cut);
  // What is known and was not returned yet.
  std::vector<AnswerPart> pop_parts() { return std::exchange(parts_, {}); }
  // Tokens of the thought so far, those of its tags included.
  int64_t thought_tokens() const { return thought_.thought() ? thinking_tokens_ : 0; }

 private:
  // A block of calls, or what follows one.
  struct Block {
    CallReader reader;
    bool open = true;
    std::string held;  // of the text after the block: it may repeat the block
  };

  void read(const std::vector<SettledTokens::Piece>& pieces);
  void begin(TokenId id);
  void begin_block();
  void end_block(bool cut);
  void drop_or_show_echo(bool ended);
  void add(const std::vector<ThoughtReader::Piece>& pieces);
  void add_answer(const std::string& bytes);
  void add_calls(std::vector<CallPart> parts);
  void add_text(AnswerPart::Kind kind, std::string_view bytes);
  void end_text();

  const AnswerTokens tokens_;
  const MessageForm form_;
  SettledTokens settled_;
  ThoughtReader thought_;
  std::optional<Block> block_;
  Utf8Stream utf8_;
  AnswerPart::Kind kind_ = AnswerPart::Kind::kContent;  // of the bytes in utf8_
  bool hides_ = false;                                  // the bytes of the current token
  int64_t thinking_tokens_ = 0, calls_ = 0;
  std::vector<AnswerPart> parts_;
};

}  // namespace lfm2
