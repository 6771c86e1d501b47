// group_by_expert on the GPU gives the bits of the CPU's stable sort.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "cuda/experts/test_routing.h"
#include "cuda/gpu.h"

namespace lfm2 {
namespace {

using namespace test;

struct CudaGroupByExpertTest : ::testing::Test {
  CpuReference cpu;

  void check_groups(int64_t tokens, int64_t top_k, int64_t experts, const std::vector<double>& choices) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", tokens, top_k, experts));
    TestRouting expected(tokens, top_k, experts), result(tokens, top_k, experts);
    expected.ids.fill(choices);
    cpu.ops.group_by_expert(expected.routing);
    const DeviceTensor ids(expected.ids), sources(result.sources), rows(result.rows), offsets(result.expert_offsets);
    on_gpu([&](Ops& ops) {
      ops.group_by_expert({.ids = ids, .weights = {}, .sources = sources, .rows = rows, .expert_offsets = offsets});
    });
    sources.fetch(result.sources);
    rows.fetch(result.rows);
    offsets.fetch(result.expert_offsets);
    EXPECT_TRUE(same_bits(result.sources, expected.sources));
    EXPECT_TRUE(same_bits(result.rows, expected.rows));
    EXPECT_TRUE(same_bits(result.expert_offsets, expected.expert_offsets));
  }
};

std::vector<double> random_choices(std::mt19937& generator, int64_t count, int64_t experts) {
  std::vector<double> choices(static_cast<size_t>(count));
  for (double& id : choices) id = static_cast<double>(generator() % static_cast<unsigned>(experts));
  return choices;
}

TEST_F(CudaGroupByExpertTest, IsTheCpusStableSort) {
  check_groups(3, 2, 4, {3, 1, 1, 0, 3, 1});
  check_groups(0, 2, 4, {});
  check_groups(4, 1, 1, {0, 0, 0, 0});
  for (const double everyone : {0, 2, 4}) check_groups(700, 1, 5, std::vector<double>(700, everyone));
  std::mt19937 generator(1);
  for (const auto& [tokens, top_k, experts] :
       {std::array<int64_t, 3>{75, 4, 32}, {513, 4, 32}, {2048, 4, 32}, {3001, 3, 100}, {1000, 8, 1024}})
    check_groups(tokens, top_k, experts, random_choices(generator, tokens * top_k, experts));
}

TEST_F(CudaGroupByExpertTest, ManyBlocks) {
  std::mt19937 generator(2);
  for (const int64_t tokens : {12345, 200000}) check_groups(tokens, 4, 32, random_choices(generator, tokens * 4, 32));
}

}  // namespace
}  // namespace lfm2
