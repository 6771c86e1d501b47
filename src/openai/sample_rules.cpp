#include "openai/sample_rules.h"

namespace lfm2 {

std::vector<int32_t> RuleTable::to_words(int64_t first, int64_t count) const {
  const auto part = [&](const auto& list) {
    if (list.empty()) return list;
    const auto begin = list.begin() + (first - first_);
    return std::remove_cvref_t<decltype(list)>(begin, begin + count);
  };
  std::vector<int32_t> words;
  WordWriter writer(words);
  writer.add(first);
  writer.add(count);
  writer.add(distinct_);
  writer.add(part(of_sample_));
  writer.add(part(seeds_));
  return words;
}

RuleTable RuleTable::from_words(std::span<const int32_t> words) {
  RuleTable table;
  WordReader reader(words);
  reader.take(table.first_);
  reader.take(table.samples_);
  reader.take(table.distinct_);
  reader.take(table.of_sample_);
  reader.take(table.seeds_);
  return table;
}

}  // namespace lfm2
