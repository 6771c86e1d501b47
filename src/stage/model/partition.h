// Which layers each stage holds. Pure functions; used by split, plan and the pipeline.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/words.h"

namespace lfm2 {

// Consecutive layers. A layer has two blocks, a token mixer and a feed-forward. A pipeline may also be cut between
// these: then a stage begins with the feed-forward of its first layer, or ends with the token mixer of its last.
struct LayerRange {
  int64_t first = 0, count = 0;  // the layers with at least one block here
  bool without_first_mixer = false, without_last_feed_forward = false;
  int64_t end() const { return first + count; }
  bool has_mixer(int64_t layer) const { return has(layer) && !(without_first_mixer && layer == first); }
  bool has_feed_forward(int64_t layer) const {
    return has(layer) && !(without_last_feed_forward && layer + 1 == end());
  }
  bool operator==(const LayerRange&) const = default;

 private:
  bool has(int64_t layer) const { return layer >= first && layer < end(); }
};
void for_each_field(MaybeConst<LayerRange> auto& layers, const auto& each) {  // see base/words.h
  each(layers.first, layers.count, layers.without_first_mixer, layers.without_last_feed_forward);
}

// Some of a stage's layers, by their numbers in the model.
struct LayerSpan {
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();
};

// Blocks are numbered through the model: block 2 l is the token mixer of layer l, block 2 l + 1 its feed-forward.
inline constexpr int64_t kBlocksOfLayer = 2;
LayerRange layers_of_blocks(int64_t first, int64_t end);  // the range of the blocks [first, end)
int64_t first_block(const LayerRange& layers);
int64_t end_block(const LayerRange& layers);                              // the block after the last one
std::vector<LayerRange> cut_at_blocks(const std::vector<int64_t>& ends);  // ranges that end before these blocks

// Contiguous ranges of equal length; if the layers do not divide evenly, the first ranges have one layer more.
// Error(kUnavailable) if there are more stages than layers.
std::vector<LayerRange> equal_partition(int64_t layers, int64_t stages);

// Contiguous ranges that minimise the largest sum of `block_costs`. That sum may be 0.5 % above the minimum if this
// makes the other sums more equal. Error(kUnavailable) if there are more stages than blocks.
std::vector<LayerRange> balanced_partition(const std::vector<double>& block_costs, int64_t stages);

// The partition of --layers: a range for each of the `stages` · `pieces` virtual stages. `counts`: the layers of each;
// empty: equal counts. Half a layer cuts between its blocks. Error(kUsage) if the number of counts is wrong or their
// sum is not `layers`. With several pieces, also if there is only one rank or more virtual stages than layers.
// Error(kUnavailable) if there are more stages than layers.
std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<double>& counts,
                                        int64_t pieces = 1);

// The pieces of stage number `stage` in a cut into virtual stages: piece v of stage s is virtual stage v · stages + s.
std::vector<LayerRange> pieces_of(const std::vector<LayerRange>& cut, int64_t stages, int64_t stage);
// The layers as text: "0-5", or for several pieces "0-2,12-14". "5f-8" begins with the feed-forward of layer 5, "0-5m"
// ends with the token mixer of layer 5.
std::string layers_text(const std::vector<LayerRange>& pieces);

// Ranges of these lengths, as for --layers 7,6,6,5. Error(kUsage) if a count is below 1 or their sum is not `layers`.
std::vector<LayerRange> explicit_partition(int64_t layers, const std::vector<int64_t>& counts);

}  // namespace lfm2
