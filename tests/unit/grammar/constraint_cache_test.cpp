#include "grammar/constraint_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2::grammar {
namespace {

constexpr const char* kLetters = R"({"regex": "[a-z]+"})";

TEST(ConstraintCache, RefusesTheSameConstraintAgain) {
  ConstraintCache cache(test::small_tokenizer(), 65536);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.check(R"({"regex": "("})"), Refusal);
  EXPECT_NO_THROW(cache.check(kLetters));
}

// A second caller must not wait for a compilation that never began.
TEST(ConstraintCache, AVocabularyBelowTheTokenizersIsRefusedEachTime) {
  ConstraintCache cache(test::small_tokenizer(), 10);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.check(kLetters), Error);
}

}  // namespace
}  // namespace lfm2::grammar
