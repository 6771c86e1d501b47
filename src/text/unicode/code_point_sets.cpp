// Sets of code points: made from the generated runs of categories, united, complemented, searched.
#include <algorithm>

#include "text/unicode/unicode_categories.h"

namespace lfm2 {

namespace {

// Sorts the ranges and joins those that overlap or touch.
CodePointSet joined(CodePointSet ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1)
      set.back().last = std::max(set.back().last, range.last);
    else
      set.push_back(range);
  }
  return set;
}

CodePointSet categories(std::initializer_list<std::string_view> names) {
  CodePointSet set;
  for (const std::string_view name : names) set = united(std::move(set), *category_set(name));
  return set;
}

}  // namespace

std::optional<CodePointSet> category_set(std::string_view name) {
  if (name.empty() || name.size() > 2) return std::nullopt;
  constexpr uint32_t kUpper = 0, kLower = 1;  // the numbers of Lu and Ll
  bool wanted[kAlternating] = {};
  for (uint32_t i = 0; i < kAlternating; ++i) wanted[i] = kCategoryNames.substr(2 * i, 2).starts_with(name);
  if (std::none_of(std::begin(wanted), std::end(wanted), [](bool one) { return one; })) return std::nullopt;
  CodePointSet ranges;
  uint32_t first = 0;
  for (const uint32_t run : unicode_category_runs()) {
    const uint32_t length = run / 32, category = run % 32;
    if (category < kAlternating) {
      if (wanted[category]) ranges.push_back({first, first + length - 1});
    } else {
      for (uint32_t i = 0; i < length; ++i)
        if (wanted[i % 2 == 0 ? kUpper : kLower]) ranges.push_back({first + i, first + i});
    }
    first += length;
  }
  return joined(std::move(ranges));
}

const CodePointSet& whitespace_set() {
  static const CodePointSet set = united({{'\t', '\r'}, {0x85, 0x85}}, categories({"Z"}));
  return set;
}

const CodePointSet& word_set() {
  // Beside the categories: the two joiners, and letters in circles and squares, which are symbols by category.
  static const CodePointSet set =
      united({{0x200c, 0x200d}, {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}},
             categories({"L", "M", "Nd", "Nl", "Pc"}));
  return set;
}

CodePointSet united(CodePointSet set, const CodePointSet& other) {
  set.insert(set.end(), other.begin(), other.end());
  return joined(std::move(set));
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet outside;
  uint32_t first = 0;
  for (const CodePointRange& range : set) {
    if (range.first > first) outside.push_back({first, range.first - 1});
    first = range.last + 1;
  }
  if (first <= kMaxCodePoint) outside.push_back({first, kMaxCodePoint});
  return outside;
}

bool contains(const CodePointSet& set, uint32_t point) {
  const auto after = std::upper_bound(set.begin(), set.end(), point,
                                      [](uint32_t value, const CodePointRange& range) { return value < range.first; });
  return after != set.begin() && point <= std::prev(after)->last;
}

}  // namespace lfm2
