// Which layers each stage owns. Pure; used by split, plan and the pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lfm2 {

struct LayerRange {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const LayerRange&) const = default;
};

// Contiguous ranges, as equal as can be, the longer ones first. Error(kUnavailable) where there are more stages than
// layers.
std::vector<LayerRange> equal_partition(int64_t layers, int64_t stages);

// Contiguous ranges for which the largest sum of `layer_costs` over a range is smallest; of equal ones the first found.
// Error(kUnavailable) as above.
std::vector<LayerRange> balanced_partition(const std::vector<double>& layer_costs, int64_t stages);

// As --layers asks: `counts` of layers for each of so many stages, equal where there are none. Error(kUsage) where they
// are not as many as stages, or not layers in all; Error(kUnavailable) where there are more stages than layers.
std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<int64_t>& counts);

// From counts as in --layers 7,6,6,5. Error(kUsage) where a count is below 1 or they do not add up to `layers`.
std::vector<LayerRange> explicit_partition(int64_t layers, const std::vector<int64_t>& counts);

}  // namespace lfm2
