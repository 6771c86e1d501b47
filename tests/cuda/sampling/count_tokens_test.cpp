// count_tokens on the GPU has the counts of the CPU's operator, exactly.
#include <gtest/gtest.h>

#include <random>

#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaCountTokensTest : ::testing::Test {
  CpuReference cpu;
};

TEST_F(CudaCountTokensTest, AgreesWithTheCpuOverManyBatches) {
  for (const int64_t vocab : {1, 33, 65536}) {
    const int64_t slots = 5;
    HostTensor counts(DType::kI32, {slots, vocab}), found(DType::kI32, {slots, vocab});
    counts.fill(77);  // of sequences before
    const DeviceTensor device_counts(counts);
    std::mt19937 random(3);
    std::vector<int64_t> next(static_cast<size_t>(slots), 0);  // each slot's next position
    for (int batch = 0; batch < 6; ++batch) {
      // Batches of chunks, of single tokens, and of both; slot 2 keeps nothing, slot 4 begins again in each.
      const std::vector<int64_t> lengths = batch % 2 == 0 ? std::vector<int64_t>{1, 700, 3, 1, 300}
                                                          : std::vector<int64_t>(static_cast<size_t>(slots), 1);
      PackedSamples packed(lengths);
      HostTensor ids(DType::kI32, {packed.tokens()}), keepers(DType::kI32, {slots, 2});
      for (size_t i = 0; i < ids.size(); ++i)
        ids.set(i, static_cast<double>(random() % static_cast<uint64_t>(std::min<int64_t>(vocab, 40))));
      for (int64_t slot = 0; slot < slots; ++slot) {
        const auto s = static_cast<size_t>(slot);
        if (slot == 4) next[s] = 0;
        keepers.set(2 * s, slot == 2 ? -1.0 : static_cast<double>(slot));
        keepers.set(2 * s + 1, static_cast<double>(slot == 1 ? 400 : 2));
        const auto first = static_cast<size_t>(packed.starts[s]);
        for (int64_t i = 0; i < lengths[s]; ++i)
          packed.places[first + static_cast<size_t>(i)] = static_cast<double>(next[s]++);
      }
      packed.upload();
      const DeviceTensor device_ids(ids), device_keepers(keepers);
      on_gpu([&](Ops& ops) { ops.count_tokens(device_ids, device_keepers, packed.device, device_counts); });
      device_counts.fetch(found);
      cpu.ops.count_tokens(ids, keepers, packed.host, counts);
      ASSERT_TRUE(same_bits(found, counts)) << "vocab " << vocab << ", batch " << batch;
    }
  }
}

}  // namespace
}  // namespace lfm2
