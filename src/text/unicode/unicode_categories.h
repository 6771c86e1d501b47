// The general category of every code point, as `tokenizers` sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lfm2 {

// Sorted ranges of code points that do not touch.
struct CodePointRange {
  uint32_t first, last;
  bool operator==(const CodePointRange&) const = default;
};
using CodePointSet = std::vector<CodePointRange>;

inline constexpr uint32_t kMaxCodePoint = 0x10ffff;

// The names of the categories, two letters each, by number.
inline constexpr std::string_view kCategoryNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
inline constexpr uint32_t kAlternating = 30;  // only in runs: Lu and Ll alternate

std::span<const uint32_t> unicode_category_runs();

// The code points of a category ("Lu") or of a group of categories ("L"); nothing for an unknown name.
std::optional<CodePointSet> category_set(std::string_view name);
// Whitespace: \s in the patterns, and the characters that `lstrip` and `rstrip` of added tokens include.
const CodePointSet& whitespace_set();
// The word characters for `single_word` of added tokens.
const CodePointSet& word_set();

CodePointSet united(CodePointSet set, const CodePointSet& other);
CodePointSet complement(const CodePointSet& set);
bool contains(const CodePointSet& set, uint32_t point);

}  // namespace lfm2
