// Sets of texts, that is of sequences of Unicode code points, before their spelling: what JSON Schema says about
// strings is about values, not about the bytes between the quotes. lower() spells a set as an expression over bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression/expression.h"
#include "text/unicode/unicode_categories.h"

namespace lfm2::grammar {

// Immutable and cheap to copy. Made by the functions below, which throw Refusal where sets lie too deep in each other.
class TextSet {
 public:
  struct Node;
  explicit TextSet(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  const Node& node() const { return *node_; }
  // The same object: two equal sets that were made apart may differ.
  bool operator==(const TextSet&) const = default;

 private:
  std::shared_ptr<const Node> node_;
};

// Surrogates are no characters: no set has them.
TextSet any_text();
TextSet no_text();
TextSet text(std::u32string_view points);
TextSet text(std::string_view utf8);         // Refusal where it is no UTF-8
TextSet one_of(const CodePointSet& points);  // one character
TextSet concat(const std::vector<TextSet>& parts);
TextSet either(const std::vector<TextSet>& parts);
TextSet both(const std::vector<TextSet>& parts);
TextSet complement(const TextSet& part);  // among all texts
TextSet repeat(const TextSet& part, uint32_t min, uint32_t max = kNoMax);
TextSet length(uint32_t min, uint32_t max = kNoMax);  // any texts of min to max code points

bool has_empty_text(const TextSet& set);

// How a text stands between its quotes. Every character has exactly one spelling, and no spelling is the beginning of
// another one, so that "and", "or" and "not" of texts are those of their spellings.
//
//   kRaw           UTF-8, nothing escaped
//   kJson          UTF-8; \" \\ \b \f \n \r \t; \u00xx with lower-case digits for the other characters below U+0020
//   kPythonSingle  as kJson, but \' is escaped and " is not
//   kPythonDouble  as kJson
enum class Spelling { kRaw, kJson, kPythonSingle, kPythonDouble };

// The expression of the set's spellings, without quotes. A complement stays within what the spelling can spell.
Expr lower(const TextSet& set, Spelling spelling, Expressions& expressions);

// One text in a spelling, as lower() writes it.
std::string spell(std::u32string_view points, Spelling spelling);
std::string spell(std::string_view utf8, Spelling spelling);

// The value of a UTF-8 text as code points. Refusal where it is no UTF-8.
std::u32string code_points(std::string_view utf8);

}  // namespace lfm2::grammar
