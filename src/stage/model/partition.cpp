// Cuts a stack of layers into stages.
#include "stage/model/partition.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"

namespace lfm2 {

namespace {

// Ranges of counts[i] layers each; nullopt unless all are positive multiples of a half and add up to `layers`.
template <class Count>
std::optional<std::vector<LayerRange>> cut_by_counts(int64_t layers, const std::vector<Count>& counts) {
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const Count count : counts) {
    if (count <= 0 || count > static_cast<Count>(layers)) return std::nullopt;
    const auto blocks = static_cast<int64_t>(count * kBlocksOfLayer);
    if (static_cast<Count>(blocks) != count * kBlocksOfLayer) return std::nullopt;
    ends.push_back(end += blocks);
  }
  if (end != layers * kBlocksOfLayer) return std::nullopt;
  return cut_at_blocks(ends);
}

}  // namespace

LayerRange layers_of_blocks(int64_t first, int64_t end) {
  const int64_t layer = first / kBlocksOfLayer;
  return {.first = layer,
          .count = (end + kBlocksOfLayer - 1) / kBlocksOfLayer - layer,
          .without_first_mixer = first % kBlocksOfLayer != 0,
          .without_last_feed_forward = end % kBlocksOfLayer != 0};
}

int64_t first_block(const LayerRange& layers) {
  return layers.first * kBlocksOfLayer + (layers.without_first_mixer ? 1 : 0);
}

int64_t end_block(const LayerRange& layers) {
  return layers.end() * kBlocksOfLayer - (layers.without_last_feed_forward ? 1 : 0);
}

std::vector<LayerRange> cut_at_blocks(const std::vector<int64_t>& ends) {
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (const int64_t end : ends) {
    ranges.push_back(layers_of_blocks(first, end));
    first = end;
  }
  return ranges;
}

std::vector<LayerRange> equal_partition(int64_t layers, int64_t stages) {
  if (stages < 1 || stages > layers)
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("{} stages for {} layers, expected 1 to {}: every stage needs a layer", stages, layers, layers));
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t count = layers / stages + (stage < layers % stages ? 1 : 0);
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

std::vector<LayerRange> balanced_partition(const std::vector<double>& block_costs, int64_t stages) {
  const auto blocks = static_cast<int64_t>(block_costs.size());
  equal_partition(blocks, stages);  // called for its refusal of too many stages
  // For the first n blocks on s stages, best[s][n] is the minimal cost, and cut[s][n] is the first block of the last
  // stage.
  const auto columns = static_cast<size_t>(blocks) + 1;
  std::vector<std::vector<int64_t>> cut(static_cast<size_t>(stages) + 1, std::vector<int64_t>(columns, 0));
  const auto least = [&](const auto& together) {
    std::vector<std::vector<double>> best(cut.size(),
                                          std::vector<double>(columns, std::numeric_limits<double>::infinity()));
    best[0][0] = 0;
    for (size_t s = 1; s < best.size(); ++s)
      for (size_t n = s; n < columns; ++n) {
        double sum = 0;
        for (size_t first = n; first-- > s - 1;) {
          sum += block_costs[first];
          const double found = together(best[s - 1][first], sum);
          if (found >= best[s][n]) continue;
          best[s][n] = found;
          cut[s][n] = static_cast<int64_t>(first);
        }
      }
    return best.back().back();
  };
  // Of all cuts whose slowest stage is nearly optimal, chooses the one with the most equal stages, because other stages
  // then wait less for occasional delays.
  constexpr double kHardly = 1.005;
  const double slowest = kHardly * least([](double before, double sum) { return std::max(before, sum); });
  least([&](double before, double sum) {
    return sum > slowest ? std::numeric_limits<double>::infinity() : before + sum * sum;
  });
  std::vector<LayerRange> ranges(static_cast<size_t>(stages));
  int64_t end = blocks;
  for (auto s = static_cast<size_t>(stages); s > 0; --s) {
    const int64_t first = cut[s][static_cast<size_t>(end)];
    ranges[s - 1] = layers_of_blocks(first, end);
    end = first;
  }
  return ranges;
}

std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<double>& counts,
                                        int64_t pieces) {
  if (pieces > 1 && stages == 1)
    throw Error(
        ExitCode::kUsage,
        fmt::format("--virtual-stages {} with one rank in a pipeline: nothing goes round, expected at least two "
                    "ranks",
                    pieces));
  if (pieces > 1 && pieces * stages > layers)
    throw Error(ExitCode::kUsage,
                fmt::format("--virtual-stages {} with {} ranks: {} pieces for {} layers, expected at most {}", pieces,
                            stages, pieces * stages, layers, layers / stages));
  if (counts.empty()) return equal_partition(layers, stages * pieces);
  if (std::ssize(counts) != stages * pieces)
    throw Error(ExitCode::kUsage, fmt::format("--layers names {} stages, expected {} for each of the {} ranks",
                                              counts.size(), pieces == 1 ? "one" : std::to_string(pieces), stages));
  if (const auto ranges = cut_by_counts(layers, counts)) return *ranges;
  throw Error(ExitCode::kUsage,
              fmt::format("--layers {}: expected counts of at least 0.5, in halves of layers, that add "
                          "up to the model's {} layers",
                          fmt::join(counts, ","), layers));
}

std::vector<LayerRange> pieces_of(const std::vector<LayerRange>& cut, int64_t stages, int64_t stage) {
  std::vector<LayerRange> pieces;
  for (int64_t at = stage; at < std::ssize(cut); at += stages) pieces.push_back(cut[static_cast<size_t>(at)]);
  return pieces;
}

std::string layers_text(const std::vector<LayerRange>& pieces) {
  std::string text;
  for (const LayerRange& piece : pieces)
    text += fmt::format("{}{}{}-{}{}", text.empty() ? "" : ",", piece.first, piece.without_first_mixer ? "f" : "",
                        piece.end() - 1, piece.without_last_feed_forward ? "m" : "");
  return text;
}

std::vector<LayerRange> explicit_partition(int64_t layers, const std::vector<int64_t>& counts) {
  if (const auto ranges = cut_by_counts(layers, counts)) return *ranges;
  throw Error(ExitCode::kUsage,
              fmt::format("--layers {}: expected counts of at least 1 that add up to the model's {} layers",
                          fmt::join(counts, ","), layers));
}

}  // namespace lfm2
