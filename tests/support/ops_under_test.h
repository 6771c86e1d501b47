// The operators under test, on the host or on a GPU: the cases that both backends must pass (*_cases.h) are written
// over them, once, and compare with the specification in src/kernels/reference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "support/host_tensor.h"
#include "support/packed_batch.h"

namespace lfm2::test {

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kF32, DType::kBf16, DType::kF16};

class OpsUnderTest {
 public:
  virtual ~OpsUnderTest() = default;
  // Calls call(ops, tensors...) with these tensors where the operators compute. What they write there is in the host's
  // tensors afterwards.
  template <class Call, class... Hosts>
  void run(const Call& call, const Hosts&... hosts) {
    run_on({&hosts...}, [&](Ops& ops, const std::vector<Tensor>& there) {
      [&]<size_t... i>(std::index_sequence<i...>) { call(ops, (there[i] ? there[i] : Tensor{})...); }
      (std::index_sequence_for<Hosts...>{});
    });
  }
  virtual std::string name() const = 0;
  // A bound in units of fp32's rounding, for the order of sums that each backend has.
  virtual double units(double cpu, double gpu) const = 0;
  // That bound for products of `act` over k.
  virtual double product_units(DType act, int64_t k) const = 0;

 private:
  virtual void run_on(const std::vector<const HostTensor*>& hosts,
                      const std::function<void(Ops&, const std::vector<Tensor>&)>& call) = 0;
};
using AllUnderTest = std::vector<OpsUnderTest*>;

class CpuUnderTest : public OpsUnderTest {
 public:
  explicit CpuUnderTest(const Simd& simd) : simd_(simd) {}
  std::string name() const override { return simd_.name; }
  double units(double cpu, double) const override { return cpu; }
  // The roundings of the summation that simd.h describes: each product goes through one multiply-add (two roundings
  // where the target has none), the additions behind it in its block, and those of the blocks; then come bias, old
  // value and store. On AMX there are six exact products instead of one, and the part that they leave out.
  double product_units(DType, int64_t k) const override {
    const auto block = static_cast<int64_t>(kMatmulBlockK);
    const double in_block = static_cast<double>(std::min(k, block));
    const bool amx = simd_.matmul == &kMatmulAmx;
    return (amx ? 6 * in_block + 2 : in_block) + 1 + static_cast<double>((k + block - 1) / block) + 2;
  }

 private:
  void run_on(const std::vector<const HostTensor*>& hosts,
              const std::function<void(Ops&, const std::vector<Tensor>&)>& call) override {
    std::vector<Tensor> views;
    for (const HostTensor* host : hosts) views.push_back(host->view());
    call(ops_, views);
  }
  const Simd& simd_;
  ThreadPool pool_{3};
  CpuOps ops_{pool_, simd_};
};

// One for each instruction set.
struct AllCpus {
  AllCpus() {
    for (const Simd* simd : available_simd()) cpus.push_back(std::make_unique<CpuUnderTest>(*simd));
    for (const auto& cpu : cpus) all.push_back(cpu.get());
  }
  std::vector<std::unique_ptr<CpuUnderTest>> cpus;
  AllUnderTest all;
};

// A tensor that stands for none.
inline HostTensor no_tensor() { return HostTensor(DType::kF32, {}); }

// Expects results within so many roundings of fp32 at their magnitude, and one to their type. What has no magnitude is
// exact.
inline void expect_close(const HostTensor& actual, const reference::Results& expected, double units) {
  std::vector<double> tolerance;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double magnitude = expected.magnitudes[i];
    tolerance.push_back(magnitude > 0 ? units * 0x1p-24 * magnitude + store_error(actual->dtype, expected.values[i])
                                      : 0);
  }
  expect_close(actual, expected.values, tolerance);
}

// The batch of whole samples whose index arrays are where the operators compute.
inline Batch batch_of(const PackedBatch& packed, const Tensor& positions, const Tensor& offsets) {
  Batch batch = packed.batch;
  batch.positions = positions;
  batch.offsets = offsets;
  return batch;
}

}  // namespace lfm2::test
