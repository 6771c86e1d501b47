#include "openai/answer/call_reader.h"

#include <utility>

namespace lfm2 {

namespace {

constexpr size_t kMaxGap = 1024;  // bytes between two calls that are looked at while they come
constexpr int kMaxRepairs = 64;   // of a block: each may look at all of its text

void add_text(std::vector<CallPart>& parts, std::string_view text) {
  if (const std::string_view rest = trimmed(text); !rest.empty()) parts.emplace_back(std::string(rest));
}

}  // namespace

void CallReader::begin_call(const AfterCall& next) {
  began_ = true;
  at_ = lexed_ = next.at;
  in_list_ = next.in_list;
  end_ = std::string::npos;
  lexer_ = {};
}

// Whether the call at at_ is certain, and another one begins after it: then that one is next.
bool CallReader::confirm(std::vector<CallPart>& parts) {
  for (; end_ == std::string::npos && lexed_ < text_.size(); ++lexed_) {
    const int64_t depth = lexer_.depth();
    lexer_.feed(text_[lexed_]);
    if (lexer_.outside() && depth > 0) end_ = lexed_ + 1;
  }
  if (end_ == std::string::npos) return false;
  const AfterCall next = after_call(text_, end_, in_list_);
  if (next.kind == AfterCall::Kind::kOther || text_.size() - end_ > kMaxGap) waits_ = true;
  if (next.kind != AfterCall::Kind::kCall) return false;
  std::optional<ToolCallText> read = read_tool_call(std::string_view(text_).substr(0, end_), at_, false);
  if (!read || read->end != end_) {
    waits_ = true;
    return false;
  }
  parts.emplace_back(std::move(read->call));
  ++calls_;
  begin_call(next);
  return true;
}

std::vector<CallPart> CallReader::feed(std::string_view bytes) {
  std::vector<CallPart> parts;
  for (const char byte : bytes) {
    text_ += byte;
    if (waits_ || (began_ && end_ != std::string::npos && TextCursor::is_blank(byte))) continue;
    if (!began_) {
      if (TextCursor::is_blank(byte)) continue;
      const AfterCall first = first_call(text_);
      if (first.kind == AfterCall::Kind::kOther || text_.size() > kMaxGap) waits_ = true;
      if (first.kind != AfterCall::Kind::kCall) continue;
      begin_call(first);
    }
    while (!waits_ && confirm(parts)) {
    }
  }
  return parts;
}

// The end of the call at at_ by its brackets: where a comma, a closing bracket or, outside of lists, a line feed stands
// outside of its own.
size_t CallReader::lexical_end() const {
  CallLexer lexer;
  for (size_t at = at_; at < text_.size(); ++at) {
    const bool outside = lexer.outside();
    lexer.feed(text_[at]);
    const char c = text_[at];
    if (outside && (c == ',' || c == ']' || (c == '\n' && !in_list_))) return at;
  }
  return text_.size();
}

std::vector<CallPart> CallReader::end(bool cut) {
  std::vector<CallPart> parts;
  if (!began_) begin_call(first_call(text_));
  int repairs = 0;
  const std::string_view text = text_;
  for (bool more = at_ < text.size(); more;) {
    std::optional<ToolCallText> read;
    AfterCall next{AfterCall::Kind::kOther, at_, in_list_};
    const auto good = [&] {
      using Kind = AfterCall::Kind;
      return read &&
             (next.kind == Kind::kCall || next.kind == Kind::kEnd || calls_ > 0 || (next.kind == Kind::kOpen && cut));
    };
    for (const bool repaired : {false, true}) {
      if (good() || (repaired && ++repairs > kMaxRepairs)) break;
      read = read_tool_call(text, at_, repaired);
      if (read) next = after_call(text, read->end, in_list_);
    }
    if (good()) {
      parts.emplace_back(std::move(read->call));
      ++calls_;
      if (next.kind != AfterCall::Kind::kCall) add_text(parts, text.substr(next.at));
    } else {
      const size_t end = lexical_end();
      next = after_call(text, end, in_list_);
      const bool goes_on = next.kind == AfterCall::Kind::kCall && next.at > at_;
      const bool ends = next.kind == AfterCall::Kind::kEnd;
      add_text(parts, text.substr(at_, goes_on || ends ? end - at_ : std::string::npos));
    }
    more = next.kind == AfterCall::Kind::kCall && next.at > at_;
    if (more) begin_call(next);
  }
  if (calls_ > 0) return parts;
  parts.clear();
  if (!text_.empty()) parts.emplace_back(text_);
  return parts;
}

}  // namespace lfm2
