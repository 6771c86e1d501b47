// norm_project_short_conv on the GPU gives the bits of its operators one after the other, in the output and the states.
#include "cuda/fused/projected_conv.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaNormProjectShortConvTest : ProjectedConvTest {};

TEST_F(CudaNormProjectShortConvTest, EveryNumberOfTokens) {
  for (int64_t count = 1; count <= 10; ++count)
    for (const DType act : kFloatTypes)
      for (const bool biases : {false, true})
        check(count, {.act = act, .biases = biases, .seed = static_cast<uint32_t>(count), .norm = true});
}

TEST_F(CudaNormProjectShortConvTest, Blocks) {
  for (int64_t count = 2; count <= 10; ++count)
    for (const int64_t block : {2, 3, 5, 8})
      for (const DType act : kFloatTypes)
        check(count, {.act = act, .seed = static_cast<uint32_t>(count), .norm = true, .block = block});
}

// Rows that fill no whole pieces of k or trees of the norm's sum, and rows that are too long; more units than
// multiprocessors; and what the kernel for skinny products does not take.
TEST_F(CudaNormProjectShortConvTest, EveryWidth) {
  for (const int64_t count : {1, 2, 3, 7, 8})
    for (const auto& [hidden, k] : {std::pair<int64_t, int64_t>{16, 8},
                                    {16, 72},
                                    {80, 264},
                                    {80, 1096},
                                    {48, 1792},
                                    {48, 2040},
                                    {48, 2048},
                                    {48, 2056},
                                    {48, 4096},
                                    {2320, 320},
                                    {4336, 136},
                                    {40, 64},
                                    {48, 36}})
      for (const DType act : {DType::kBf16, DType::kF16})
        check(count,
              {.hidden = hidden, .k = k, .act = act, .seed = static_cast<uint32_t>(count + hidden), .norm = true});
}

TEST_F(CudaNormProjectShortConvTest, TheWidthOfTheModel) {
  for (const int64_t count : {1, 8}) check(count, {.hidden = 2048, .k = 2048, .norm = true});
}

// Also more units than multiprocessors, and what the kernel for fp8 does not take.
TEST_F(CudaNormProjectShortConvTest, Fp8Weights) {
  for (int64_t count = 1; count <= 9; ++count)
    for (const auto& [hidden, k] :
         {std::pair<int64_t, int64_t>{16, 256}, {48, 1792}, {2048, 2048}, {2320, 512}, {80, 384}, {48, 2304}})
      check(count, {.hidden = hidden,
                    .k = k,
                    .biases = count % 2 == 0,
                    .seed = static_cast<uint32_t>(count + hidden),
                    .norm = true,
                    .fp8 = true});
}

TEST_F(CudaNormProjectShortConvTest, OtherNumbersOfTaps) {
  for (const int64_t taps : {1, 2, 4, 7, 8, 9})
    for (const int64_t count : {1, 5, 8})
      for (const int64_t block : {1, 3}) check(count, {.taps = taps, .biases = true, .norm = true, .block = block});
  for (const int64_t count : {1, 8})
    for (const bool fp8 : {false, true}) check(count, {.hidden = 2048, .k = 2048, .taps = 7, .norm = true, .fp8 = fp8});
}

}  // namespace
}  // namespace lfm2
