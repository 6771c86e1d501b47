// Sets of texts as schemas say them: listed where they are few, so that comparing and filtering them is cheap.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "grammar/expression/text_set.h"

namespace lfm2::grammar {

// Immutable. The empty set where it is made without arguments.
class TextForm {
 public:
  TextForm() = default;
  static TextForm all();
  static TextForm of(std::vector<std::string> texts);
  static TextForm of(TextSet set);

  bool empty() const { return !all_ && !set_ && texts_.empty(); }  // for a TextSet: false
  bool is_all() const { return all_; }
  // The texts, sorted, where they are listed; null otherwise.
  const std::vector<std::string>* listed() const { return all_ || set_ ? nullptr : &texts_; }
  TextSet set() const;

  bool contains(const std::string& text, Expressions& expressions) const;
  TextForm complement() const;
  friend TextForm intersection(const TextForm& first, const TextForm& second, Expressions& expressions);
  friend TextForm unite(const TextForm& first, const TextForm& second);

 private:
  bool all_ = false;
  std::optional<TextSet> set_;
  std::vector<std::string> texts_;
};

TextForm intersection(const TextForm& first, const TextForm& second, Expressions& expressions);
TextForm unite(const TextForm& first, const TextForm& second);

// Whether a text (UTF-8) is in the set.
bool holds(const TextSet& set, std::string_view text, Expressions& expressions);

}  // namespace lfm2::grammar
