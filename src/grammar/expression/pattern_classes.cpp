#include "grammar/expression/pattern_classes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "grammar/expression/expression.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {

namespace {

bool is_count_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_ascii_letter(uint32_t point) { return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z'); }

const CodePointSet kDigitClass = {{'0', '9'}};
const CodePointSet kWordClass = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

// WhiteSpace and LineTerminator of ECMA-262: tab to carriage return, U+FEFF and the category Zs, and two separators.
CodePointSet white_space() {
  return united(united({{'\t', '\r'}, {0x2028, 0x2029}, {0xfeff, 0xfeff}}, *category_set("Zs")), {});
}

// Long names of general categories (PropertyValueAliases.txt of Unicode) beside the two-letter ones.
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {{"Letter", "L"},
                                                                        {"Cased_Letter", "LC"},
                                                                        {"Uppercase_Letter", "Lu"},
                                                                        {"Lowercase_Letter", "Ll"},
                                                                        {"Titlecase_Letter", "Lt"},
                                                                        {"Modifier_Letter", "Lm"},
                                                                        {"Other_Letter", "Lo"},
                                                                        {"Mark", "M"},
                                                                        {"Combining_Mark", "M"},
                                                                        {"Nonspacing_Mark", "Mn"},
                                                                        {"Spacing_Mark", "Mc"},
                                                                        {"Enclosing_Mark", "Me"},
                                                                        {"Number", "N"},
                                                                        {"Decimal_Number", "Nd"},
                                                                        {"digit", "Nd"},
                                                                        {"Letter_Number", "Nl"},
                                                                        {"Other_Number", "No"},
                                                                        {"Punctuation", "P"},
                                                                        {"punct", "P"},
                                                                        {"Connector_Punctuation", "Pc"},
                                                                        {"Dash_Punctuation", "Pd"},
                                                                        {"Open_Punctuation", "Ps"},
                                                                        {"Close_Punctuation", "Pe"},
                                                                        {"Initial_Punctuation", "Pi"},
                                                                        {"Final_Punctuation", "Pf"},
                                                                        {"Other_Punctuation", "Po"},
                                                                        {"Symbol", "S"},
                                                                        {"Math_Symbol", "Sm"},
                                                                        {"Currency_Symbol", "Sc"},
                                                                        {"Modifier_Symbol", "Sk"},
                                                                        {"Other_Symbol", "So"},
                                                                        {"Separator", "Z"},
                                                                        {"Space_Separator", "Zs"},
                                                                        {"Line_Separator", "Zl"},
                                                                        {"Paragraph_Separator", "Zp"},
                                                                        {"Other", "C"},
                                                                        {"Control", "Cc"},
                                                                        {"cntrl", "Cc"},
                                                                        {"Format", "Cf"},
                                                                        {"Surrogate", "Cs"},
                                                                        {"Private_Use", "Co"},
                                                                        {"Unassigned", "Cn"}};

std::optional<CodePointSet> property_set(std::string_view name) {
  if (name == "Any") return CodePointSet{{0, kMaxCodePoint}};
  if (name == "ASCII") return CodePointSet{{0, 0x7f}};
  if (name == "Assigned") return complement(*category_set("Cn"));
  for (const std::string_view prefix : {"General_Category=", "gc="})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  for (const auto& [long_name, short_name] : kLongNames)
    if (name == long_name) name = short_name;
  if (name == "LC") return united(united(*category_set("Lu"), *category_set("Ll")), *category_set("Lt"));
  return category_set(name);
}

CodePointSet property(PatternInput& input) {
  if (!input.accept("{")) input.refuse("\\p without a name", "\\p{general category}");
  std::string name;
  while (!input.accept("}")) append_utf8(name, input.next());
  const std::optional<CodePointSet> set = property_set(name);
  if (!set) input.refuse(fmt::format("the property \"{}\"", name), "a general category such as Lu or Letter");
  return *set;
}

uint32_t hexadecimal(PatternInput& input, int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const uint32_t point = input.next();
    const std::string_view all = "0123456789abcdef";
    const size_t digit =
        point < 0x80 ? all.find(static_cast<char>(is_ascii_letter(point) ? point | 0x20 : point)) : all.npos;
    if (digit == all.npos) input.refuse("an escape without its digits", fmt::format("{} hexadecimal digits", digits));
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  return value;
}

// After \u: four digits, two such escapes that are a surrogate pair, or digits in braces.
uint32_t unicode_escape(PatternInput& input) {
  if (input.accept("{")) {
    uint32_t value = 0;
    do {
      value = value * 16 + hexadecimal(input, 1);
      if (value > kMaxCodePoint) input.refuse("a code point beyond U+10FFFF", "at most \\u{10ffff}");
    } while (!input.accept("}"));
    return value;
  }
  const uint32_t first = hexadecimal(input, 4);
  if (first < 0xd800 || first > 0xdbff || !input.next_is("\\u") || input.next_is("\\u{")) return first;
  PatternInput ahead = input;
  ahead.accept("\\u");
  const uint32_t second = hexadecimal(ahead, 4);
  if (second < 0xdc00 || second > 0xdfff) return first;
  input = ahead;
  return 0x10000 + ((first - 0xd800) << 10 | (second - 0xdc00));
}

// A class of characters after the backslash, or nothing.
std::optional<CodePointSet> named_class(PatternInput& input, bool any_case) {
  // Where case does not matter, U+017F is a word character, as it folds to s, and U+212A, which folds to k.
  if (input.accept("d")) return kDigitClass;
  if (input.accept("D")) return complement(kDigitClass);
  if (input.accept("w")) return with_case(kWordClass, any_case, input);
  if (input.accept("W")) return complement(with_case(kWordClass, any_case, input));
  if (input.accept("s")) return white_space();
  if (input.accept("S")) return complement(white_space());
  if (!input.next_is("p") && !input.next_is("P")) return std::nullopt;
  if (any_case) input.refuse("a property where case does not matter", "(?i: ) without \\p");
  const bool is_complement = input.next() == 'P';
  CodePointSet set = property(input);
  return is_complement ? complement(set) : set;
}

// A character after the backslash.
uint32_t escaped_character(PatternInput& input, bool in_class) {
  const uint32_t point = input.next();
  switch (point) {
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'v':
      return '\v';
    case 'f':
      return '\f';
    case 'r':
      return '\r';
    case 'u':
      return unicode_escape(input);
    case 'x':
      return hexadecimal(input, 2);
    case 'c': {
      const uint32_t letter = input.next();
      if (!is_ascii_letter(letter)) input.refuse("\\c without a letter", "\\cA to \\cZ");
      return letter % 32;
    }
    case 'b':
      if (in_class) return '\b';
      [[fallthrough]];
    case 'B':
      input.refuse(fmt::format("\\{}", static_cast<char>(point)), "an expression without word boundaries");
    case 'k':
      input.refuse("a back reference", "an expression without back references");
    case '0': {
      PatternInput ahead = input;
      if (ahead.at_end() || ahead.next() < '0' || ahead.last() > '9') return 0;
      input.refuse("an octal escape", "\\xHH");
    }
    default:
      break;
  }
  if (point >= '1' && point <= '9') input.refuse("a back reference", "an expression without back references");
  if (is_ascii_letter(point) || point >= 0x80 || point == '_') {
    std::string character;
    append_utf8(character, point);
    if (is_ascii_letter(point))
      input.refuse(fmt::format("the unknown escape \\{}", character), "an escape of ECMA-262");
  }
  return point;
}

}  // namespace

uint32_t PatternInput::next() {
  if (rest_.empty()) refuse("its end", "a complete expression");
  const Utf8Character character = first_character(rest_);
  if (!character.valid) refuse("bytes that are no UTF-8", "text in UTF-8");
  rest_.remove_prefix(character.length);
  return last_ = character.point;
}

void PatternInput::refuse(const std::string& found, const std::string& expected) const {
  throw Refusal("", "", fmt::format("{} at byte {} of the expression", found, size_ - rest_.size()), expected);
}

bool PatternInput::next_is_count() const {
  PatternInput ahead = *this;
  return next_is("{") && ahead.counts().has_value();
}

std::optional<std::pair<uint32_t, uint32_t>> PatternInput::counts() {
  if (accept("*")) return {{0, kNoMax}};
  if (accept("+")) return {{1, kNoMax}};
  if (accept("?")) return {{0, 1}};
  // A "{" that does not begin a count is a character.
  PatternInput ahead = *this;
  const auto number = [&]() -> std::optional<uint32_t> {
    if (ahead.rest_.empty() || !is_count_digit(ahead.rest_[0])) return std::nullopt;
    uint64_t value = 0;
    for (; !ahead.rest_.empty() && is_count_digit(ahead.rest_[0]); ahead.rest_.remove_prefix(1))
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(ahead.rest_[0] - '0'), kNoMax - 1);
    return static_cast<uint32_t>(value);
  };
  if (!ahead.accept("{")) return std::nullopt;
  const std::optional<uint32_t> min = number();
  if (!min) return std::nullopt;
  std::optional<uint32_t> max = min;
  if (ahead.accept(",")) max = ahead.next_is("}") ? kNoMax : number();
  if (!max || !ahead.accept("}")) return std::nullopt;
  if (*max < *min) refuse("a count whose ends are exchanged", "{m,n} with m of at most n");
  *this = ahead;
  return {{*min, *max}};
}

const CodePointSet& no_line_end() {
  static const CodePointSet set = complement(CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  return set;
}

CodePointSet with_case(CodePointSet set, bool any_case, const PatternInput& input) {
  if (!any_case) return set;
  static const CodePointSet beyond_ascii = [] {
    CodePointSet cased = united(united(*category_set("L"), *category_set("M")), *category_set("Nl"));
    cased = united(united(std::move(cased), *category_set("So")), {});
    std::erase_if(cased, [](const CodePointRange& range) { return range.last < 0x80; });
    cased.front().first = std::max(cased.front().first, 0x80u);
    return cased;
  }();
  CodePointSet other;
  for (const CodePointRange& range : set) {
    for (uint32_t point = range.first; point <= std::min(range.last, uint32_t{'z'}); ++point) {
      if (!is_ascii_letter(point)) continue;
      other.push_back({point ^ 0x20, point ^ 0x20});
      if ((point | 0x20) == 's') other.push_back({0x17f, 0x17f});
      if ((point | 0x20) == 'k') other.push_back({0x212a, 0x212a});
    }
    for (const CodePointRange& cased : beyond_ascii)
      if (range.first <= cased.last && range.last >= cased.first)
        input.refuse("a letter beyond ASCII where case does not matter", "ASCII alone in (?i: )");
  }
  return united(std::move(set), other);
}

CodePointSet escaped_set(PatternInput& input, bool any_case) {
  input.accept("\\");
  if (std::optional<CodePointSet> set = named_class(input, any_case)) return *std::move(set);
  const uint32_t point = escaped_character(input, false);
  return with_case({{point, point}}, any_case, input);
}

CodePointSet character_class(PatternInput& input, bool any_case) {
  const bool is_complement = input.accept("^");
  CodePointSet set, named;
  // A character, or a class, which is added.
  const auto atom = [&]() -> std::optional<uint32_t> {
    if (!input.accept("\\")) return input.next();
    if (const std::optional<CodePointSet> whole = named_class(input, any_case)) {
      named.insert(named.end(), whole->begin(), whole->end());
      return std::nullopt;
    }
    return escaped_character(input, true);
  };
  while (!input.accept("]")) {
    const std::optional<uint32_t> first = atom();
    PatternInput ahead = input;
    if (!first || !ahead.accept("-") || ahead.next_is("]")) {
      if (first) set.push_back({*first, *first});
      continue;
    }
    input = ahead;
    const std::optional<uint32_t> last = atom();
    if (!last) {  // a class ends no range: the hyphen is itself
      set.insert(set.end(), {{*first, *first}, {'-', '-'}});
      continue;
    }
    if (*last < *first) input.refuse("a range whose ends are exchanged", "the lower character first");
    set.push_back({*first, *last});
  }
  set = united(with_case(united(std::move(set), {}), any_case, input), named);
  return is_complement ? complement(set) : set;
}

}  // namespace lfm2::grammar
