// Reads the keywords of one schema object as assertions: which there are in each draft, and what their values must be.
#pragma once

#include <string_view>

#include "grammar/schema/schema_reader.h"

namespace lfm2::grammar {

// Where a keyword has schemas in its value, whatever the draft.
enum class SchemasIn : uint8_t { kNowhere, kValue, kValueOrList, kMembers };
SchemasIn schemas_in(std::string_view keyword);

class KeywordReader {
 public:
  KeywordReader(SchemaReader& reader, const JsonNode& node, Draft draft)
      : reader_(reader), node_(node), draft_(draft) {}
  // Refusal for a keyword with a wrong value, and for one that is not computed.
  Schema read();

 private:
  void keyword(const JsonNode& value);
  bool applicator(const JsonNode& value);
  bool number_keyword(const JsonNode& value);
  bool text_keyword(const JsonNode& value);
  bool object_keyword(const JsonNode& value);
  bool list_keyword(const JsonNode& value);

  // Adds an assertion; where two keywords make one, the one that is there already.
  Assertion& add(Assertion::Kind kind, const JsonNode& value);
  Assertion& shared(Assertion::Kind kind, const JsonNode& value);
  void add_condition(const JsonNode& condition);
  void add_bound(const JsonNode& value, Assertion::Kind kind, std::string_view exclusive);
  void add_dependencies(const JsonNode& value, bool schemas, bool names);
  void add_properties(const JsonNode& value);
  void add_items(const JsonNode& value);
  void add_contains(const JsonNode& value);

  const JsonNode& expect_kind(const JsonNode& value, JsonNode::Kind kind, const char* expected) const;
  uint32_t count(const JsonNode& value) const;
  std::vector<SchemaId> schemas(const JsonNode& list);
  std::vector<std::string> texts(const JsonNode& list) const;
  [[noreturn]] void refuse(const JsonNode& value, std::string_view expected) const;

  SchemaReader& reader_;
  const JsonNode& node_;
  const Draft draft_;
  std::vector<Assertion> assertions_;
};

}  // namespace lfm2::grammar
