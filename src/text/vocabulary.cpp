// Byte-level texts and the tokens of a vocabulary.
#include "text/vocabulary.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace lfm2 {

namespace {

// Bytes that are printable in Latin-1 are written as themselves, the others as U+0100 and following.
bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

struct ByteLevelTables {
  std::array<uint32_t, 256> point_of;
  std::array<int16_t, 512> byte_of;

  ByteLevelTables() {
    byte_of.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      point_of[byte] = stands_for_itself(byte) ? byte : next++;
      byte_of[point_of[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const ByteLevelTables& tables() {
  static const ByteLevelTables tables;
  return tables;
}

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (!character.valid || character.point >= tables().byte_of.size()) return std::nullopt;
    const int byte = tables().byte_of[character.point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(character.length);
  }
  return bytes;
}

std::string byte_level_character(uint8_t byte) {
  std::string text;
  append_utf8(text, tables().point_of[byte]);
  return text;
}

void Vocabulary::add(TokenId id, std::string text, Kind kind, const std::string& what) {
  const size_t place = index(id);
  if (place >= tokens_.size()) tokens_.resize(place + 1);
  if (tokens_[place].present) throw Error(ExitCode::kData, fmt::format("{}: two tokens have the id {}", what, id));
  // tokenizers decodes a token unchanged if it is not byte-level text.
  const std::optional<std::string> bytes = byte_level_bytes(text);
  tokens_[place] = {bytes.value_or(text), true, bytes.has_value() && kind == Kind::kModel};
  if (!ids_.emplace(std::move(text), id).second)
    throw Error(ExitCode::kData, fmt::format("{}: the token of id {} stands twice", what, id));
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace lfm2
