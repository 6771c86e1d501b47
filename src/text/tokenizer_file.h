// Parses tokenizer.json: reads every field that affects ids, or refuses it if it is not supported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_pairs.h"
#include "text/split_pattern.h"
#include "text/vocabulary.h"

namespace lfm2 {

struct TokenizerFile {
  Vocabulary vocabulary;  // the model's tokens and the added ones
  std::vector<Merge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  std::vector<SplitPattern> patterns;
  std::vector<TokenId> before, after;  // the tokens that the post-processor adds around a text
};

// Error(kData) naming `what`, the field, what was found and what was expected.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& what);

}  // namespace lfm2
