// The mma.sync version of the exact fp32 product, which GPUs other than Hopper use, called by its launcher and compared
// with fp64 and with a plain chain of fp32 multiply-adds.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/gemm/bf16x3_check.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGemmBf16x3Test : ::testing::Test {
  static void launch(const GemmArgs& args) { launch_gemm_bf16x3(nullptr, args); }
  static void check(const Product& p) { check_bf16x3(p, launch); }
};

TEST_F(CudaGemmBf16x3Test, EveryEpilogueSplitAndEdge) {
  for (const int64_t k : {8, 72, 264})
    for (const int64_t m : {1, 64, 65, 130})
      for (const int64_t n : {1, 19, 40, 136}) check(fp32_product(m, n, k, DType::kBf16));
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
    for (const auto& split : {std::vector<double>{0, 3, 3, 10, 150, 151}, {0, 0, 0, 151, 151, 151}})
      for (const int64_t k : {0, 136})
        check(fp32_product(151, 144, k, DType::kBf16, epilogue, bias_before(epilogue), split));
}

TEST_F(CudaGemmBf16x3Test, LosesNoMoreThanPlainFp32) {
  for (const Kind& kind : kUsualKinds) expect_no_more_loss_than_plain_fp32(kind, DType::kBf16, launch);
  for (const Kind& kind : kDenormalKinds) expect_no_more_loss_than_plain_fp32(kind, DType::kBf16, launch);
}

TEST_F(CudaGemmBf16x3Test, DenormalsInEveryEpilogue) { check_denormals_in_epilogues(DType::kBf16, launch); }

TEST_F(CudaGemmBf16x3Test, RowsDoNotFeelDenormalNeighbours) {
  expect_rows_do_not_feel_denormal_neighbours(DType::kBf16, launch);
}

TEST_F(CudaGemmBf16x3Test, PassesInfinitiesAndNansThrough) { check_infinities_and_nans(DType::kBf16, launch); }

}  // namespace
}  // namespace lfm2
