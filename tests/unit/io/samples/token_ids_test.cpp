// Ids move to a temporary file where they are many, and nothing about them changes.
#include "stage/io/samples/token_ids.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"

namespace lfm2 {
namespace {

std::vector<int32_t> counted(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(TokenIdsTest, KeepsItsIdsWhileItGrowsAndMoves) {
  const std::vector<int32_t> piece = counted(1 << 20);
  TokenIds ids;
  ids.set_memory_limit(3 << 20);
  ids.append(piece);
  EXPECT_FALSE(ids.is_on_disk());
  for (int i = 0; i < 39; ++i) ids.append(piece);  // beyond the first addresses
  EXPECT_TRUE(ids.is_on_disk());
  ASSERT_EQ(ids.size(), piece.size() * 40);
  const int32_t* const begin = ids.data();
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

// As ulimit -v sets it.
TEST(TokenIdsTest, TakesTheAddressesThatALimitLeaves) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit{pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (uint64_t{256} << 20), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  TokenIds ids;
  for (int i = 0; i < 20; ++i) ids.append(counted(1 << 20));
  std::string refusal;
  try {
    ids.reserve(TokenIds::kMaxIds);
  } catch (const Error& error) {
    refusal = error.what();
  }
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_NE(refusal.find("expected a higher limit of addresses (ulimit -v)"), std::string::npos) << refusal;
  EXPECT_EQ(ids[(20 << 20) - 1], (1 << 20) - 1);
}

TEST(TokenIdsTest, RefusesMoreThanAJobHas) {
  TokenIds ids;
  EXPECT_THROW(ids.reserve(TokenIds::kMaxIds + 1), Error);
}

}  // namespace
}  // namespace lfm2
