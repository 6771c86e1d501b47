// Runs the tests of the CUDA backend. Without a GPU only those that need none run, and the exit code says "skipped".
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/gpu.h"
#include "kernels/cuda/cuda_backend.h"

namespace lfm2::test {

namespace {
std::unique_ptr<Backend>& holder() {
  static std::unique_ptr<Backend> backend;
  return backend;
}
}  // namespace

Backend& gpu() {
  if (!holder()) holder() = make_cuda_backend(0);
  return *holder();
}

}  // namespace lfm2::test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  if (lfm2::cuda_device_count() == 0) {
    std::puts("no GPU: only the tests that need none run");
    GTEST_FLAG_SET(filter, "GemmPlanTest.*:WgmmaTileTest.*:NoGpuTest.*");
    const int failed = RUN_ALL_TESTS();
    return failed != 0 ? failed : kSkipped;
  }
  const int failed = RUN_ALL_TESTS();
  lfm2::test::holder().reset();
  return failed;
}
