#include "kernels/tensor.h"

#include <gtest/gtest.h>

#include <vector>

namespace lfm2 {
namespace {

// Operators compare shapes by `dims`, so what a view leaves out must not stay there.
TEST(TensorTest, AnEntryHasTheShapeOfATensorOfOneRankLess) {
  std::vector<float> values(2 * 3 * 4);
  const Tensor all(values.data(), DType::kF32, {2, 3, 4});
  const Tensor entry = all.at(1), same(values.data() + 12, DType::kF32, {3, 4});
  EXPECT_EQ(entry.data, same.data);
  EXPECT_EQ(entry.rank, same.rank);
  EXPECT_EQ(entry.dims, same.dims);
  EXPECT_EQ(entry.at(2).dims, Tensor(values.data(), DType::kF32, {4}).dims);
}

}  // namespace
}  // namespace lfm2
