// project_short_conv on the GPU gives the bits of its two operators one after the other, in the output and the states.
#include "cuda/fused/projected_conv.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaProjectShortConvTest : ProjectedConvTest {};

TEST_F(CudaProjectShortConvTest, EveryNumberOfTokens) {
  for (int64_t count = 1; count <= 18; ++count)
    for (const DType act : kFloatTypes)
      for (const bool biases : {false, true})
        check(count, {.act = act, .biases = biases, .seed = static_cast<uint32_t>(count)});
}

// Rows of draft blocks beside each other, 16 and 17 rows among them.
TEST_F(CudaProjectShortConvTest, Blocks) {
  for (int64_t count = 2; count <= 18; ++count)
    for (const int64_t block : {2, 3, 5, 8})
      for (const DType act : kFloatTypes)
        check(count, {.act = act, .biases = true, .seed = static_cast<uint32_t>(count), .block = block});
}

// Widths that are no whole pieces of k, more units than multiprocessors, and what the kernel for skinny products does
// not take.
TEST_F(CudaProjectShortConvTest, EveryWidth) {
  for (const int64_t count : {1, 3, 8, 9, 16})
    for (const auto& [hidden, k] : {std::pair<int64_t, int64_t>{16, 8},
                                    {16, 72},
                                    {80, 192},
                                    {2320, 320},
                                    {4336, 136},
                                    {40, 64},
                                    {33, 64},
                                    {48, 36}})
      for (const DType act : {DType::kBf16, DType::kF16})
        check(count, {.hidden = hidden, .k = k, .act = act, .seed = static_cast<uint32_t>(count + hidden)});
}

TEST_F(CudaProjectShortConvTest, TheWidthOfTheModel) {
  for (const int64_t count : {1, 16}) check(count, {.hidden = 2048, .k = 2048});
}

TEST_F(CudaProjectShortConvTest, OtherNumbersOfTaps) {
  for (const int64_t taps : {1, 2, 4, 7, 8, 9})
    for (const int64_t count : {1, 2, 8, 9, 16})
      for (const int64_t block : {1, 3, 8})
        check(count, {.taps = taps, .biases = true, .seed = static_cast<uint32_t>(count), .block = block});
  for (const int64_t count : {1, 16}) check(count, {.hidden = 2048, .k = 2048, .taps = 7});
}

}  // namespace
}  // namespace lfm2
