// The small tokenizer of tests/golden/text, and changes of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "support/weights_support.h"
#include "text/tokenizer.h"

namespace lfm2::test {

inline Json small_tokenizer_json() {
  static const Json json =
      parse_json(read_bytes(std::filesystem::path(LFM2_GOLDEN_DIR) / "text/tokenizer.json"), "tokenizer.json");
  return json;
}

inline Tokenizer parse_tokenizer(const Json& json) { return Tokenizer::parse(json.dump(), "tokenizer.json"); }

inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = parse_tokenizer(small_tokenizer_json());
  return tokenizer;
}

inline std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text, bool special = false) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, special, ids);
  return ids;
}

}  // namespace lfm2::test
