#include "openai/answer/thought_reader.h"

#include <algorithm>
#include <utility>

namespace lfm2 {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// How many of the last bytes are the beginning of the tag.
size_t begun_tag(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length)
    if (text.ends_with(tag.substr(0, length))) return length;
  return 0;
}

}  // namespace

bool template_knows_thoughts(std::string_view source) { return source.find(kEndThought) != std::string_view::npos; }

bool ends_in_thought(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kBlanks);
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(kBeginThought);
}

// The text begins without a tag.
void ThoughtReader::settle(std::vector<Piece>& pieces) {
  place_ = begins_in_thought_ ? Place::kThought : Place::kAnswer;
  thought_ = begins_in_thought_;
  if (begins_in_thought_) return read_thought(pieces);
  pieces.push_back({Kind::kAnswer, std::exchange(held_, {})});
}

void ThoughtReader::read_start(std::vector<Piece>& pieces) {
  const size_t begin = std::min(held_.find_first_not_of(kBlanks), held_.size());
  const std::string_view text = std::string_view(held_).substr(begin);
  if (text.size() < kBeginThought.size() && kBeginThought.starts_with(text)) return;
  if (!text.starts_with(kBeginThought)) return settle(pieces);
  const size_t end = begin + kBeginThought.size();
  pieces.push_back({Kind::kTag, held_.substr(0, end)});
  held_.erase(0, end);
  place_ = Place::kThought;
  thought_ = true;
  read_thought(pieces);
}

void ThoughtReader::read_thought(std::vector<Piece>& pieces) {
  const size_t end = held_.find(kEndThought);
  const size_t count = end != std::string::npos ? end : held_.size() - begun_tag(held_, kEndThought);
  if (count > 0) pieces.push_back({Kind::kThought, held_.substr(0, count)});
  held_.erase(0, count);
  if (end == std::string::npos) return;
  place_ = Place::kAnswer;
  pieces.push_back({Kind::kTag, std::string(kEndThought)});
  held_.erase(0, kEndThought.size());
  if (!held_.empty()) pieces.push_back({Kind::kAnswer, std::exchange(held_, {})});
}

std::vector<ThoughtReader::Piece> ThoughtReader::feed(std::string_view bytes) {
  std::vector<Piece> pieces;
  if (bytes.empty()) return pieces;
  if (place_ == Place::kAnswer) {
    pieces.push_back({Kind::kAnswer, std::string(bytes)});
    return pieces;
  }
  held_ += bytes;
  place_ == Place::kStart ? read_start(pieces) : read_thought(pieces);
  return pieces;
}

std::vector<ThoughtReader::Piece> ThoughtReader::flush() {
  std::vector<Piece> pieces;
  if (place_ == Place::kStart) settle(pieces);
  if (!held_.empty())
    pieces.push_back({place_ == Place::kThought ? Kind::kThought : Kind::kAnswer, std::exchange(held_, {})});
  return pieces;
}

std::vector<ThoughtReader::Piece> ThoughtReader::begin_tag() {
  if (place_ == Place::kStart && held_.find_first_not_of(kBlanks) == std::string::npos) {
    place_ = Place::kThought;
    thought_ = true;
    return {{Kind::kTag, std::exchange(held_, {}) + std::string(kBeginThought)}};
  }
  std::vector<Piece> pieces = flush();
  pieces.push_back({thinks() ? Kind::kThought : Kind::kAnswer, std::string(kBeginThought)});
  return pieces;
}

std::vector<ThoughtReader::Piece> ThoughtReader::end_tag() {
  std::vector<Piece> pieces = flush();
  pieces.push_back({thinks() ? Kind::kTag : Kind::kAnswer, std::string(kEndThought)});
  place_ = Place::kAnswer;
  return pieces;
}

}  // namespace lfm2
