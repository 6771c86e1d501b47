// The product of few rows, called by its launcher: the bits of launch_gemm_wgmma, which other tests compare with fp64.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda/gpu.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"

namespace lfm2 {
namespace {

using namespace test;

struct Product {
  int64_t m, n, k;
  DType act = DType::kBf16, out = DType::kBf16;
  Epilogue epilogue = Epilogue::kStore;
  DType bias = DType::kI32;        // kI32: none
  std::vector<double> split = {};  // offsets of the groups; none: dense

  int64_t groups() const { return split.empty() ? 1 : static_cast<int64_t>(split.size()) - 1; }
  int64_t columns() const { return epilogue == Epilogue::kSwiglu ? n / 2 : n; }
  bool has_bias() const { return bias != DType::kI32; }
  std::string text() const {
    return fmt::format("m {} n {} k {} {} to {} epilogue {} bias {} groups {}", m, n, k, name(act), name(out),
                       static_cast<int>(epilogue), has_bias() ? name(bias) : "none", groups());
  }
};

struct CudaGemmFewRowsTest : ::testing::Test {
  void SetUp() override {
    if (cuda_device_facts(0).compute_capability != 90) GTEST_SKIP() << "needs a Hopper GPU";
  }

  void check(const Product& p) {
    SCOPED_TRACE(p.text());
    HostTensor a(p.act, {p.m, p.k}), w(p.act, {p.groups(), p.n, p.k}), bias(p.has_bias() ? p.bias : DType::kF32, {p.n}),
        old(p.out, {p.m, p.columns()}), offsets(DType::kI32, {p.groups() + 1});
    a.fill_random(1);
    w.fill_random(2, 2 / std::sqrt(static_cast<float>(p.k)));
    bias.fill_random(3);
    old.fill_random(4);
    if (p.epilogue != Epilogue::kAdd) old.fill(NAN);  // what was not written shows
    if (!p.split.empty()) offsets.fill(p.split);
    check(p, a, w, bias, old, offsets);
  }

  void check(const Product& p, const HostTensor& a, const HostTensor& w, const HostTensor& bias, const HostTensor& old,
             const HostTensor& offsets) {
    const DeviceTensor device_a(a), device_w(w), device_bias(bias), device_offsets(offsets);
    const auto run = [&](const auto& launch) {
      const DeviceTensor out(old);
      const GemmArgs args{.a = device_a->data,
                          .w = {device_w->data, device_w->dtype},
                          .bias = p.has_bias() ? AnyArray{device_bias->data, device_bias->dtype} : AnyArray{},
                          .out = out->data,
                          .offsets = p.split.empty() ? nullptr : device_offsets->as<const int32_t>(),
                          .m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .groups = p.groups(),
                          .epilogue = p.epilogue};
      gpu().compute().drain();
      launch(args);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      HostTensor result(p.out, {p.m, p.columns()});
      out.fetch(result);
      return result;
    };
    const HostTensor expected = run([&](const GemmArgs& args) { launch_gemm_wgmma(nullptr, args, p.act, p.out); });
    for (const bool early : {false, true})
      EXPECT_TRUE(same_bits(
          run([&](const GemmArgs& args) { launch_gemm_few_rows(nullptr, args, p.act, p.out, early); }), expected))
          << (early ? "offsets read early" : "");
  }
};

TEST_F(CudaGemmFewRowsTest, EveryEpilogueAndEdge) {
  for (const DType act : {DType::kBf16, DType::kF16})
    for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 33})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 8}, {16, 24}, {40, 72}, {272, 136}, {200, 1792}}) {
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
          for (const DType out : {act, DType::kF32}) check({m, n, k, act, out, epilogue});
        if (n % 16 == 0) check({m, n, k, act, act, Epilogue::kSwiglu});
      }
}

// Rows of a that do not fit into shared memory, and more tiles than warps.
TEST_F(CudaGemmFewRowsTest, LargeMatrices) {
  for (const int64_t m : {1, 8, 13}) {
    check({m, 256, 7168, DType::kBf16, DType::kBf16, Epilogue::kAdd});
    check({m, 40000, 136, DType::kBf16, DType::kF32});
  }
}

TEST_F(CudaGemmFewRowsTest, Bias) {
  for (const DType bias : kFloatTypes)
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd})
      for (const DType out : {DType::kBf16, DType::kF32}) check({7, 264, 136, DType::kBf16, out, epilogue, bias});
}

TEST_F(CudaGemmFewRowsTest, EverySplit) {
  for (const std::vector<double>& split : {std::vector<double>{0, 3, 3, 33, 38, 39, 60},
                                           {0, 0, 0, 16},
                                           {0, 64, 64, 64},
                                           {0, 8, 16, 17},
                                           {0, 1, 2, 3, 4},
                                           {0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4}})
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kSwiglu})
      for (const int64_t k : {24, 136, 1792})
        check({static_cast<int64_t>(split.back()), 272, k, DType::kBf16, DType::kBf16, epilogue, DType::kI32, split});
}

TEST_F(CudaGemmFewRowsTest, ManyGroups) {
  for (const int period : {7, 33, 500}) {
    std::vector<double> split = {0};
    for (int group = 0; group < 1024; ++group) split.push_back(split.back() + (group % period == 6 ? group % 5 : 0));
    check({static_cast<int64_t>(split.back()), 48, 72, DType::kBf16, DType::kBf16, Epilogue::kSwiglu, DType::kI32,
           split});
  }
}

TEST_F(CudaGemmFewRowsTest, NothingToDo) {
  check({0, 16, 64});
  check({0, 16, 64, DType::kBf16, DType::kBf16, Epilogue::kSwiglu, DType::kI32, {0, 0, 0}});
}

TEST_F(CudaGemmFewRowsTest, InfinitiesAndNansStayInTheirRows) {
  for (const int64_t k : {64, 72}) {
    const Product p{5, 16, k};
    const auto at = [&](int64_t row, int64_t column) { return static_cast<size_t>(row * k + column); };
    HostTensor a(p.act, {p.m, p.k}), w(p.act, {1, p.n, p.k}), none(DType::kF32, {1}), old(p.out, {p.m, p.n}),
        offsets(DType::kI32, {2});
    w.fill(1);
    a.fill(1);
    a.set(at(0, 5), INFINITY);
    a.set(at(1, 7), -INFINITY);
    a.set(at(2, 9), NAN);
    a.set(at(4, k - 1), INFINITY);
    check(p, a, w, none, old, offsets);
  }
}

}  // namespace
}  // namespace lfm2
