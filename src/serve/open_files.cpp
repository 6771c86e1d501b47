#include "serve/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>

namespace lfm2::serve {

namespace {

int64_t open_now() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : std::distance(begin(files), end(files)) - 1;  // without the one that reads the folder
}

}  // namespace

int64_t raise_open_files(int64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const int64_t open = open_now();
  const auto needed = std::min(static_cast<rlim_t>(open + wanted), limit.rlim_max);
  const rlimit raised{.rlim_cur = needed, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < needed && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  constexpr auto kMaxFiles = static_cast<rlim_t>(std::numeric_limits<int32_t>::max());  // RLIM_INFINITY among others
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMaxFiles)) - open;
}

}  // namespace lfm2::serve
