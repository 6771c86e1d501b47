// The list of index arrays, and the builder that appends sequences to them.
#include "stage/pipeline/batch_arrays.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lfm2 {

namespace {

// The only list of the arrays: calls each(tensor, its content, columns); without columns the tensor has one dimension.
void for_each_array(auto& arrays, auto& ids, BatchTensors& tensors, const auto& each) {
  Batch &batch = tensors.batch, &tail = tensors.tail.batch;
  each(tensors.ids, ids, 0);
  each(batch.positions, arrays.positions, 0);
  each(batch.sequence_of, arrays.sequence_of, 0);
  each(batch.offsets, arrays.offsets, 0);
  each(batch.states, arrays.states, 2);
  each(batch.here, arrays.here, 0);
  each(tensors.keepers, arrays.keepers, 2);
  each(tensors.draws, arrays.draws, 2);
  each(tensors.last_rows, arrays.last_rows, 0);
  each(tensors.draw_slots, arrays.draw_slots, 0);
  each(tensors.drafted, arrays.drafted, 2);
  each(tensors.rules, arrays.draw_rules, kRuleWords);
  each(tensors.scored_rows, arrays.scored_rows, 0);
  each(tensors.targets, arrays.targets, 0);
  each(tensors.hidden_rows, arrays.hidden_rows, 0);
  each(batch.page_table, arrays.page_table, arrays.table_width);
  each(tensors.window_table, arrays.window_table, arrays.table_width);
  each(tensors.tail.rows, arrays.tails.rows, 0);
  each(tail.positions, arrays.tails.positions, 0);
  each(tail.sequence_of, arrays.tails.sequence_of, 0);
  each(tail.offsets, arrays.tails.offsets, 0);
}

// Appends `count` tokens of a sequence, at positions from `first` on.
void append(std::vector<int32_t>& positions, std::vector<int32_t>& offsets, int64_t first, int64_t count) {
  if (offsets.empty()) offsets.push_back(0);
  const size_t before = positions.size();
  positions.resize(before + static_cast<size_t>(count));
  std::iota(positions.begin() + static_cast<int64_t>(before), positions.end(), static_cast<int32_t>(first));
  offsets.push_back(static_cast<int32_t>(positions.size()));
}

}  // namespace

size_t BatchSizes::bytes(int64_t ids) const {
  BatchTensors none;
  size_t sum = 0;
  for_each_array(*this, ids, none,
                 [&](const Tensor&, int64_t values, int64_t) { sum += ArrayLayout::bytes_for(values); });
  return sum;
}

void BatchArrays::clear() {
  tokens = singles = max_length = table_width = 0;
  all_begin = true;
  std::vector<int32_t> no_ids;
  BatchTensors none;
  for_each_array(*this, no_ids, none, [](const Tensor&, auto& values, int64_t) { values.clear(); });
}

void BatchArrays::add(int64_t past, int64_t count) {
  append(positions, offsets, past, count);
  tokens += count;
  max_length = std::max(max_length, past + count);
}

void BatchArrays::add_cached(int64_t past, int64_t count, std::span<const int32_t> pages, int32_t before, int32_t after,
                             std::optional<int32_t> rows_before) {
  const int64_t index = sequences();
  if (count == 1 && singles == index)
    ++singles;
  else
    all_begin = all_begin && past == 0;
  add(past, count);
  sequence_of.insert(sequence_of.end(), static_cast<size_t>(count), static_cast<int32_t>(index));
  page_table.insert(page_table.end(), pages.begin(), pages.end());
  page_table.resize(static_cast<size_t>(sequences() * table_width), 0);
  states.insert(states.end(), {before, after});
  if (rows_before) here.push_back(*rows_before);
}

void BatchArrays::keep_tail(int64_t sequence, int64_t count, int64_t first) {
  const int32_t end = offsets[static_cast<size_t>(sequence) + 1];
  for (auto row = static_cast<int32_t>(end - count); row < end; ++row) tails.rows.push_back(row);
  append(tails.positions, tails.offsets, first, count);
}

BatchTensors::BatchTensors(const BatchArrays& arrays, std::span<const int32_t> own_ids, std::byte* memory) {
  ArrayLayout layout(memory);
  for_each_array(arrays, own_ids, *this, [&](Tensor& tensor, const auto& values, int64_t columns) {
    if (values.empty()) return;
    const auto words = static_cast<int64_t>(values.size() * sizeof values[0] / sizeof(int32_t));
    tensor = columns == 0 ? layout.allocate_ints({words}) : layout.allocate_ints({words / columns, columns});
  });
  bytes = layout.bytes();
  batch.tokens = arrays.tokens;
  batch.sequences = tail.batch.sequences = arrays.sequences();
  batch.singles = arrays.singles;
  batch.max_length = tail.batch.max_length = arrays.max_length;
  batch.all_begin = arrays.all_begin;
  tail.batch.tokens = arrays.tail_tokens();
  if (!tail.batch.sequence_of) return;
  tail.batch.singles = batch.singles;
  tail.batch.states = batch.states;
  tail.batch.here = batch.here;
  tail.batch.page_table = batch.page_table;
}

BatchTensors fill_arrays(const BatchArrays& arrays, std::span<const int32_t> ids, std::span<std::byte> host,
                         std::byte* device) {
  BatchTensors tensors(arrays, ids, host.data());
  expect(tensors.bytes <= host.size(), "BatchTensors: the index arrays are larger than their buffer");
  for_each_array(arrays, ids, tensors, [](const Tensor& tensor, const auto& values, int64_t) {
    if (!values.empty()) std::memcpy(tensor.data, values.data(), tensor.bytes());
  });
  return {arrays, ids, device};
}

}  // namespace lfm2
