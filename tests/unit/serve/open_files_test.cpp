#include "serve/open_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace lfm2::serve {
namespace {

TEST(OpenFilesTest, AsManyAsWantedOrTheHardLimitLeaves) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = std::min<rlim_t>(200, limit.rlim_max), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_open_files(300), 300);
  rlimit raised{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_LT(raised.rlim_cur, limit.rlim_max);
  constexpr int64_t kMore = int64_t{1} << 40;
  const int64_t left = raise_open_files(kMore);
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, limit.rlim_max);
  EXPECT_GT(left, 0);
  EXPECT_LT(static_cast<rlim_t>(left), raised.rlim_cur);
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(raise_open_files(kMore), left - 1);
  ::close(file);
}

}  // namespace
}  // namespace lfm2::serve
