// Tests of what only Hopper GPUs have.
#pragma once

#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"

namespace lfm2::test {

struct HopperTest : ::testing::Test {
  void SetUp() override {
    if (cuda_device_facts(0).compute_capability != 90) GTEST_SKIP() << "needs a Hopper GPU";
  }
};

}  // namespace lfm2::test
