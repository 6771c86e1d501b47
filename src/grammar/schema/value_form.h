// Sets of JSON values in a normal form: apart by type, and of lists and objects a union of shapes, each of which
// describes all its properties or items. The values inside of lists and objects are sets by their number (SetTable), so
// that a form is finite where the schema is recursive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression/decimal.h"
#include "grammar/schema/json_tree.h"
#include "grammar/schema/text_form.h"

namespace lfm2::grammar {

enum class SetId : uint32_t {};  // of a SetTable

struct NumberPart {
  NumberSet set;
  bool fraction = false;               // no integers
  std::vector<Decimal> not_multiples;  // no multiples of any of these
};

struct ListShape {
  struct Contains {
    SetId set;
    uint32_t min, max;  // how many items are in the set
    uint32_t from = 0;  // counted from this index
  };
  SetId item(size_t index) const { return index < prefix.size() ? prefix[index] : rest; }

  std::vector<SetId> prefix;
  SetId rest;
  uint32_t min = 0, max = kNoMax;
  std::vector<Contains> contains;
  const JsonNode* unique = nullptr;  // the place of uniqueItems: no two items are equal
};

struct ObjectShape {
  struct Property {
    std::string name;
    SetId value;
    bool required = false;
    bool declared = false;  // by `properties`, which says where it stands
  };
  struct Keys {
    std::optional<TextSet> keys;  // nothing: all
    SetId value;
  };

  std::vector<Property> properties;  // in the order in which they are written
  std::vector<Keys> rest;            // disjoint: what other properties are. A key that is in none is not allowed
  std::vector<Keys> some;            // of each, at least one property
  uint32_t min = 0, max = kNoMax;
  bool declares = false;  // has `properties`
  bool extended = false;  // says itself what other properties are
};

struct Form {
  bool null = false, no = false, yes = false;
  TextForm text;
  std::vector<NumberPart> numbers;
  std::vector<ListShape> lists;
  std::vector<ObjectShape> objects;

  bool empty() const {
    return !null && !no && !yes && text.empty() && numbers.empty() && lists.empty() && objects.empty();
  }
};

}  // namespace lfm2::grammar
