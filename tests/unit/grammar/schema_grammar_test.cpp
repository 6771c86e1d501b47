#include "grammar/schema/schema_grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/unit/grammar/texts_of.h"

namespace lfm2::grammar {
namespace {

TEST(SchemaGrammar, PropertiesComeInOrderAndOthersAfterThem) {
  const Acceptor accepts = schema(R"({"properties": {"a": {"type": "integer"}, "b": {}, "c": {"type": "null"}},
                                      "type": "object", "required": ["a"], "additionalProperties": {"type": "string"}})");
  EXPECT_TRUE(accepts(R"({"a": 1})"));
  EXPECT_TRUE(accepts(R"({"a":1,"c":null})"));
  EXPECT_TRUE(accepts("{\n  \"a\": -7,\n  \"b\": [{}],\n  \"other\": \"x\",\n  \"d\": \"\"\n}"));
  EXPECT_FALSE(accepts(R"({})"));
  EXPECT_FALSE(accepts(R"({"c": null, "a": 1})"));
  EXPECT_FALSE(accepts(R"({"a": 1, "a": 2})"));
  EXPECT_FALSE(accepts(R"({"a": 1, "c": "text"})"));
  EXPECT_FALSE(accepts(R"({"a": 1, "other": 2})"));
  EXPECT_FALSE(accepts(R"({"a": 1,})"));
  EXPECT_FALSE(accepts(R"({"a": 1, "\u0062": "escaped"})"));
  EXPECT_FALSE(accepts(R"( {"a": 1})"));
  EXPECT_FALSE(accepts("{\"a\": 1}\n"));
  EXPECT_FALSE(accepts(R"([])"));
}

TEST(SchemaGrammar, FixedBlanks) {
  const Acceptor accepts = schema(R"({"type": "array", "items": {"type": "object"}})", {.any_whitespace = false});
  EXPECT_TRUE(accepts(R"([{"a": 1, "b": [1, 2]}, {}])"));
  EXPECT_FALSE(accepts(R"([{"a":1}])"));
  EXPECT_FALSE(accepts(R"([{"a": 1},{}])"));
  EXPECT_FALSE(accepts(R"([ {"a": 1}])"));
}

TEST(SchemaGrammar, ClosedObjects) {
  const SchemaOptions closed{.closed_objects = true};
  const Acceptor declared = schema(R"({"type": "object", "properties": {"a": {"type": "object"}}})", closed);
  EXPECT_TRUE(declared(R"({"a": {"any": 1}})"));
  EXPECT_FALSE(declared(R"({"b": 1})"));
  EXPECT_TRUE(schema(R"({"properties": {"a": {}}, "additionalProperties": true})", closed)(R"({"b": 1})"));
}

TEST(SchemaGrammar, Lists) {
  const Acceptor tuple = schema(R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}],
                                    "items": {"type": "null"}, "minItems": 1, "maxItems": 4})");
  EXPECT_TRUE(tuple(R"(["a"])"));
  EXPECT_TRUE(tuple(R"(["a", 1, null, null])"));
  EXPECT_FALSE(tuple(R"([])"));
  EXPECT_FALSE(tuple(R"(["a", 1, null, null, null])"));
  EXPECT_FALSE(tuple(R"(["a", null])"));
  EXPECT_FALSE(tuple(R"(["a",])"));
  const Acceptor old = schema(R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                                  "items": [{"type": "string"}], "additionalItems": false})");
  EXPECT_TRUE(old(R"(["a"])"));
  EXPECT_TRUE(old(R"([])"));
  EXPECT_FALSE(old(R"(["a", 1])"));
}

TEST(SchemaGrammar, ContainedItemsAreCounted) {
  const Acceptor accepts = schema(R"({"type": "array", "items": {"type": "integer"},
                                      "contains": {"minimum": 5}, "minContains": 2, "maxContains": 3})");
  EXPECT_TRUE(accepts("[5, 1, 6]"));
  EXPECT_TRUE(accepts("[5, 6, 7, 1, 2]"));
  EXPECT_FALSE(accepts("[5, 1]"));
  EXPECT_FALSE(accepts("[5, 6, 7, 8]"));
  EXPECT_FALSE(accepts("[]"));
}

TEST(SchemaGrammar, ScalarsByValue) {
  const Acceptor accepts = schema(R"({"enum": ["x", 1.0, null, true, {"a": [1]}]})");
  EXPECT_TRUE(accepts(R"("x")"));
  EXPECT_TRUE(accepts("1"));
  EXPECT_TRUE(accepts("null"));
  EXPECT_TRUE(accepts("true"));
  EXPECT_TRUE(accepts(R"({"a": [1]})"));
  EXPECT_FALSE(accepts("false"));
  EXPECT_FALSE(accepts(R"({"a": [1, 2]})"));
  EXPECT_FALSE(accepts(R"({"a": [1], "b": 2})"));
}

TEST(SchemaGrammar, Complements) {
  EXPECT_FALSE(schema(R"({"type": "string", "not": {"enum": ["a", "b"]}})")(R"("a")"));
  EXPECT_TRUE(schema(R"({"type": "string", "not": {"enum": ["a", "b"]}})")(R"("c")"));
  const Acceptor keys = schema(R"({"type": "object", "not": {"required": ["a", "b"]}})");
  EXPECT_TRUE(keys(R"({"a": 1})"));
  EXPECT_TRUE(keys(R"({"b": 1, "c": 2})"));
  EXPECT_FALSE(keys(R"({"a": 1, "b": 2})"));
  const Acceptor value = schema(R"({"type": "object", "not": {"properties": {"a": {"type": "integer"}}}})");
  EXPECT_TRUE(value(R"({"a": "x"})"));
  EXPECT_TRUE(value(R"({"a": 1.5})"));
  EXPECT_FALSE(value(R"({"a": 1})"));
  EXPECT_FALSE(value(R"({"a": 1.0})"));
  EXPECT_FALSE(value(R"({})"));
  const Acceptor number = schema(R"({"type": "number", "not": {"multipleOf": 2}})");
  EXPECT_TRUE(number("3"));
  EXPECT_TRUE(number("2.5"));
  EXPECT_FALSE(number("4"));
  EXPECT_FALSE(number("4.0"));
  EXPECT_FALSE(number("-0"));
}

TEST(SchemaGrammar, ExactlyOneBranch) {
  const Acceptor accepts = schema(R"({"type": "integer", "oneOf": [{"minimum": 3}, {"maximum": 5}]})");
  EXPECT_TRUE(accepts("2"));
  EXPECT_TRUE(accepts("6"));
  EXPECT_FALSE(accepts("3"));
  EXPECT_FALSE(accepts("5"));
  const Acceptor objects = schema(R"({"type": "object", "properties": {"a": {}, "b": {}},
                                      "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})");
  EXPECT_TRUE(objects(R"({"a": 1})"));
  EXPECT_TRUE(objects(R"({"b": 1, "c": 2})"));
  EXPECT_FALSE(objects(R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(objects(R"({"c": 1})"));
}

TEST(SchemaGrammar, ConditionsAndDependencies) {
  const Acceptor condition = schema(R"({"type": "object", "properties": {"k": {"enum": ["n", "t"]}, "v": {}},
      "required": ["k", "v"], "if": {"properties": {"k": {"const": "n"}}},
      "then": {"properties": {"v": {"type": "number"}}}, "else": {"properties": {"v": {"type": "string"}}}})");
  EXPECT_TRUE(condition(R"({"k": "n", "v": 1})"));
  EXPECT_TRUE(condition(R"({"k": "t", "v": "x"})"));
  EXPECT_FALSE(condition(R"({"k": "n", "v": "x"})"));
  EXPECT_FALSE(condition(R"({"k": "t", "v": 1})"));
  const Acceptor dependent = schema(R"({"type": "object", "properties": {"a": {}, "b": {}},
                                        "dependentRequired": {"a": ["b"]}})");
  EXPECT_TRUE(dependent(R"({"b": 1})"));
  EXPECT_TRUE(dependent(R"({"a": 1, "b": 1})"));
  EXPECT_TRUE(dependent(R"({})"));
  EXPECT_FALSE(dependent(R"({"a": 1})"));
}

TEST(SchemaGrammar, KeysByPatterns) {
  const Acceptor accepts =
      schema(R"({"type": "object", "additionalProperties": false, "properties": {"ab": {"minimum": 2}},
      "patternProperties": {"^a": {"type": "integer"}, "b$": {"maximum": 9}}})");
  EXPECT_TRUE(accepts(R"({"ab": 5, "ax": 100, "xb": 1.5, "a1b": 9})"));
  EXPECT_FALSE(accepts(R"({"ab": 1})"));
  EXPECT_FALSE(accepts(R"({"ab": 10})"));
  EXPECT_FALSE(accepts(R"({"a1b": 10})"));
  EXPECT_FALSE(accepts(R"({"ax": 1.5})"));
  EXPECT_FALSE(accepts(R"({"x": 1})"));
  const Acceptor names = schema(R"({"type": "object", "propertyNames": {"maxLength": 2}, "properties": {"abc": {}}})");
  EXPECT_TRUE(names(R"({"ab": 5, "c": 1})"));
  EXPECT_FALSE(names(R"({"abc": 5})"));
  EXPECT_FALSE(names(R"({"xyz": 5})"));
}

TEST(SchemaGrammar, RecursiveSchemas) {
  const Acceptor tree = schema(R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["v"],
      "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "additionalProperties": false}}})");
  EXPECT_TRUE(tree(R"({"v": 1, "next": {"v": 2, "next": {"v": 3}}})"));
  EXPECT_FALSE(tree(R"({"v": 1, "next": {"next": {"v": 3}}})"));
}

TEST(SchemaGrammar, ReferencesWithinTheDocument) {
  EXPECT_TRUE(schema(R"({"$id": "http://x.org/a/b", "items": {"$ref": "c#d"}, "type": "array",
                         "$defs": {"q": {"$id": "c", "$defs": {"e": {"$anchor": "d", "type": "null"}}}}})")("[null]"));
  const std::string seven =
      R"({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a/b": {"type": "null"}},
                                "$ref": "#/definitions/a~1b", "type": "string"})";
  EXPECT_TRUE(schema(seven)("null"));  // siblings of $ref are ignored
}

// A keyword of a later draft is an unknown one, which says nothing, also where its complement would be taken.
TEST(SchemaGrammar, KeywordsAreThoseOfTheDraft) {
  constexpr const char *k4 = "http://json-schema.org/draft-04/schema#", *k6 = "http://json-schema.org/draft-06/schema#",
                       *k7 = "http://json-schema.org/draft-07/schema#",
                       *k2019 = "https://json-schema.org/draft/2019-09/schema",
                       *k2020 = "https://json-schema.org/draft/2020-12/schema";
  const auto whole = [](const char* uri, const char* keywords, bool turned) {
    const char* form = turned ? R"({{"$schema": "{}", "not": {{{}}}}})" : R"({{"$schema": "{}", {}}})";
    return fmt::format(fmt::runtime(form), uri, keywords);
  };
  for (const auto& [before, since, keywords, meets, fails] :
       {std::tuple(k4, k6, R"("const": 1)", "1", "2"), std::tuple(k4, k6, R"("contains": {"enum": [1]})", "[1]", "[2]"),
        std::tuple(k4, k6, R"("propertyNames": {"maxLength": 1})", R"({"a": 1})", R"({"ab": 1})"),
        std::tuple(k6, k7, R"("if": {"required": ["a"]}, "then": {"required": ["b"]})", R"({"b": 1})", R"({"a": 1})"),
        std::tuple(k7, k2019, R"("dependentRequired": {"a": ["b"]})", R"({"b": 1})", R"({"a": 1})"),
        std::tuple(k7, k2019, R"("dependentSchemas": {"a": {"required": ["b"]}})", R"({"b": 1})", R"({"a": 1})"),
        std::tuple(k7, k2019, R"("properties": {"a": {}}, "unevaluatedProperties": false)", R"({"a": 1})",
                   R"({"b": 1})"),
        std::tuple(k2019, k2020, R"("prefixItems": [{"type": "null"}])", "[null]", "[1]")}) {
    EXPECT_TRUE(schema(whole(since, keywords, false))(meets)) << keywords;
    EXPECT_FALSE(schema(whole(since, keywords, false))(fails)) << keywords;
    EXPECT_FALSE(schema(whole(since, keywords, true))(meets)) << keywords;
    EXPECT_TRUE(schema(whole(since, keywords, true))(fails)) << keywords;
    EXPECT_TRUE(schema(whole(before, keywords, false))(fails)) << keywords;
    EXPECT_NE(refusal_of(whole(before, keywords, true)), "") << keywords;  // not {}: no value
  }
  EXPECT_NE(refusal_of(whole(k4, R"("exclusiveMinimum": 5)", false)).find("true or false in draft 4"),
            std::string::npos);
}

TEST(SchemaGrammar, CountsAreIntegersInAnySpelling) {
  for (const char* count : {"2", "2.0", "0.2e1", "20e-1"})
    EXPECT_FALSE(schema(fmt::format(R"({{"maxLength": {}}})", count))(R"("abc")")) << count;
  EXPECT_TRUE(schema(R"({"maxLength": 1e300})")(R"("abc")"));
  for (const char* count : {"-1", "1.5", "1e300", "4294967295", "\"1\""})
    EXPECT_NE(refusal_of(fmt::format(R"({{"minItems": {}}})", count)).find("#: minItems: found"), std::string::npos);
}

TEST(SchemaGrammar, LargeEnums) {
  std::string numbers = "0", lists = "[0]";
  for (int i = 1; i < 5'000; ++i) numbers += fmt::format(", {}", i * 7), lists += fmt::format(", [{}]", i);
  const Acceptor listed = schema(fmt::format(R"({{"type": "integer", "minimum": 8, "enum": [{}]}})", numbers));
  EXPECT_TRUE(listed("34993"));
  EXPECT_FALSE(listed("7"));
  EXPECT_FALSE(listed("34994"));
  EXPECT_NE(refusal_of(fmt::format(R"({{"properties": {{"a": {{"enum": [{}]}}}}}})", lists)).find("#/properties/a: "),
            std::string::npos);
}

TEST(SchemaGrammar, RefusesWhatCouldContinueInTooManyWays) {
  std::string properties = R"("p0": {})";
  for (int i = 1; i < 4'096; ++i) properties += fmt::format(R"(, "p{}": {{}})", i);
  EXPECT_NE(refusal_of("{\"properties\": {" + properties + "}}").find("4096 optional properties"), std::string::npos);
}

// Work that grows with the square of the text is counted.
TEST(SchemaGrammar, ManyBranches) {
  const auto branches = [](const char* keyword, const char* branch, int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", fmt::format(fmt::runtime(branch), i));
    return fmt::format(R"({{"{}": [{}]}})", keyword, text);
  };
  constexpr const char *constant = R"({{"const": "s{}"}})", *required = R"({{"required": ["p{}"]}})",
                       *different = R"({{"not": {{"const": "s{}"}}}})";
  const Acceptor any = schema(branches("anyOf", constant, 20'000)), one = schema(branches("oneOf", constant, 1'000));
  EXPECT_TRUE(any(R"("s19999")"));
  EXPECT_FALSE(any(R"("s20000")"));
  EXPECT_TRUE(one(R"("s999")"));
  EXPECT_NE(refusal_of(branches("oneOf", constant, 20'000)).find("#: oneOf: found"), std::string::npos);
  EXPECT_NE(refusal_of(branches("allOf", required, 10'000)).find("#: allOf: found"), std::string::npos);
  EXPECT_NE(refusal_of(branches("allOf", different, 10'000)).find("#: allOf: found"), std::string::npos);
}

// What references cost is bounded by the text's size.
TEST(SchemaGrammar, IdentifiersAreBounded) {
  const std::string name(500'000, 'x'), id = R"({"$id": "http://x.org/)" + name + R"(", "anyOf": [{})";
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += ", {}";
  EXPECT_NE(refusal_of(id + many + "]}").find("#: $id: found"), std::string::npos);
  std::string anchors = R"({"$id": "http://x.org/)" + name.substr(0, 4'000) + R"(", "anyOf": [{}])";
  for (int i = 0; i < 2'000; ++i) anchors += fmt::format(R"(, {{"$anchor": "a{}"}})", i);
  EXPECT_NE(refusal_of(anchors + "]}"), "");
}

TEST(SchemaGrammar, RefusesByPlaceAndKeyword) {
  EXPECT_NE(refusal_of(R"x({"prefixItems": [{}], "items": [{}]})x").find("#: items: found"), std::string::npos);
  EXPECT_EQ(refusal_of(R"x({"properties": {"a": {"$ref": "other.json"}}})x"),
            R"x(#/properties/a: $ref: found "other.json", expected a schema within this document)x");
  EXPECT_NE(refusal_of(R"x({"type": "array", "uniqueItems": true})x").find("#: uniqueItems: "), std::string::npos);
  EXPECT_NE(refusal_of(R"x({"minLength": -1})x").find("#: minLength: found -1"), std::string::npos);
  EXPECT_NE(refusal_of(R"x({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})x").find("circle"),
            std::string::npos);
  EXPECT_NE(
      refusal_of(R"x({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}})x")
          .find("circle"),
      std::string::npos);
  EXPECT_NE(refusal_of(R"x({"type": "text"})x").find("#: type: found \"text\""), std::string::npos);
  EXPECT_NE(refusal_of(R"x({"pattern": "(?=a)"})x").find("#: pattern: "), std::string::npos);
  EXPECT_NE(refusal_of(R"x({"a": 1, "a": 2})x"), "");
  // Undeclared keys may be written twice, so two of them cannot be counted.
  EXPECT_EQ(refusal_of(R"x({"type": "object", "minProperties": 1})x"), "");
  EXPECT_EQ(refusal_of(R"x({"properties": {"a": {"type": "object", "minProperties": 2}}})x"),
            "#/properties/a: found minProperties 2, expected at most 1 with undeclared properties");
  EXPECT_NE(refusal_of(R"x({"type": "object")x"), "");
}

}  // namespace
}  // namespace lfm2::grammar
