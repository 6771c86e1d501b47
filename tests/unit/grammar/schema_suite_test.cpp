// JSON-Schema-Test-Suite, in tests/golden: nothing invalid is accepted, and what is valid but rejected is named there
// in exceptions.txt with its reason.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <set>

#include "grammar/expression/text_set.h"
#include "grammar/schema/json_tree.h"
#include "tests/unit/grammar/texts_of.h"

namespace lfm2::grammar {
namespace {

std::string written(const JsonNode& value) {
  switch (value.kind) {
    case JsonNode::Kind::kNull:
      return "null";
    case JsonNode::Kind::kFalse:
      return "false";
    case JsonNode::Kind::kTrue:
      return "true";
    case JsonNode::Kind::kNumber:
      return value.text;
    case JsonNode::Kind::kString:
      return '"' + spell(value.text, Spelling::kJson) + '"';
    case JsonNode::Kind::kArray:
    case JsonNode::Kind::kObject:
      break;
  }
  const bool array = value.is(JsonNode::Kind::kArray);
  std::string text;
  for (const JsonNode* child : value.children) {
    if (!text.empty()) text += ", ";
    if (!array) text += '"' + spell(child->key, Spelling::kJson) + "\": ";
    text += written(*child);
  }
  return array ? '[' + text + ']' : '{' + text + '}';
}

std::set<std::string> exceptions() {
  std::set<std::string> names;
  std::ifstream file(LFM2_GOLDEN_DIR "/json-schema-test-suite/exceptions.txt");
  for (std::string line; std::getline(file, line);) names.insert(line.substr(0, line.find(':')));
  return names;
}

void check(const std::string& draft, size_t max_refused) {
  const std::set<std::string> named = exceptions();
  ASSERT_FALSE(named.empty());
  std::ifstream file(LFM2_GOLDEN_DIR "/json-schema-test-suite/" + draft + ".jsonl");
  size_t refused = 0, schemas = 0;
  for (std::string line; std::getline(file, line); ++schemas) {
    const JsonTree tree(line);
    const std::string id = draft + ' ' + tree.root().find("id")->text;
    std::optional<Acceptor> accepts;
    try {
      accepts.emplace(schema_grammar(written(*tree.root().find("schema"))));
    } catch (const Refusal&) {
      ++refused;
      continue;
    }
    for (const JsonNode* test : tree.root().find("tests")->children) {
      const std::string text = written(*test->children[0]);
      const bool valid = test->children[1]->is(JsonNode::Kind::kTrue);
      if (valid && named.contains(id)) continue;
      EXPECT_EQ((*accepts)(text), valid) << id << ' ' << text;
    }
  }
  EXPECT_GT(schemas, 300u);
  EXPECT_LE(refused, max_refused);
}

TEST(SchemaSuite, Draft2020) { check("draft2020-12", 105); }
TEST(SchemaSuite, Draft7) { check("draft7", 40); }

}  // namespace
}  // namespace lfm2::grammar
