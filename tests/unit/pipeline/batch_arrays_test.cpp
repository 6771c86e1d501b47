// Index arrays of batches: their sizes, places and contents.
#include "stage/pipeline/batch_arrays.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lfm2::test {
namespace {

std::vector<int32_t> values(const Tensor& tensor) {
  return {tensor.as<int32_t>(), tensor.as<int32_t>() + tensor.numel()};
}

// Two sequences over caches of three pages each, and their tails.
BatchArrays cached_arrays() {
  BatchArrays arrays;
  arrays.table_width = 3;
  arrays.add_cached(7, 1, std::vector<int32_t>{5, 2}, 0, 1);
  arrays.add_cached(0, 4, std::vector<int32_t>{9}, 3, 2);
  arrays.keep_tail(0, 1, 7);
  arrays.keep_tail(1, 2, 2);
  arrays.last_rows = {0, 2};
  arrays.draws = {1, 0, 2, 0};
  arrays.draw_slots = {0, 1};
  arrays.draw_rules = {{.temperature = 1}, {.top_k = 3}};
  arrays.keepers = {0, 8, -1, 4};
  arrays.scored_rows = {1};
  arrays.targets = {77};
  arrays.hidden_rows = {2};
  return arrays;
}

TEST(BatchArraysTest, SequencesBecomeLists) {
  const BatchArrays arrays = cached_arrays();
  EXPECT_EQ(arrays.tokens, 5);
  EXPECT_EQ(arrays.sequences(), 2);
  EXPECT_EQ(arrays.singles, 1);
  EXPECT_EQ(arrays.max_length, 8);
  EXPECT_EQ(arrays.tokens_left(), 3);
  EXPECT_EQ(arrays.positions, (std::vector<int32_t>{7, 0, 1, 2, 3}));
  EXPECT_EQ(arrays.offsets, (std::vector<int32_t>{0, 1, 5}));
  EXPECT_EQ(arrays.sequence_of, (std::vector<int32_t>{0, 1, 1, 1, 1}));
  EXPECT_EQ(arrays.page_table, (std::vector<int32_t>{5, 2, 0, 9, 0, 0}));
  EXPECT_EQ(arrays.states, (std::vector<int32_t>{0, 1, 3, 2}));
  EXPECT_EQ(arrays.tails.rows, (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(arrays.tails.positions, (std::vector<int32_t>{7, 2, 3}));
  EXPECT_EQ(arrays.tails.offsets, (std::vector<int32_t>{0, 1, 3}));
}

TEST(BatchArraysTest, ClearLeavesNothing) {
  BatchArrays arrays = cached_arrays();
  arrays.clear();
  EXPECT_EQ(BatchTensors(arrays, {}, nullptr).bytes, 0u);
  EXPECT_EQ(arrays.tokens + arrays.singles + arrays.max_length + arrays.table_width + arrays.sequences(), 0);
}

// The plan's sizes are those of the arrays, list by list.
TEST(BatchArraysTest, SizesAreThoseOfTheArrays) {
  const BatchArrays arrays = cached_arrays();
  const std::vector<int32_t> ids(5, 1);
  BatchSizes sizes;
  sizes.positions = sizes.sequence_of = 5;
  sizes.offsets = 3;
  sizes.page_table = 6;
  sizes.states = sizes.keepers = sizes.draws = 4;
  sizes.tails = {.rows = 3, .positions = 3, .offsets = 3};
  sizes.last_rows = sizes.draw_slots = 2;
  sizes.draw_rules = 2 * kRuleWords;
  sizes.scored_rows = sizes.targets = sizes.hidden_rows = 1;
  EXPECT_EQ(sizes.bytes(5), BatchTensors(arrays, ids, nullptr).bytes);
  EXPECT_EQ(BatchSizes().bytes(0), 0u);
}

TEST(BatchArraysTest, FillsTheHostAndNamesPlacesOnTheDevice) {
  const BatchArrays arrays = cached_arrays();
  std::vector<int32_t> ids(5);
  std::iota(ids.begin(), ids.end(), 40);
  const size_t bytes = BatchTensors(arrays, ids, nullptr).bytes;
  alignas(16) std::array<std::byte, 1024> host{}, device{};
  ASSERT_LE(bytes, host.size());
  const BatchTensors there = fill_arrays(arrays, ids, std::span(host).first(bytes), device.data());
  EXPECT_EQ(there.bytes, bytes);
  std::memcpy(device.data(), host.data(), bytes);  // as the copy to the device does
  EXPECT_EQ(values(there.ids), ids);
  EXPECT_EQ(values(there.batch.positions), arrays.positions);
  EXPECT_EQ(values(there.batch.page_table), arrays.page_table);
  EXPECT_EQ(there.batch.page_table.dim(1), 3);
  EXPECT_EQ(values(there.keepers), arrays.keepers);
  EXPECT_EQ(values(there.tail.rows), arrays.tails.rows);
  EXPECT_EQ(there.tail.batch.tokens, 3);
  EXPECT_EQ(there.rules.as<SamplingRule>()[1], arrays.draw_rules[1]);
  EXPECT_THROW(fill_arrays(arrays, ids, std::span(host).first(bytes - 16), device.data()), Error);
}

// Where the pages of a sequence are none, as in a batch of whole samples, the table has no elements.
TEST(BatchArraysTest, WholeSamplesHaveNoTable) {
  BatchArrays arrays;
  arrays.add(0, 3);
  const BatchTensors tensors(arrays, {}, nullptr);
  EXPECT_FALSE(tensors.batch.page_table);
  EXPECT_FALSE(tensors.batch.states);
  EXPECT_EQ(tensors.batch.singles, 0);
}

}  // namespace
}  // namespace lfm2::test
