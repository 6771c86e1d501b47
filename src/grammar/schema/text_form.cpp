#include "grammar/schema/text_form.h"

#include <algorithm>
#include <iterator>

namespace lfm2::grammar {

bool holds(const TextSet& set, std::string_view text, Expressions& expressions) {
  return expressions.matches(lower(set, Spelling::kRaw, expressions), text);
}

TextForm TextForm::all() {
  TextForm form;
  form.all_ = true;
  return form;
}

TextForm TextForm::of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  TextForm form;
  form.texts_ = std::move(texts);
  return form;
}

TextForm TextForm::of(TextSet set) {
  TextForm form;
  form.set_ = std::move(set);
  return form;
}

TextSet TextForm::set() const {
  if (all_) return any_text();
  if (set_) return *set_;
  std::vector<TextSet> parts;
  for (const std::string& one : texts_) parts.push_back(text(one));
  return either(parts);
}

bool TextForm::contains(const std::string& text, Expressions& expressions) const {
  if (all_) return true;
  return set_ ? holds(*set_, text, expressions) : std::binary_search(texts_.begin(), texts_.end(), text);
}

TextForm TextForm::complement() const {
  if (all_) return {};
  return empty() ? all() : of(grammar::complement(set()));
}

TextForm intersection(const TextForm& first, const TextForm& second, Expressions& expressions) {
  if (first.all_ || second.empty()) return second;
  if (second.all_ || first.empty()) return first;
  if (first.set_ && second.set_) return TextForm::of(both({*first.set_, *second.set_}));
  const TextForm& listed = first.set_ ? second : first;
  const TextForm& other = first.set_ ? first : second;
  TextForm form;
  for (const std::string& text : listed.texts_)
    if (other.contains(text, expressions)) form.texts_.push_back(text);
  return form;
}

TextForm unite(const TextForm& first, const TextForm& second) {
  if (first.all_ || second.empty()) return first;
  if (second.all_ || first.empty()) return second;
  if (first.set_ || second.set_) return TextForm::of(either({first.set(), second.set()}));
  TextForm form;
  std::set_union(first.texts_.begin(), first.texts_.end(), second.texts_.begin(), second.texts_.end(),
                 std::back_inserter(form.texts_));
  return form;
}

}  // namespace lfm2::grammar
