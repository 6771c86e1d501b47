#include "grammar/constraint_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json/json.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2::grammar {
namespace {

constexpr const char* kLetters = R"({"regex": "[a-z]+"})";

TEST(ConstraintCache, RefusesTheSameConstraintAgain) {
  ConstraintCache cache(test::small_tokenizer(), 65536);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.check(R"({"regex": "("})"), Refusal);
  EXPECT_NO_THROW(cache.check(kLetters));
}

// A text that could begin in too many ways is refused as all else, not when its first token is drawn.
TEST(ConstraintCache, RefusesTooManyWaysToBegin) {
  ConstraintCache cache(test::small_tokenizer(), 65536);
  std::string rules = "root ::= r0";
  for (int i = 1; i < 5'000; ++i) rules += " | r" + std::to_string(i);
  for (int i = 0; i < 5'000; ++i) rules += "\nr" + std::to_string(i) + " ::= [0-9] r" + std::to_string(i) + " | \"x\"";
  EXPECT_THROW(cache.check(Json{{"grammar", rules}}.dump()), Refusal);
  Json lists = Json::array();
  for (int i = 0; i < 5'000; ++i) lists.push_back(Json::array({i}));
  EXPECT_THROW(cache.check(Json{{"json_schema", {{"enum", lists}}}}.dump()), Refusal);
  EXPECT_THROW(cache.check(Json{{"json_schema", {{"properties", {{"a", {{"enum", lists}}}}}}}}.dump()), Refusal);
}

// A second caller must not wait for a compilation that never began.
TEST(ConstraintCache, AVocabularyBelowTheTokenizersIsRefusedEachTime) {
  ConstraintCache cache(test::small_tokenizer(), 10);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.check(kLetters), Error);
}

}  // namespace
}  // namespace lfm2::grammar
