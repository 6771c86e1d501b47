// Sets of texts as expressions over the bytes of their spellings.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/utf8.h"
#include "grammar/expression/text_node.h"

namespace lfm2::grammar {

namespace {

// Characters with a letter for their escape.
constexpr std::pair<char, char> kShortEscapes[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
constexpr uint32_t kFirstPlain = 0x20;

// Whether a backslash precedes the character itself.
bool is_quoted(uint32_t point, Spelling spelling) {
  if (spelling == Spelling::kRaw) return false;
  return point == '\\' || point == (spelling == Spelling::kPythonSingle ? uint32_t{'\''} : uint32_t{'"'});
}

// The letter after the backslash, or 0 for \u00xx.
char escape_letter(uint32_t point) {
  for (const auto& [character, letter] : kShortEscapes)
    if (static_cast<char>(point) == character) return letter;
  return 0;
}

class Speller {
 public:
  Speller(Spelling spelling, Expressions& expressions)
      : spelling_(spelling == Spelling::kPythonDouble ? Spelling::kJson : spelling),
        expressions_(expressions),
        continuation_(expressions.bytes(range(0x80, 0xbf))) {
    const auto key = static_cast<uint32_t>(spelling_);
    if (const auto known = expressions_.find_universe(key)) {
      all_ = known->star;
      universe_ = known->number;
    } else {
      all_ = expressions_.repeat(characters(all_characters()), 0);
      universe_ = expressions_.add_universe(all_, key);
    }
  }

  Expr lower(const TextSet& set) {
    const auto known = done_.find(&set.node());
    if (known != done_.end()) return known->second;
    const Expr expr = compute(set.node());
    done_.emplace(&set.node(), expr);
    return expr;
  }

 private:
  static ByteSet range(uint32_t first, uint32_t last) {
    ByteSet set;
    for (uint32_t byte = first; byte <= last; ++byte) set.set(byte);
    return set;
  }

  Expr compute(const TextSet::Node& node) {
    using SpelledKind = TextSet::Node::Kind;
    switch (node.kind) {
      case SpelledKind::kAny:
        return all_;
      case SpelledKind::kNone:
        return expressions_.nothing();
      case SpelledKind::kText:
        return noted(expressions_.text(spell(std::u32string_view(node.text), spelling_)));
      case SpelledKind::kPoints:
        return noted(characters(node.points));
      case SpelledKind::kComplement:
        return expressions_.both({all_, expressions_.complement(lower(node.parts[0]))});
      case SpelledKind::kRepeat:
        return expressions_.repeat(lower(node.parts[0]), node.min, node.max);
      default:
        break;
    }
    std::vector<Expr> parts;
    for (const TextSet& part : node.parts) parts.push_back(lower(part));
    if (node.kind == SpelledKind::kConcat) return expressions_.concat(parts);
    return node.kind == SpelledKind::kEither ? expressions_.either(parts) : expressions_.both(parts);
  }

  Expr noted(Expr expr) {
    expressions_.note_within(universe_, expr);
    return expr;
  }

  // One character of the set. Ranges are cut where characters are escaped, and where UTF-8 has another length.
  Expr characters(const CodePointSet& points) {
    CodePointSet plain;
    std::vector<Expr> ways;
    for (const CodePointRange& range : points) {
      uint32_t first = range.first;
      for (uint32_t point = first; point <= std::min<uint32_t>(range.last, 0x7f); ++point) {
        if (!is_quoted(point, spelling_) && (point >= kFirstPlain || spelling_ == Spelling::kRaw)) continue;
        const char32_t character = point;
        ways.push_back(expressions_.text(spell({&character, 1}, spelling_)));
        if (first < point) plain.push_back({first, point - 1});
        first = point + 1;
      }
      if (first <= range.last) plain.push_back({first, range.last});
    }
    add_sequences(plain, 0, 0x7f, 0, 0, ways);
    add_sequences(plain, 0x80, 0x7ff, 1, 0xc0, ways);
    add_sequences(plain, 0x800, 0xffff, 2, 0xe0, ways);
    add_sequences(plain, 0x10000, kMaxCodePoint, 3, 0xf0, ways);
    return expressions_.either(ways);
  }

  // Adds the characters between `first` and `last`, whose lead byte is `lead` and more, and precedes `following` bytes.
  void add_sequences(const CodePointSet& points, uint32_t first, uint32_t last, int following, uint32_t lead,
                     std::vector<Expr>& ways) {
    CodePointSet clipped;
    for (const CodePointRange& range : points)
      if (range.first <= last && range.last >= first)
        clipped.push_back({std::max(range.first, first), std::min(range.last, last)});
    if (!clipped.empty()) ways.push_back(sequences(clipped, following, lead));
  }

  // Values below 64^(following + 1), 6 bits a byte but for the first one, which is `lead` + the upper bits:
  //
  //   value = upper << (6 · following) | lower        bytes = lead + upper, then lower's
  //
  // Upper bits that the same lower ones may follow are one set of bytes.
  Expr sequences(const CodePointSet& values, int following, uint32_t lead) {
    if (following == 0) {
      ByteSet set;
      for (const CodePointRange& value : values)
        for (uint32_t byte = value.first; byte <= value.last; ++byte) set.set(lead + byte);
      return expressions_.bytes(set);
    }
    const int shift = 6 * following;
    const uint32_t mask = (1u << shift) - 1;
    std::array<CodePointSet, 256> lower;
    for (const CodePointRange& value : values)
      for (uint32_t upper = value.first >> shift; upper <= value.last >> shift; ++upper) {
        const uint32_t first = upper == value.first >> shift ? value.first & mask : 0;
        const uint32_t last = upper == value.last >> shift ? value.last & mask : mask;
        lower[upper].push_back({first, last});
      }
    std::map<Expr, ByteSet> by_tail;
    for (uint32_t upper = 0; upper < 256; ++upper) {
      if (lower[upper].empty()) continue;
      const bool is_full = lower[upper].front() == CodePointRange{0, mask};
      const auto count = static_cast<uint32_t>(following);
      const Expr tail =
          is_full ? expressions_.repeat(continuation_, count, count) : sequences(lower[upper], following - 1, 0x80);
      by_tail[tail].set(lead + upper);
    }
    std::vector<Expr> ways;
    for (const auto& [tail, leads] : by_tail) ways.push_back(expressions_.concat(expressions_.bytes(leads), tail));
    return expressions_.either(ways);
  }

  const Spelling spelling_;
  Expressions& expressions_;
  const Expr continuation_;
  Expr all_{};  // any text
  uint32_t universe_ = 0;
  std::unordered_map<const TextSet::Node*, Expr> done_;
};

}  // namespace

Expr lower(const TextSet& set, Spelling spelling, Expressions& expressions) {
  return Speller(spelling, expressions).lower(set);
}

std::string spell(std::u32string_view points, Spelling spelling) {
  std::string bytes;
  for (const char32_t point : points) {
    if (is_quoted(point, spelling)) {
      bytes += '\\';
      bytes += static_cast<char>(point);
    } else if (point >= kFirstPlain || spelling == Spelling::kRaw) {
      append_utf8(bytes, point);
    } else if (const char letter = escape_letter(point); letter != 0) {
      bytes += '\\';
      bytes += letter;
    } else {
      bytes += fmt::format("\\u{:04x}", static_cast<uint32_t>(point));
    }
  }
  return bytes;
}

std::string spell(std::string_view utf8, Spelling spelling) { return spell(code_points(utf8), spelling); }

}  // namespace lfm2::grammar
