// quantize, and products of fp8 operands, on the CPU, compared with their specification.
#include <gtest/gtest.h>

#include <cstring>

#include "support/fp8_rows_cases.h"
#include "support/row_cases.h"

namespace lfm2::test {
namespace {

TEST(QuantizeTest, RoundsToTheNearestOfItsScale) { check_quantize(AllCpus().all); }

TEST(QuantizeTest, OperatorsRoundTheirResultsAlike) { check_rounded_results(AllCpus().all, false); }
TEST(PutColumnsTest, ColumnsAreInTheirPlaceAndOthersStay) { check_put_columns(AllCpus().all); }
TEST(Fp8ProductTest, EverySchemeTypeAndSplit) { check_fp8_products(AllCpus().all); }

TEST(Fp8ProductTest, BitsDependOnTheRowOnly) {
  const AllCpus cpus;
  const Fp8Matrix a({40, 256}, {1, 128}, 1), w({64, 256}, kBlock, 2);
  for (OpsUnderTest* under : cpus.all) {
    SCOPED_TRACE(under->name());
    const auto product = [&](int64_t first, int64_t count) {
      HostTensor out(DType::kF32, {count, 64});
      under->run(
          [&](Ops& ops, const Tensor& a8, const Tensor& a_scales, const Tensor& w8, const Tensor& w_scales,
              const Tensor& to) {
            ops.matmul(a.with(a8, a_scales).rows(first, count), w.with(w8, w_scales), {}, to, Write::kStore);
          },
          a.elements, a.scales, w.elements, w.scales, out);
      return out;
    };
    const HostTensor all = product(0, 40);
    for (const int64_t row : {0, 1, 17, 39})
      EXPECT_EQ(std::memcmp(product(row, 1)->data, all->rows(row, 1).data, 64 * sizeof(float)), 0) << row;
  }
}

}  // namespace
}  // namespace lfm2::test
