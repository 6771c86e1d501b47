// main of the operators' tests. "cpu" or "cuda" as the first argument chooses; exit code 77 says that there is no GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "operators/gpu.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ::testing::InitGoogleTest(&argc, argv);
  const bool cuda = argc > 1 && std::strcmp(argv[1], "cuda") == 0;
  if (!cuda) {
    if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, "-Cuda*:Cuda/*");
    return RUN_ALL_TESTS();
  }
  if (lfm2::operators::gpu::device_count() == 0) {
    std::puts("no GPU: skipped");
    return kSkipped;
  }
  if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, "Cuda*");
  return RUN_ALL_TESTS();
}
