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

// Byte-level text writes each byte as one character. The bytes of such a text; none where it holds another character.
std::optional<std::string> byte_level_bytes(std::string_view text);
// The character of a byte.
std::string byte_level_character(uint8_t byte);

class Vocabulary {
 public:
  enum class Kind { kModel, kAdded };
  // Error(kData) naming `what` where the id or the text was added before.
  void add(TokenId id, std::string text, Kind kind, const std::string& what);

  // One more than the largest id. Ids in between may be without a token.
  size_t size() const { return tokens_.size(); }
  // The number of tokens.
  size_t count() const { return ids_.size(); }
  bool has(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < size() && tokens_[index(id)].present; }
  std::optional<TokenId> find(std::string_view text) const;
  // Whether merging may give the token: it is the model's, and its text is byte-level.
  bool may_be_merged(TokenId id) const { return has(id) && tokens_[index(id)].may_be_merged; }
  // What the id decodes to; nothing where there is no token.
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
