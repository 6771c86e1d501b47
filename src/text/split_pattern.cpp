// Reads the expressions of tokenizer.json and writes those for PCRE2.
#include "text/split_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"

namespace lfm2 {

namespace {

constexpr size_t kMaxExpression = 4000;
constexpr int kMaxGroups = 32;  // one in the other
constexpr size_t kMaxSets = 256;
constexpr uint32_t kMaxRepeat = 1000;

bool is_letter(uint32_t point) { return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z'); }
bool is_digit(uint32_t point) { return point >= '0' && point <= '9'; }
uint32_t lower(uint32_t point) { return is_letter(point) ? point | 0x20 : point; }

// An ASCII character in any case. Two letters have a third form outside ASCII.
CodePointSet any_case(uint32_t point) {
  if (!is_letter(point)) return {{point, point}};
  CodePointSet set = {{point & ~0x20u, point & ~0x20u}, {point | 0x20, point | 0x20}};
  if (lower(point) == 's') set.push_back({0x17f, 0x17f});
  if (lower(point) == 'k') set.push_back({0x212a, 0x212a});
  return set;
}

// Whether some single character equals these two without case, such as ß and ss.
bool fold_together(uint32_t first, uint32_t second) {
  const char pair[] = {static_cast<char>(lower(first)), static_cast<char>(lower(second))};
  const std::string_view text(pair, 2);
  return text == "ff" || text == "fi" || text == "fl" || text == "ss" || text == "st";
}

}  // namespace

class SplitParser {
 public:
  SplitParser(std::string_view expression, const std::string& what) : all_(expression), rest_(expression), what_(what) {
    if (expression.size() > kMaxExpression)
      refuse(fmt::format("an expression of {} bytes, at most {} are accepted", expression.size(), kMaxExpression));
  }

  SplitPattern parse() {
    alternatives(0, false);
    if (!rest_.empty()) refuse("a \")\" that closes nothing");
    flush_text();
    pattern_.expression_ = all_;
    return std::move(pattern_);
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw Error(ExitCode::kData, fmt::format("{}: the pattern holds {} at byte {}: {}", what_, found,
                                             all_.size() - rest_.size(), all_.substr(0, 200)));
  }

  bool accept(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  uint32_t next_character() {
    if (rest_.empty()) refuse("no end");
    const Utf8Character character = first_character(rest_);
    if (!character.valid) refuse("bytes that are not UTF-8");
    rest_.remove_prefix(character.length);
    return character.point;
  }

  void add_text(std::string_view text) { text_ += text; }
  void flush_text() {
    if (!text_.empty()) pattern_.parts_.push_back({std::move(text_), {}});
    text_.clear();
  }
  void add_set(CodePointSet set) {
    if (set.empty()) refuse("a class without characters");
    flush_text();
    pattern_.parts_.push_back({{}, std::move(set)});
    if (++sets_ > kMaxSets) refuse(fmt::format("more than {} sets of characters", kMaxSets));
  }

  void alternatives(int depth, bool any_case_here) {
    if (depth > kMaxGroups) refuse(fmt::format("more than {} groups in each other", kMaxGroups));
    sequence(depth, any_case_here);
    while (accept("|")) {
      add_text("|");
      sequence(depth, any_case_here);
    }
  }

  void sequence(int depth, bool any_case_here) {
    uint32_t before = 0;  // the previous literal, if case does not matter
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      const uint32_t now = atom(depth, any_case_here);
      if (any_case_here && before != 0 && now != 0 && fold_together(before, now))
        refuse("letters that one character can stand for where case does not matter");
      before = now;
      repetition();
    }
  }

  // Returns the character if the atom is one, else 0.
  uint32_t atom(int depth, bool any_case_here) {
    if (rest_[0] == '(') {
      group(depth, any_case_here);
      return 0;
    }
    if (rest_[0] == '[') {
      accept("[");
      add_set(character_class(any_case_here));
      return 0;
    }
    if (rest_[0] == '\\') {
      if (std::optional<CodePointSet> set = escaped_set()) {
        if (any_case_here) refuse("a set where case does not matter");
        add_set(std::move(*set));
        return 0;
      }
      return literal(escaped_character(), any_case_here);
    }
    if (std::string_view(".^$*+?{").find(rest_[0]) != std::string_view::npos)
      refuse(fmt::format("\"{}\", which is not supported here", rest_[0]));
    return literal(next_character(), any_case_here);
  }

  uint32_t literal(uint32_t point, bool any_case_here) {
    if (point >= 0x80 && any_case_here) refuse("a character outside ASCII where case does not matter");
    add_set(any_case_here ? any_case(point) : CodePointSet{{point, point}});
    return point;
  }

  void group(int depth, bool any_case_here) {
    bool any_case_inside = any_case_here, looks_ahead = false;
    if (accept("(?:")) {
      add_text("(?:");
    } else if (accept("(?i:")) {
      add_text("(?:");
      any_case_inside = true;
    } else if (rest_.starts_with("(?=") || rest_.starts_with("(?!")) {
      add_text(rest_.substr(0, 3));
      rest_.remove_prefix(3);
      looks_ahead = true;
    } else if (rest_.starts_with("(?") || rest_.starts_with("(*")) {
      refuse("a group of a kind that is not supported");
    } else {
      accept("(");
      add_text("(?:");  // the captured text is not used
    }
    alternatives(depth + 1, any_case_inside);
    if (!accept(")")) refuse("a group without end");
    add_text(")");
    if (looks_ahead && repeats()) refuse("a repetition of what only looks ahead");
  }

  bool repeats() const { return !rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos; }

  void repetition() {
    if (rest_.empty()) return;
    const char sign = rest_[0];
    if (sign == '*' || sign == '+' || sign == '?') {
      add_text(rest_.substr(0, 1));
      rest_.remove_prefix(1);
      if (accept("?"))
        add_text("?");
      else if (accept("+"))
        add_text("+");
    } else if (accept("{")) {
      const uint32_t low = number();
      const bool range = accept(",");
      const bool open = range && rest_.starts_with("}");
      const uint32_t high = !range || open ? low : number();
      if (!accept("}") || high < low) refuse("a repetition that is not {n}, {n,} or {n,m}");
      add_text(open ? fmt::format("{{{},}}", low) : fmt::format("{{{},{}}}", low, high));
      if (range && accept("?")) add_text("?");
    } else {
      return;
    }
    if (repeats()) refuse("a repetition of a repetition");
  }

  uint32_t number() {
    uint32_t value = 0;
    if (rest_.empty() || !is_digit(static_cast<uint8_t>(rest_[0]))) refuse("a repetition without a number");
    while (!rest_.empty() && is_digit(static_cast<uint8_t>(rest_[0]))) {
      value = value * 10 + static_cast<uint32_t>(rest_[0] - '0');
      if (value > kMaxRepeat) refuse(fmt::format("a repetition of more than {}", kMaxRepeat));
      rest_.remove_prefix(1);
    }
    return value;
  }

  // \s, \S, \d, \D, \p{…} and \P{…}; nothing for another escape.
  std::optional<CodePointSet> escaped_set() {
    if (accept("\\s")) return whitespace_set();
    if (accept("\\S")) return complement(whitespace_set());
    if (accept("\\d")) return category_set("Nd");
    if (accept("\\D")) return complement(*category_set("Nd"));
    const bool positive = accept("\\p{");
    if (!positive && !accept("\\P{")) return std::nullopt;
    const std::string_view name = rest_.substr(0, std::min(rest_.find('}'), rest_.size()));
    std::optional<CodePointSet> set = category_set(name);
    if (!set || name.size() == rest_.size()) refuse("a property that is no general category");
    rest_.remove_prefix(name.size() + 1);
    return positive ? std::move(*set) : complement(*set);
  }

  uint32_t escaped_character() {
    accept("\\");
    const uint32_t point = next_character();
    if (point == 'r') return '\r';
    if (point == 'n') return '\n';
    if (point == 't') return '\t';
    if (point >= 0x80 || point <= ' ' || is_letter(point) || is_digit(point))
      refuse("an escape that is not supported, before this place");
    return point;
  }

  CodePointSet character_class(bool any_case_here) {
    const bool negative = accept("^");
    if (rest_.starts_with("]")) refuse("a class that begins with \"]\"");
    CodePointSet set;
    while (!accept("]")) {
      if (rest_.starts_with("[") || rest_.starts_with("&&")) refuse("a class within a class");
      if (std::optional<CodePointSet> escaped = rest_.starts_with("\\") ? escaped_set() : std::nullopt) {
        if (any_case_here) refuse("a set where case does not matter");
        if (rest_.starts_with("-") && !rest_.starts_with("-]")) refuse("a range that begins with a set");
        set = united(std::move(set), *escaped);
        continue;
      }
      set = united(std::move(set), class_range(any_case_here));
    }
    return negative ? complement(set) : set;
  }

  // One character of a class, or a range of them.
  CodePointSet class_range(bool any_case_here) {
    const auto one = [&] { return rest_.starts_with("\\") ? escaped_character() : next_character(); };
    const uint32_t first = one();
    uint32_t last = first;
    if (rest_.starts_with("-") && !rest_.starts_with("-]")) {
      accept("-");
      last = one();
      if (last < first) refuse("a range whose end comes before its beginning");
      if (rest_.starts_with("-") && !rest_.starts_with("-]")) refuse("a range that begins with a range");
    }
    if (!any_case_here) return {{first, last}};
    if (last >= 0x80) refuse("a character outside ASCII where case does not matter");
    CodePointSet set;
    for (uint32_t point = first; point <= last; ++point) set = united(std::move(set), any_case(point));
    return set;
  }

  std::string_view all_, rest_;
  const std::string& what_;
  SplitPattern pattern_;
  std::string text_;
  size_t sets_ = 0;
};

SplitPattern SplitPattern::parse(std::string_view expression, const std::string& what) {
  return SplitParser(expression, what).parse();
}

SplitPattern SplitPattern::literal(std::string_view text) {
  SplitPattern pattern;
  pattern.expression_ = text;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    pattern.parts_.push_back({{}, {{character.point, character.point}}});
    text.remove_prefix(character.length);
  }
  return pattern;
}

SymbolTable::SymbolTable(const std::vector<SplitPattern>& patterns, const std::string& what)
    : symbols_(kMaxCodePoint + 1) {
  // Between two neighbouring bounds no set begins or ends.
  std::vector<const CodePointSet*> sets;
  std::vector<uint32_t> bounds = {0x80, kMaxCodePoint + 1};
  for (const SplitPattern& pattern : patterns)
    for (const SplitPattern::Part& part : pattern.parts_)
      if (part.text.empty() && std::find_if(sets.begin(), sets.end(),
                                            [&](const CodePointSet* set) { return *set == part.set; }) == sets.end()) {
        sets.push_back(&part.set);
        for (const CodePointRange& range : part.set)
          for (const uint32_t bound : {range.first, range.last + 1})
            if (bound > 0x80 && bound <= kMaxCodePoint) bounds.push_back(bound);
      }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());

  for (uint32_t point = 0; point < 0x80; ++point) symbols_[point] = static_cast<uint8_t>(point);
  std::map<std::vector<bool>, uint8_t> symbol_of;  // by the sets that contain the code points
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::vector<bool> members;
    for (const CodePointSet* set : sets) members.push_back(contains(*set, bounds[i]));
    auto found = symbol_of.find(members);
    if (found == symbol_of.end()) {
      if (0x80 + symbol_of.size() == kInvalid)
        throw Error(ExitCode::kData,
                    fmt::format("{}: the patterns tell more than {} kinds of characters apart", what, kInvalid - 0x80));
      found = symbol_of.emplace(std::move(members), static_cast<uint8_t>(0x80 + symbol_of.size())).first;
      representatives_.push_back(bounds[i]);
    }
    std::fill(symbols_.begin() + bounds[i], symbols_.begin() + bounds[i + 1], found->second);
  }
}

std::string SymbolTable::symbol_class(const CodePointSet& set) const {
  std::string symbols = "[";
  for (uint32_t symbol = 0; symbol < 0x80 + representatives_.size(); ++symbol)
    if (contains(set, symbol < 0x80 ? symbol : representatives_[symbol - 0x80]))
      symbols += fmt::format("\\x{:02x}", symbol);
  return symbols + "]";
}

std::string SymbolTable::translated(const SplitPattern& pattern) const {
  std::string text;
  for (const SplitPattern::Part& part : pattern.parts_) text += part.text.empty() ? symbol_class(part.set) : part.text;
  return text;
}

}  // namespace lfm2
