#include "grammar/expression/text_set.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "grammar/expression/text_node.h"

namespace lfm2::grammar {

namespace {

using SetKind = TextSet::Node::Kind;

// Deeper sets would need too much stack to be spelled and freed.
constexpr uint32_t kMaxSetDepth = 1'000;
constexpr size_t kMaxConditions = 2'000;  // of one both()

TextSet made_set(TextSet::Node node) {
  for (const TextSet& part : node.parts) node.depth = std::max(node.depth, part.node().depth + 1);
  if (node.depth > kMaxSetDepth)
    throw Refusal("", "", "texts with too many conditions inside each other", fmt::format("at most {}", kMaxSetDepth));
  return TextSet(std::make_shared<const TextSet::Node>(std::move(node)));
}

TextSet of_kind(SetKind kind, bool has_empty, std::vector<TextSet> parts) {
  TextSet::Node node;
  node.kind = kind;
  node.has_empty = has_empty;
  node.parts = std::move(parts);
  return made_set(std::move(node));
}

CodePointSet intersected(const CodePointSet& first, const CodePointSet& second) {
  CodePointSet result;
  for (auto a = first.begin(), b = second.begin(); a != first.end() && b != second.end();) {
    const CodePointRange common{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (common.first <= common.last) result.push_back(common);
    a->last < b->last ? ++a : ++b;
  }
  return result;
}

// The parts of a concat or an either, those of such parts in their place.
std::vector<TextSet> flattened(SetKind kind, const std::vector<TextSet>& parts) {
  std::vector<TextSet> flat;
  for (const TextSet& part : parts) {
    if (part.node().kind == kind)
      flat.insert(flat.end(), part.node().parts.begin(), part.node().parts.end());
    else
      flat.push_back(part);
  }
  return flat;
}

bool is_kind(const TextSet& set, SetKind kind) { return set.node().kind == kind; }

// One character of a set, counted: what length() makes, and the most common pattern.
bool is_run(const TextSet& set) {
  return is_kind(set, SetKind::kRepeat) && is_kind(set.node().parts[0], SetKind::kPoints);
}

}  // namespace

const CodePointSet& all_characters() {
  static const CodePointSet set = {{0, 0xd7ff}, {0xe000, kMaxCodePoint}};
  return set;
}

bool has_empty_text(const TextSet& set) { return set.node().has_empty; }

TextSet any_text() { return of_kind(SetKind::kAny, true, {}); }
TextSet no_text() { return of_kind(SetKind::kNone, false, {}); }

TextSet text(std::u32string_view points) {
  TextSet::Node node;
  node.kind = SetKind::kText;
  node.text = points;
  node.has_empty = points.empty();
  const auto is_surrogate = [](char32_t point) { return point >= 0xd800 && point <= 0xdfff; };
  return std::ranges::any_of(points, is_surrogate) ? no_text() : made_set(std::move(node));
}

TextSet text(std::string_view utf8) { return text(code_points(utf8)); }

TextSet one_of(const CodePointSet& points) {
  TextSet::Node node;
  node.kind = SetKind::kPoints;
  node.points = intersected(points, all_characters());
  return node.points.empty() ? no_text() : made_set(std::move(node));
}

TextSet concat(const std::vector<TextSet>& parts) {
  std::vector<TextSet> kept;
  bool has_empty = true;
  std::u32string literal;
  const auto flush = [&] {
    if (!literal.empty()) kept.push_back(text(std::u32string_view(literal)));
    literal.clear();
  };
  for (const TextSet& part : flattened(SetKind::kConcat, parts)) {
    const TextSet::Node& node = part.node();
    if (node.kind == SetKind::kNone) return part;
    has_empty = has_empty && node.has_empty;
    if (node.kind == SetKind::kText) {
      literal += node.text;
      continue;
    }
    if (node.kind == SetKind::kAny && literal.empty() && !kept.empty() && is_kind(kept.back(), SetKind::kAny)) continue;
    flush();
    kept.push_back(part);
  }
  flush();
  if (kept.empty()) return text(std::u32string_view());
  return kept.size() == 1 ? kept.front() : of_kind(SetKind::kConcat, has_empty, std::move(kept));
}

TextSet either(const std::vector<TextSet>& parts) {
  std::vector<TextSet> kept;
  CodePointSet points;
  bool has_empty = false;
  for (const TextSet& part : flattened(SetKind::kEither, parts)) {
    const TextSet::Node& node = part.node();
    if (node.kind == SetKind::kAny) return part;
    if (node.kind == SetKind::kNone) continue;
    has_empty = has_empty || node.has_empty;
    if (node.kind == SetKind::kPoints)
      points.insert(points.end(), node.points.begin(), node.points.end());
    else if (node.kind == SetKind::kText && node.text.size() == 1)
      points.push_back({node.text[0], node.text[0]});
    else
      kept.push_back(part);
  }
  if (!points.empty()) kept.push_back(one_of(united(std::move(points), {})));
  if (kept.empty()) return no_text();
  return kept.size() == 1 ? kept.front() : of_kind(SetKind::kEither, has_empty, std::move(kept));
}

TextSet both(const std::vector<TextSet>& parts) {
  std::vector<TextSet> kept;
  CodePointSet points, run;
  bool has_points = false, has_run = false, has_empty = true;
  uint32_t min = 0, max = kNoMax;
  for (const TextSet& part : flattened(SetKind::kBoth, parts)) {
    const TextSet::Node& node = part.node();
    if (node.kind == SetKind::kNone) return part;
    if (node.kind == SetKind::kAny) continue;
    has_empty = has_empty && node.has_empty;
    if (node.kind == SetKind::kPoints) {
      points = has_points ? intersected(points, node.points) : node.points;
      has_points = true;
    } else if (is_run(part)) {
      // Texts of a to b characters of A, and of c to d of B: the stricter bounds, of characters that are in both.
      run = has_run ? intersected(run, node.parts[0].node().points) : node.parts[0].node().points;
      has_run = true;
      min = std::max(min, node.min);
      max = std::min(max, node.max);
    } else {
      kept.push_back(part);
    }
  }
  if (has_run) kept.push_back(min > max ? no_text() : repeat(one_of(run), min, max));
  if (has_points) kept.push_back(one_of(points));
  if (std::ranges::any_of(kept, [](const TextSet& part) { return is_kind(part, SetKind::kNone); })) return no_text();
  if (kept.empty()) return any_text();
  if (kept.size() > kMaxConditions)
    throw Refusal("", "", "a text with too many conditions", fmt::format("at most {}", kMaxConditions));
  return kept.size() == 1 ? kept.front() : of_kind(SetKind::kBoth, has_empty, std::move(kept));
}

TextSet complement(const TextSet& part) {
  if (is_kind(part, SetKind::kAny)) return no_text();
  if (is_kind(part, SetKind::kNone)) return any_text();
  if (is_kind(part, SetKind::kComplement)) return part.node().parts[0];
  return of_kind(SetKind::kComplement, !part.node().has_empty, {part});
}

TextSet repeat(const TextSet& part, uint32_t min, uint32_t max) {
  if (min > max) return no_text();
  if (min == 1 && max == 1) return part;
  const bool is_empty = is_kind(part, SetKind::kText) && part.node().text.empty();
  if (max == 0 || is_empty || (is_kind(part, SetKind::kNone) && min == 0)) return text(std::u32string_view());
  if (is_kind(part, SetKind::kAny) || is_kind(part, SetKind::kNone)) return part;
  if (is_kind(part, SetKind::kPoints) && min == 0 && max == kNoMax && part.node().points == all_characters())
    return any_text();
  TextSet::Node node;
  node.kind = SetKind::kRepeat;
  node.has_empty = min == 0 || part.node().has_empty;
  node.min = min;
  node.max = max;
  // One character as a set, so that both() sees runs of characters.
  const bool is_character = is_kind(part, SetKind::kText) && part.node().text.size() == 1;
  node.parts = {is_character ? one_of({{part.node().text[0], part.node().text[0]}}) : part};
  return made_set(std::move(node));
}

TextSet length(uint32_t min, uint32_t max) { return repeat(one_of(all_characters()), min, max); }

std::u32string code_points(std::string_view utf8) {
  std::u32string points;
  points.reserve(utf8.size());
  while (!utf8.empty()) {
    const Utf8Character character = first_character(utf8);
    if (!character.valid) throw Refusal("", "", "bytes that are no UTF-8", "text in UTF-8");
    points += static_cast<char32_t>(character.point);
    utf8.remove_prefix(character.length);
  }
  return points;
}

}  // namespace lfm2::grammar
