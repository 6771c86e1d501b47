// The Hopper version of the exact fp32 product, called by its launcher and compared with fp64 and with a plain chain of
// fp32 multiply-adds, with every epilogue, split and edge.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/common/hopper_test.h"
#include "cuda/gemm/bf16x3_check.h"

namespace lfm2 {
namespace {

using namespace test;

void launch(const GemmArgs& args) { launch_gemm_bf16x3_wgmma(nullptr, args); }

struct CudaGemmBf16x3WgmmaTest : HopperTest {
  void check(const Product& p) { check_bf16x3(p, launch); }
};

constexpr DType kWeightTypes[] = {DType::kBf16, DType::kF32};

TEST_F(CudaGemmBf16x3WgmmaTest, OddSizes) {
  for (const DType weight : kWeightTypes) {
    for (const int64_t k : {8, 64, 72, 264})
      for (const int64_t m : {1, 3, 64, 65, 130})
        for (const int64_t n : {8, 128, 136, 264}) check(fp32_product(m, n, k, weight));
    check(fp32_product(300, 520, 1032, weight));
  }
  for (const int64_t k : {4, 12, 68}) check(fp32_product(70, 40, k, DType::kF32));
}

TEST_F(CudaGemmBf16x3WgmmaTest, EveryEpilogueAndBias) {
  for (const DType weight : kWeightTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
      for (const DType bias : {DType::kI32, DType::kBf16, DType::kF16, DType::kF32})
        for (const int64_t n : {16, 144, 272})
          for (const int64_t k : {0, 24, 328}) check(fp32_product(67, n, k, weight, epilogue, bias));
}

TEST_F(CudaGemmBf16x3WgmmaTest, EmptyInputs) {
  for (const DType weight : kWeightTypes) {
    check(fp32_product(0, 24, 40, weight));
    check(fp32_product(0, 24, 40, weight, Epilogue::kStore, DType::kI32, {0, 0, 0}));
  }
}

TEST_F(CudaGemmBf16x3WgmmaTest, EverySplit) {
  for (const DType weight : kWeightTypes)
    for (const auto& split : {std::vector<double>{0, 3, 3, 10, 150, 151},
                              {0, 0, 0, 151, 151, 151},
                              {0, 151, 151, 151, 151, 151},
                              {0, 30, 60, 90, 120, 151},
                              {0, 0, 0, 0, 0, 151}})
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu}) {
        check(fp32_product(151, 80, 520, weight, epilogue, DType::kI32, split));
        check(fp32_product(151, 272, 64, weight, epilogue, DType::kI32, split));
      }
}

TEST_F(CudaGemmBf16x3WgmmaTest, ManyExperts) {
  for (const DType weight : kWeightTypes)
    for (const int experts : {70, 1024}) {
      std::vector<double> split = {0};
      for (int e = 0; e < experts; ++e)
        split.push_back(split.back() + (experts == 70 ? e : e * 7 % 11 == 0 ? e % 5 : 0));
      check(fp32_product(static_cast<int64_t>(split.back()), 24, 40, weight, Epilogue::kStore, DType::kI32, split));
    }
}

TEST_F(CudaGemmBf16x3WgmmaTest, LosesNoMoreThanPlainFp32) {
  for (const DType weight : kWeightTypes) {
    for (const Kind& kind : kUsualKinds) expect_no_more_loss_than_plain_fp32(kind, weight, launch);
    for (const Kind& kind : kDenormalKinds) expect_no_more_loss_than_plain_fp32(kind, weight, launch);
  }
}

TEST_F(CudaGemmBf16x3WgmmaTest, DenormalsInEveryEpilogue) {
  for (const DType weight : kWeightTypes) check_denormals_in_epilogues(weight, launch);
}

TEST_F(CudaGemmBf16x3WgmmaTest, RowsDoNotFeelDenormalNeighbours) {
  for (const DType weight : kWeightTypes) expect_rows_do_not_feel_denormal_neighbours(weight, launch);
}

TEST_F(CudaGemmBf16x3WgmmaTest, PassesInfinitiesAndNansThrough) {
  for (const DType weight : kWeightTypes) check_infinities_and_nans(weight, launch);
}

// A row's bits are the same whichever rows stand beside it, and whatever tile that gives.
TEST_F(CudaGemmBf16x3WgmmaTest, InvarianceOfARowsBits) {
  for (const DType weight : kWeightTypes) {
    const Product whole = fp32_product(700, 264, 1096, weight, Epilogue::kStore, DType::kI32, {0, 700, 700, 700, 700});
    Operands in(whole, kBf16x3Spread);
    for (int64_t e = 1; e < 4; ++e)  // the same weights for every expert
      std::memcpy(in.w->at(e).data, in.w->at(0).data, in.w->at(0).bytes());
    const HostTensor expected = run(whole, in, launch);
    for (const auto& split : {std::vector<double>{0, 1, 130, 131, 700}, {0, 200, 201, 601, 700}, {0, 0, 0, 0, 700}}) {
      Product other = whole;
      other.split = split;
      in.offsets.fill(split);
      EXPECT_TRUE(same_bits(run(other, in, launch), expected)) << other.text();
    }
    for (const int64_t m : {1, 2, 3, 17, 63, 64, 65, 100, 128, 129, 200, 300}) {
      const Product few = fp32_product(m, 264, 1096, weight);
      const Operands part(few, kBf16x3Spread);
      std::memcpy(part.a->data, in.a->data, part.a->bytes());
      std::memcpy(part.w->data, in.w->data, part.w->bytes());
      EXPECT_TRUE(same_bits(run(few, part, launch), expected->rows(0, m))) << m;
    }
  }
}

}  // namespace
}  // namespace lfm2
