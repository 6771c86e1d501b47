// The tokens of a vocabulary: their texts as in the file, and the bytes that they stand for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lfm2 {

using TokenId = int32_t;

// The bytes of a byte-level text, in which one character represents each byte; nothing if it has any other character.
std::optional<std::string> byte_level_bytes(std::string_view text);
// The character of a byte.
std::string byte_level_character(uint8_t byte);

class Vocabulary {
 public:
  enum class Kind { kModel, kAdded };
  // Error(kData) naming `what` if the id or the text was added before.
  void add(TokenId id, std::string text, Kind kind, const std::string& what);

  // One more than the largest id. Ids below it may lack a token.
  size_t size() const { return tokens_.size(); }
  // The number of tokens.
  size_t count() const { return ids_.size(); }
  bool has(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < size() && tokens_[index(id)].present; }
  std::optional<TokenId> find(std::string_view text) const;
  // Whether a merge may produce the token: it belongs to the model, and its text is byte-level.
  bool may_be_merged(TokenId id) const { return has(id) && tokens_[index(id)].may_be_merged; }
  // The bytes that the id decodes to; empty if there is no token.
  std::string_view bytes(TokenId id) const {
    return has(id) ? std::string_view(tokens_[index(id)].bytes) : std::string_view();
  }

 private:
  struct Token {
    std::string bytes;
    bool present = false, may_be_merged = false;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  static size_t index(TokenId id) { return static_cast<size_t>(id); }

  std::vector<Token> tokens_;
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;  // by the text in the file
};

}  // namespace lfm2
