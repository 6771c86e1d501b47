#include "openai/answer/answer_reader.h"

#include <utility>

namespace lfm2 {

namespace {

int32_t token_named(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, false, ids);
  return ids.size() == 1 ? ids.front() : -1;
}

}  // namespace

void append_part(std::vector<AnswerPart>& parts, AnswerPart part) {
  const bool is_call = part.kind == AnswerPart::Kind::kCall;
  if (!is_call && part.text.empty()) return;
  if (!is_call && !parts.empty() && parts.back().kind == part.kind)
    parts.back().text += part.text;
  else
    parts.push_back(std::move(part));
}

AnswerTokens answer_tokens(const Tokenizer& tokenizer) {
  AnswerTokens tokens{token_named(tokenizer, kBeginCalls), token_named(tokenizer, kEndCalls),
                      token_named(tokenizer, kBeginThought), token_named(tokenizer, kEndThought)};
  if (tokens.begin_call < 0 || tokens.end_call < 0) tokens.begin_call = tokens.end_call = -1;
  for (int32_t* tag : {&tokens.begin_thought, &tokens.end_thought})
    if (*tag >= 0 && !tokenizer.is_special(*tag)) *tag = -1;  // it is found as text
  return tokens;
}

void AnswerReader::read(const std::vector<SettledTokens::Piece>& pieces) {
  for (const SettledTokens::Piece& piece : pieces) {
    if (piece.begins) begin(*piece.begins);
    if (hides_ || piece.bytes.empty()) continue;
    if (form_.thoughts == Thoughts::kNone)
      add_answer(piece.bytes);
    else
      add(thought_.feed(piece.bytes));
  }
}

void AnswerReader::begin(TokenId id) {
  hides_ = false;
  if (form_.thoughts == Thoughts::kNone) return;
  if (!thought_.in_answer()) ++thinking_tokens_;
  if (id == tokens_.begin_thought) return add(thought_.begin_tag());
  if (id == tokens_.end_thought) return add(thought_.end_tag());
  if (id != tokens_.begin_call && id != tokens_.end_call) return;
  hides_ = true;
  add(thought_.flush());
  if (!form_.calls || thought_.thinks()) return;
  if (id == tokens_.begin_call)
    begin_block();
  else if (block_ && block_->open)
    end_block(false);
  else
    drop_or_show_echo(true);
}

void AnswerReader::begin_block() {
  if (block_ && block_->open) end_block(false);
  drop_or_show_echo(false);
  end_text();
  block_ = Block();
}

void AnswerReader::end_block(bool cut) {
  const int64_t before = calls_;
  add_calls(block_->reader.end(cut));
  block_->open = false;
  if (calls_ == before) block_.reset();
}

// `ended`: a token that ends calls follows the text after a block. It drops what repeats the block.
void AnswerReader::drop_or_show_echo(bool ended) {
  if (!block_ || block_->open) return;
  const std::string held = std::exchange(block_->held, {});
  const bool repeats = ended && trimmed(held) == trimmed(block_->reader.text());
  block_.reset();
  if (!repeats) add_text(AnswerPart::Kind::kContent, held);
}

void AnswerReader::end(bool cut) {
  read(settled_.flush());
  if (form_.thoughts != Thoughts::kNone) add(thought_.flush());
  if (block_ && block_->open) end_block(cut);
  drop_or_show_echo(false);
  end_text();
}

void AnswerReader::add(const std::vector<ThoughtReader::Piece>& pieces) {
  for (const ThoughtReader::Piece& piece : pieces) {
    const bool as_text = form_.thoughts == Thoughts::kAsText;
    if (piece.kind == ThoughtReader::Kind::kAnswer)
      add_answer(piece.bytes);
    else if (as_text)
      add_text(AnswerPart::Kind::kContent, piece.bytes);
    else if (piece.kind == ThoughtReader::Kind::kThought && form_.thoughts == Thoughts::kApart)
      add_text(AnswerPart::Kind::kThought, piece.bytes);
  }
}

void AnswerReader::add_answer(const std::string& bytes) {
  if (!block_) return add_text(AnswerPart::Kind::kContent, bytes);
  if (block_->open) return add_calls(block_->reader.feed(bytes));
  block_->held += bytes;
  if (!trimmed(block_->reader.text()).starts_with(trimmed(block_->held))) drop_or_show_echo(false);
}

void AnswerReader::add_calls(std::vector<CallPart> parts) {
  for (CallPart& part : parts) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      add_text(AnswerPart::Kind::kContent, *text);
      continue;
    }
    if (++calls_ > 1 && form_.one_call) continue;
    ToolCall& call = std::get<ToolCall>(part);
    end_text();
    append_part(parts_, {AnswerPart::Kind::kCall, std::move(call.arguments), std::move(call.name)});
  }
}

void AnswerReader::add_text(AnswerPart::Kind kind, std::string_view bytes) {
  if (bytes.empty()) return;
  if (kind != kind_) end_text();
  kind_ = kind;
  std::string text;
  utf8_.feed(bytes, text);
  append_part(parts_, {kind, std::move(text)});
}

// A character that is not whole is none.
void AnswerReader::end_text() {
  std::string text;
  utf8_.flush(text);
  append_part(parts_, {kind_, std::move(text)});
}

}  // namespace lfm2
