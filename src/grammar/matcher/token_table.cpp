#include "grammar/matcher/token_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace lfm2::grammar {
namespace {

// Longer tokens are in no slice, because an expression of bounded length is searched to the depth of the longest.
constexpr size_t kMaxSliceBytes = 32;

std::bitset<128> ascii(std::string_view characters) {
  std::bitset<128> set;
  for (const char c : characters) set.set(static_cast<size_t>(c));
  return set;
}

std::bitset<128> range(char first, char last) {
  std::bitset<128> set;
  for (auto c = static_cast<size_t>(first); c <= static_cast<size_t>(last); ++c) set.set(c);
  return set;
}

// A token belongs to the first language that has it. The texts of strings come last, because they have nearly all:
// those without quotes fit in strings of either quote, the others in one kind.
std::vector<SliceLanguage> slice_languages() {
  const std::bitset<128> digits = range('0', '9'), single = ascii("'"), twofold = ascii("\"");
  const std::bitset<128> word = range('a', 'z') | range('A', 'Z') | digits | ascii("_");
  const std::bitset<128> printable = range(' ', '~') & ~ascii("\\");
  return {{digits, false},
          {word, false},
          {printable & ~single & ~twofold, true},
          {printable & ~twofold, true},
          {printable & ~single, true}};
}

bool in_language(const SliceLanguage& language, std::string_view text) {
  if (text.size() > kMaxSliceBytes || !is_utf8(text)) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const auto byte = static_cast<uint8_t>(c);
    return byte < 128 ? language.ascii[byte] : language.beyond_ascii;
  });
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer, size_t vocabulary) {
  if (vocabulary < tokenizer.size())
    throw Error(ExitCode::kData, fmt::format("tokenizer.json: found tokens up to id {}, expected at most {} ids, the "
                                             "model's vocabulary",
                                             tokenizer.size() - 1, vocabulary));
  std::vector<std::string> texts(vocabulary);
  for (size_t i = 0; i < tokenizer.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!tokenizer.is_special(id)) texts[i] = tokenizer.bytes(id);
  }
  return texts;
}

}  // namespace

TokenTable::TokenTable(const Tokenizer& tokenizer, size_t vocabulary) : TokenTable(texts_of(tokenizer, vocabulary)) {}

TokenTable::TokenTable(std::vector<std::string> texts, bool sliced) : texts_(std::move(texts)) {
  const std::vector<SliceLanguage> languages = sliced ? slice_languages() : std::vector<SliceLanguage>();
  std::vector<std::vector<TokenTrie::Token>> sorted(languages.size() + 1);
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto has = [&](const SliceLanguage& language) { return in_language(language, texts_[i]); };
    const auto found = std::find_if(languages.begin(), languages.end(), has);
    sorted[static_cast<size_t>(found - languages.begin())].emplace_back(texts_[i], static_cast<TokenId>(i));
  }
  rest_ = TokenTrie(std::move(sorted.back()));
  for (size_t i = 0; i < languages.size(); ++i) {
    Slice slice{languages[i], TokenTrie(std::move(sorted[i])), std::vector<uint32_t>(mask_words())};
    if (slice.trie.empty()) continue;
    for (const TokenId id : slice.trie.all_ids()) slice.mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    slices_.push_back(std::move(slice));
  }
}

std::string_view TokenTable::bytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= texts_.size()) return {};
  const std::string& text = texts_[static_cast<size_t>(id)];
  return text.size() > TokenTrie::kMaxBytes ? std::string_view() : std::string_view(text);
}

}  // namespace lfm2::grammar
