// JSON Schema as it is written, read for compilers: drafts 4, 6, 7, 2019-09 and 2020-12 become the same assertions,
// with all references resolved. A schema is read when it is first asked for, so that what is never used is never
// refused.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/schema/json_tree.h"

namespace lfm2::grammar {

enum class Draft : uint8_t { k4, k6, k7, k2019, k2020 };

enum class SchemaId : uint32_t {};

// One claim that a schema makes about values. A value that the claim says nothing about (a text under kMinimum) meets
// it. A schema holds where all of its assertions do.
struct Assertion {
  enum class Kind : uint8_t {
    kNever,              // no value
    kTypes,              // values: the names of types
    kValues,             // values: one of these
    kAllOf,              // schemas: all; also $ref
    kAnyOf,              // schemas: at least one
    kOneOf,              // schemas: exactly one
    kNot,                // schemas: not this one
    kIf,                 // schemas: if, then, else
    kMinimum,            // values: the bound; exclusive
    kMaximum,            //
    kMultipleOf,         // values: the divisor
    kLength,             // min, max code points
    kPattern,            // values: the expression
    kFormat,             // values: the name
    kProperties,         // names and schemas of properties, patterns, rest
    kRequired,           // names
    kPropertyNames,      // schemas: what names must be
    kPropertyCount,      // min, max
    kDependentRequired,  // names: where the first is there, so are the others
    kDependentSchema,    // names, schemas: where the name is there, the schema holds
    kItems,              // schemas of the first items, rest of the others
    kItemCount,          // min, max
    kContains,           // schemas: what min to max items are
    kUniqueItems,
  };
  struct PatternSchema {
    const JsonNode* pattern;  // its key is the expression
    SchemaId schema;
  };

  Kind kind;
  const JsonNode* place;  // the value of the keyword, for refusals
  std::vector<const JsonNode*> values = {};
  std::vector<SchemaId> schemas = {};
  std::vector<std::string> names = {};
  std::vector<PatternSchema> patterns = {};
  std::optional<SchemaId> rest = {};
  uint32_t min = 0, max = UINT32_MAX;
  bool exclusive = false;
  bool declares = false;  // kProperties: has `properties`, even empty ones
};

struct Schema {
  const JsonNode* node;
  std::vector<Assertion> assertions;  // none: every value
};

class SchemaReader {
 public:
  // The schema at `root`, which is a whole document to its references. It must outlive the reader. Refusal for a
  // $schema that is none of the drafts; without one it is 2020-12.
  explicit SchemaReader(const JsonNode& root);

  SchemaId root() { return schema_of(root_); }
  // Reads the schema where this is the first call for it. Refusal for a keyword with a wrong value, for what is not
  // computed, and for a reference to what is not in the document. References stay valid.
  const Schema& at(SchemaId id);
  // The schema at a value of the document; the one that a value alone meets; the ones of all and of no values.
  SchemaId schema_of(const JsonNode& node);
  SchemaId constant(const JsonNode& value);
  SchemaId anything() const { return SchemaId{0}; }
  SchemaId never() const { return SchemaId{1}; }
  // The schema that the value of a $ref names.
  SchemaId target_of(const JsonNode& reference);
  // Whether some $dynamicAnchor or $recursiveAnchor makes references depend on the way to them.
  bool has_dynamic_anchors() const { return dynamic_; }
  size_t size() const { return schemas_.size(); }

 private:
  // What a schema with an identifier or a dialect of its own says for all below it.
  struct Resource {
    std::string base;  // its URI without fragment
    const JsonNode* root;
    Draft draft;
  };
  struct Entry {
    const JsonNode* node;
    bool constant = false;
    std::optional<Schema> schema;
  };

  void find_resources();
  void note_identifiers(const JsonNode& node, Resource& resource);
  void add_target(std::string uri, const JsonNode& node, const JsonNode& identifier);
  // The value that a JSON pointer without its "#" leads to; null where there is none.
  const JsonNode* follow(const JsonNode& root, std::string_view pointer);
  const Resource& resource_of(const JsonNode& node) const;
  SchemaId add(const JsonNode* node, bool constant);

  const JsonNode& root_;
  std::unordered_map<const JsonNode*, Resource> resources_;
  std::map<std::string, const JsonNode*, std::less<>> targets_;  // by URI, those of anchors with their fragment
  size_t uri_bytes_ = 0;                                         // of targets_
  // Of values that a pointer went through, by key.
  std::unordered_map<const JsonNode*, std::unordered_map<std::string_view, const JsonNode*>> members_;
  bool dynamic_ = false;
  std::deque<Entry> schemas_;
  std::unordered_map<const JsonNode*, SchemaId> ids_, constants_;
};

}  // namespace lfm2::grammar
