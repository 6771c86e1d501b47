// Sets of values as intersections of schemas and of complements of schemas, each with a number. Equal intersections
// have one number, so a recursive schema has finitely many.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "grammar/schema/schema_reader.h"
#include "grammar/schema/value_form.h"

namespace lfm2::grammar {

struct Literal {
  SchemaId schema;
  bool positive;  // false: the values that do not meet the schema
};

class SetTable {
 public:
  explicit SetTable(SchemaReader& reader);

  SetId whole() const { return SetId{0}; }
  SetId nothing() const { return SetId{1}; }
  // The values that meet a schema, or do not. Follows schemas that are only a reference. Refusal for a circle of them.
  SetId of(SchemaId schema, bool positive = true);
  SetId both(SetId first, SetId second);
  // Nothing where the set is an intersection of several.
  std::optional<SetId> complement(SetId set);
  // Of which literals it is the intersection, in the order in which they came.
  const std::vector<Literal>& literals(SetId set) const { return sets_[static_cast<size_t>(set)]; }

 private:
  SchemaReader& reader_;
  std::deque<std::vector<Literal>> sets_;
  std::map<std::vector<uint32_t>, SetId> numbers_;  // by the sorted literals
  std::unordered_map<uint64_t, SetId> intersections_;
};

}  // namespace lfm2::grammar
