#include "grammar/schema/keyword_reader.h"

#include <algorithm>
#include <array>

#include "grammar/expression/decimal.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

using Kind = JsonNode::Kind;
using Claim = Assertion::Kind;

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};

// Keywords that ask for what a claim about the value alone cannot say.
constexpr std::array<std::string_view, 3> kRefused = {"$recursiveRef", "$dynamicRef", "$vocabulary"};

// The first draft that has a keyword, where it is not draft 4. In the drafts before it is an unknown keyword.
constexpr std::pair<std::string_view, Draft> kFirstDrafts[] = {{"const", Draft::k6},
                                                               {"contains", Draft::k6},
                                                               {"propertyNames", Draft::k6},
                                                               {"if", Draft::k7},
                                                               {"dependentRequired", Draft::k2019},
                                                               {"dependentSchemas", Draft::k2019},
                                                               {"unevaluatedProperties", Draft::k2019},
                                                               {"unevaluatedItems", Draft::k2019},
                                                               {"prefixItems", Draft::k2020}};

// Keywords that hold schemas at the value itself. With one of these, unevaluatedProperties would have to know which
// branches hold.
constexpr std::array<std::string_view, 12> kInPlace = {"allOf",
                                                       "anyOf",
                                                       "oneOf",
                                                       "not",
                                                       "if",
                                                       "$ref",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "then",
                                                       "dependencies",
                                                       "dependentSchemas",
                                                       "else"};

template <class List>
bool one_of(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

SchemasIn schemas_in(std::string_view keyword) {
  constexpr std::array<std::string_view, 13> kValue = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "additionalProperties",
                                                       "propertyNames",
                                                       "additionalItems",
                                                       "contains",
                                                       "contentSchema",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems"};
  constexpr std::array<std::string_view, 11> kMembers = {"allOf",
                                                         "anyOf",
                                                         "oneOf",
                                                         "prefixItems",
                                                         "properties",
                                                         "$defs",
                                                         "definitions",
                                                         "patternProperties",
                                                         "dependentSchemas",
                                                         "dependencies"};
  if (keyword == "items") return SchemasIn::kValueOrList;
  if (!keyword.empty() && one_of(kValue, keyword)) return SchemasIn::kValue;
  return !keyword.empty() && one_of(kMembers, keyword) ? SchemasIn::kMembers : SchemasIn::kNowhere;
}

Schema KeywordReader::read() {
  if (!node_.is(Kind::kObject))
    throw Refusal(node_.pointer(), "", excerpt(node_), "a schema: an object, true or false");
  const JsonNode* reference = node_.find("$ref");
  if (reference && draft_ <= Draft::k7)
    keyword(*reference);
  else
    for (const JsonNode* value : node_.children) keyword(*value);
  return {&node_, std::move(assertions_)};
}

void KeywordReader::keyword(const JsonNode& value) {
  for (const auto& [keyword, draft] : kFirstDrafts)
    if (value.key == keyword && draft_ < draft) return;
  if (applicator(value) || number_keyword(value) || text_keyword(value) || object_keyword(value)) return;
  if (list_keyword(value)) return;
  const bool dynamic =
      value.key == "$dynamicRef" ? draft_ == Draft::k2020 : value.key != "$recursiveRef" || draft_ == Draft::k2019;
  if (one_of(kRefused, value.key) && dynamic) refuse(value, "a schema without it");
}

bool KeywordReader::applicator(const JsonNode& value) {
  const std::string& key = value.key;
  const bool recursive = key == "$recursiveRef" && draft_ == Draft::k2019;
  const bool dynamic = key == "$dynamicRef" && draft_ == Draft::k2020;
  if (key == "$ref" || ((recursive || dynamic) && !reader_.has_dynamic_anchors())) {
    add(Claim::kAllOf, value).schemas = {reader_.target_of(value)};
  } else if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    add(key == "allOf"   ? Claim::kAllOf
        : key == "anyOf" ? Claim::kAnyOf
                         : Claim::kOneOf,
        value)
        .schemas = schemas(value);
  } else if (key == "not") {
    add(Claim::kNot, value).schemas = {reader_.schema_of(value)};
  } else if (key == "if") {
    add_condition(value);
  } else if (key == "enum") {
    add(Claim::kValues, value).values = expect_kind(value, Kind::kArray, "a list of values").children;
  } else if (key == "const") {
    add(Claim::kValues, value).values = {&value};
  } else if (key == "type") {
    Assertion& types = add(Claim::kTypes, value);
    if (value.is(Kind::kArray))
      types.values = value.children;
    else
      types.values = {&value};
    for (const JsonNode* type : types.values)
      if (!type->is(Kind::kString) || !one_of(kTypes, type->text))
        refuse(value, "null, boolean, integer, number, string, array or object");
  } else {
    return false;
  }
  return true;
}

void KeywordReader::add_condition(const JsonNode& condition) {
  const JsonNode *then = node_.find("then"), *otherwise = node_.find("else");
  if (!then && !otherwise) return;
  add(Claim::kIf, condition).schemas = {reader_.schema_of(condition),
                                        then ? reader_.schema_of(*then) : reader_.anything(),
                                        otherwise ? reader_.schema_of(*otherwise) : reader_.anything()};
}

bool KeywordReader::number_keyword(const JsonNode& value) {
  if (value.key == "minimum") {
    add_bound(value, Claim::kMinimum, "exclusiveMinimum");
  } else if (value.key == "maximum") {
    add_bound(value, Claim::kMaximum, "exclusiveMaximum");
  } else if (value.key == "exclusiveMinimum" || value.key == "exclusiveMaximum") {
    if (value.is(Kind::kTrue) || value.is(Kind::kFalse)) return true;  // draft 4: belongs to the bound
    if (draft_ == Draft::k4) refuse(value, "true or false in draft 4");
    Assertion& bound = add(value.key == "exclusiveMinimum" ? Claim::kMinimum : Claim::kMaximum, value);
    bound.values = {&expect_kind(value, Kind::kNumber, "a number")};
    bound.exclusive = true;
  } else if (value.key == "multipleOf") {
    add(Claim::kMultipleOf, value).values = {&expect_kind(value, Kind::kNumber, "a number above 0")};
  } else {
    return false;
  }
  return true;
}

void KeywordReader::add_bound(const JsonNode& value, Claim kind, std::string_view exclusive) {
  Assertion& bound = add(kind, value);
  bound.values = {&expect_kind(value, Kind::kNumber, "a number")};
  const JsonNode* without = node_.find(exclusive);
  bound.exclusive = without && without->is(Kind::kTrue);
}

bool KeywordReader::text_keyword(const JsonNode& value) {
  if (value.key == "minLength")
    shared(Claim::kLength, value).min = count(value);
  else if (value.key == "maxLength")
    shared(Claim::kLength, value).max = count(value);
  else if (value.key == "pattern")
    add(Claim::kPattern, value).values = {&expect_kind(value, Kind::kString, "a regular expression")};
  else if (value.key == "format")
    add(Claim::kFormat, value).values = {&expect_kind(value, Kind::kString, "the name of a format")};
  else if (draft_ == Draft::k7 && ((value.key == "contentEncoding" && value.text == "base64") ||
                                   (value.key == "contentMediaType" && value.text == "application/json")))
    refuse(value, "a schema without it: in draft 7 it may be a claim about the text");
  else
    return false;
  return true;
}

bool KeywordReader::object_keyword(const JsonNode& value) {
  const std::string& key = value.key;
  if (key == "properties" || key == "patternProperties" || key == "additionalProperties") {
    add_properties(value);
  } else if (key == "required") {
    add(Claim::kRequired, value).names = texts(value);
  } else if (key == "propertyNames") {
    add(Claim::kPropertyNames, value).schemas = {reader_.schema_of(value)};
  } else if (key == "minProperties") {
    add(Claim::kPropertyCount, value).min = count(value);
  } else if (key == "maxProperties") {
    add(Claim::kPropertyCount, value).max = count(value);
  } else if (key == "dependencies") {
    add_dependencies(value, true, true);
  } else if (key == "dependentRequired") {
    add_dependencies(value, false, true);
  } else if (key == "dependentSchemas") {
    add_dependencies(value, true, false);
  } else if (key == "unevaluatedProperties") {
    if (value.is(Kind::kTrue) || node_.find("additionalProperties")) return true;
    for (const JsonNode* other : node_.children)
      if (one_of(kInPlace, other->key)) refuse(value, "no schemas beside it that hold for the same object");
    shared(Claim::kProperties, value).rest = reader_.schema_of(value);
  } else {
    return false;
  }
  return true;
}

void KeywordReader::add_properties(const JsonNode& value) {
  Assertion& properties = shared(Claim::kProperties, value);
  if (value.key == "additionalProperties") {
    properties.rest = reader_.schema_of(value);
    return;
  }
  properties.declares = properties.declares || value.key == "properties";
  for (const JsonNode* member : expect_kind(value, Kind::kObject, "an object of schemas").children) {
    const SchemaId schema = reader_.schema_of(*member);
    if (value.key == "patternProperties") {
      properties.patterns.push_back({member, schema});
    } else {
      properties.names.push_back(member->key);
      properties.schemas.push_back(schema);
    }
  }
}

void KeywordReader::add_dependencies(const JsonNode& value, bool schemas, bool names) {
  for (const JsonNode* member : expect_kind(value, Kind::kObject, "an object of dependencies").children) {
    const bool list = member->is(Kind::kArray), one = member->is(Kind::kString);  // draft 3 has single names
    if ((list || one) ? !names : !schemas) refuse(*member, names ? "a list of names" : "a schema");
    Assertion& dependency = add(list || one ? Claim::kDependentRequired : Claim::kDependentSchema, *member);
    dependency.names = {member->key};
    if (one) dependency.names.push_back(member->text);
    if (list) {
      const std::vector<std::string> asked = texts(*member);
      dependency.names.insert(dependency.names.end(), asked.begin(), asked.end());
    }
    if (!list && !one) dependency.schemas = {reader_.schema_of(*member)};
  }
}

bool KeywordReader::list_keyword(const JsonNode& value) {
  if (value.key == "items" || value.key == "prefixItems" || value.key == "additionalItems") {
    add_items(value);
  } else if (value.key == "minItems") {
    add(Claim::kItemCount, value).min = count(value);
  } else if (value.key == "maxItems") {
    add(Claim::kItemCount, value).max = count(value);
  } else if (value.key == "contains") {
    add_contains(value);
  } else if (value.key == "uniqueItems") {
    if (!value.is(Kind::kTrue) && !value.is(Kind::kFalse)) refuse(value, "true or false");
    if (value.is(Kind::kTrue)) add(Claim::kUniqueItems, value);
  } else if (value.key == "unevaluatedItems") {
    const JsonNode* items = node_.find("items");
    const bool all = items && (!items->is(Kind::kArray) || node_.find("additionalItems"));
    if (value.is(Kind::kTrue) || all) return true;
    for (const JsonNode* other : node_.children)
      if (one_of(kInPlace, other->key) || (other->key == "contains" && draft_ == Draft::k2020))
        refuse(value, "no schemas beside it that hold for the same list");
    shared(Claim::kItems, value).rest = reader_.schema_of(value);
  } else {
    return false;
  }
  return true;
}

// `items` is one schema for all, or one for each of the first, which is what prefixItems became.
void KeywordReader::add_items(const JsonNode& value) {
  const JsonNode* items = node_.find("items");
  const bool first = items && items->is(Kind::kArray);
  if (value.key == "items" && first && draft_ == Draft::k2020 && node_.find("prefixItems"))
    refuse(value, "a schema beside prefixItems");
  if (value.key == "additionalItems" && !first) return;
  Assertion& list = shared(Claim::kItems, value);
  if (value.is(Kind::kArray) && value.key != "additionalItems")
    list.schemas = schemas(value);
  else
    list.rest = reader_.schema_of(value);
}

void KeywordReader::add_contains(const JsonNode& value) {
  Assertion& contains = add(Claim::kContains, value);
  contains.schemas = {reader_.schema_of(value)};
  contains.min = 1;
  if (draft_ < Draft::k2019) return;
  if (const JsonNode* min = node_.find("minContains")) contains.min = count(*min);
  if (const JsonNode* max = node_.find("maxContains")) contains.max = count(*max);
}

Assertion& KeywordReader::add(Claim kind, const JsonNode& value) {
  return assertions_.emplace_back(Assertion{.kind = kind, .place = &value});
}

Assertion& KeywordReader::shared(Claim kind, const JsonNode& value) {
  for (Assertion& assertion : assertions_)
    if (assertion.kind == kind) return assertion;
  return add(kind, value);
}

const JsonNode& KeywordReader::expect_kind(const JsonNode& value, Kind kind, const char* expected) const {
  if (!value.is(kind)) refuse(value, expected);
  return value;
}

uint32_t KeywordReader::count(const JsonNode& value) const {
  const Decimal number = Decimal::parse(expect_kind(value, Kind::kNumber, "an integer from 0").text);
  if (number.is_negative() || !number.is_integer()) refuse(value, "an integer from 0");
  if (number < Decimal(UINT32_MAX)) return static_cast<uint32_t>(std::stoul(number.text()));
  if (!value.key.starts_with("max")) refuse(value, "an integer below 4294967295");
  return UINT32_MAX;
}

std::vector<SchemaId> KeywordReader::schemas(const JsonNode& list) {
  std::vector<SchemaId> ids;
  for (const JsonNode* schema : expect_kind(list, Kind::kArray, "a list of schemas").children)
    ids.push_back(reader_.schema_of(*schema));
  if (ids.empty() && list.key != "prefixItems" && list.key != "items") refuse(list, "at least one schema");
  return ids;
}

std::vector<std::string> KeywordReader::texts(const JsonNode& list) const {
  std::vector<std::string> names;
  for (const JsonNode* name : expect_kind(list, Kind::kArray, "a list of names").children)
    names.push_back(expect_kind(*name, Kind::kString, "a name").text);
  return names;
}

void KeywordReader::refuse(const JsonNode& value, std::string_view expected) const {
  throw Refusal(value.parent ? value.parent->pointer() : "", value.key, excerpt(value), std::string(expected));
}

}  // namespace lfm2::grammar
