// Which layers each stage holds. Pure functions; used by split, plan and the pipeline.
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

// Contiguous ranges of equal length, the first ones a layer longer where they cannot be equal. Error(kUnavailable)
// where there are more stages than layers.
std::vector<LayerRange> equal_partition(int64_t layers, int64_t stages);

// Contiguous ranges whose largest sum of `layer_costs` is smallest; the first such cut where there are several.
// Error(kUnavailable) where there are more stages than layers.
std::vector<LayerRange> balanced_partition(const std::vector<double>& layer_costs, int64_t stages);

// As --layers asks: `counts` of layers for each of `pieces` pieces of so many stages, equal where there are none. A
// range for each virtual stage. Error(kUsage) where they are not as many as pieces, or not layers in all, or where
// there are more pieces than layers; Error(kUnavailable) where there are more stages than layers.
std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<int64_t>& counts,
                                        int64_t pieces = 1);

// The pieces of one of `stages` stages, of a cut into virtual stages: piece v of stage s is virtual stage v · stages +
// s.
std::vector<LayerRange> pieces_of(const std::vector<LayerRange>& cut, int64_t stages, int64_t stage);
// As in "0-5", or with several pieces "0-2,12-14".
std::string layers_text(const std::vector<LayerRange>& pieces);

// Ranges of these lengths, as --layers 7,6,6,5 gives them. Error(kUsage) where one is below 1 or they do not add up to
// `layers`.
std::vector<LayerRange> explicit_partition(int64_t layers, const std::vector<int64_t>& counts);

}  // namespace lfm2
