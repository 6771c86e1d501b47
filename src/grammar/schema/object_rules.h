// One shape of objects as right-linear rules: the properties in their order, then all others. A rule stands for a
// place in that order, with what was met so far, so the number of rules is that of places, whatever is optional.
#pragma once

#include <compare>
#include <map>

#include "grammar/schema/value_rules.h"

namespace lfm2::grammar {

class ObjectRules {
 public:
  // `closed`: without properties that the shape does not list.
  ObjectRules(ValueRules& values, const ObjectShape& shape, const ValueRules::ObjectSpelling& spelling, bool closed);
  // Refusal for more than 20,000 places.
  Sequence write();

 private:
  struct Place {
    uint32_t index;  // of the next property
    uint32_t hits;   // bits of shape.some that are met
    uint32_t count;  // of properties so far, as far as min and max ask for it
    auto operator<=>(const Place&) const = default;
  };
  struct Rules {
    RuleId key;   // before a key
    RuleId next;  // after a value
  };

  void expect_repeatable() const;
  Rules rules(const Place& place);
  void write(const Place& place, const Rules& rules);
  // Alternatives for a property, with each choice of what it meets of shape.some.
  void add_property(const Place& place, const TextForm& keys, SetId value, uint32_t next, std::vector<Sequence>& to);
  bool may_end(const Place& place) const;
  Place after(const Place& place, uint32_t next, uint32_t hits) const;

  ValueRules& values_;
  const ObjectShape& shape_;
  const ValueRules::ObjectSpelling& spelling_;
  std::vector<ObjectShape::Keys> rest_;  // without the names of properties
  uint32_t last_required_ = 0;           // properties from here on are optional
  std::map<Place, Rules> rules_;
  std::vector<Place> open_;
};

}  // namespace lfm2::grammar
