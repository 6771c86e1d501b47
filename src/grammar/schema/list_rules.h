// One shape of lists as rules: a chain for the first items, then a counted repeat; with `contains` a rule for each
// place and count.
#pragma once

#include <map>
#include <vector>

#include "grammar/schema/value_rules.h"

namespace lfm2::grammar {

class ListRules {
 public:
  ListRules(ValueRules& values, const ListShape& shape);
  // Refusal where items must differ, and for more than 20,000 places.
  Sequence write();

 private:
  // The index of the next item, as far as it matters, then how many items each `contains` has.
  using Place = std::vector<uint32_t>;
  struct Rules {
    RuleId item;  // before an item
    RuleId next;  // after an item
  };

  Sequence chain();
  Sequence states();
  Rules rules(const Place& place);
  void write(const Place& place, const Rules& rules);
  void add_item(const Place& place, std::vector<Sequence>& to);
  bool may_end(const Place& place) const;
  Sequence whole(Sequence inner);

  ValueRules& values_;
  const ListShape& shape_;
  uint32_t last_index_ = 0;  // indexes from here on are alike
  std::map<Place, Rules> rules_;
  std::vector<Place> open_;
};

}  // namespace lfm2::grammar
