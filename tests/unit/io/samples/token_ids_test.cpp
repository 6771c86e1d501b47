// Ids move to a temporary file where they are many, and nothing about them changes.
#include "stage/io/samples/token_ids.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/error.h"

namespace lfm2 {
namespace {

std::vector<int32_t> counted(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(TokenIdsTest, StaysWhereItIsWhileItGrows) {
  const std::vector<int32_t> piece = counted(1 << 20);
  TokenIds ids;
  ids.set_memory_limit(3 << 20);
  ids.append(piece);
  const int32_t* const begin = ids.data();
  EXPECT_FALSE(ids.is_on_disk());
  for (int i = 0; i < 7; ++i) ids.append(piece);
  EXPECT_TRUE(ids.is_on_disk());
  EXPECT_EQ(ids.data(), begin);
  ASSERT_EQ(ids.size(), piece.size() * 8);
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], piece[i % piece.size()]);
  TokenIds moved = std::move(ids);
  EXPECT_EQ(moved.data(), begin);
  EXPECT_EQ(ids.size(), 0u);
}

TEST(TokenIdsTest, TakesMemoryWhereNoFileCanBeMade) {
  const char* const before = std::getenv("TMPDIR");
  const std::string folder = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/nowhere", 1);
  TokenIds ids;
  ids.set_memory_limit(0);
  ids.append(counted(1 << 20));
  EXPECT_FALSE(ids.is_on_disk());
  EXPECT_EQ(ids[(1 << 20) - 1], (1 << 20) - 1);
  before != nullptr ? ::setenv("TMPDIR", folder.c_str(), 1) : ::unsetenv("TMPDIR");
}

TEST(TokenIdsTest, RefusesMoreThanAJobHas) {
  TokenIds ids;
  EXPECT_THROW(ids.reserve(TokenIds::kMaxIds + 1), Error);
}

}  // namespace
}  // namespace lfm2
