// Cuts a stack of layers into stages.
#include "stage/model/partition.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "kernels/error.h"

namespace lfm2 {

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

std::vector<LayerRange> balanced_partition(const std::vector<double>& layer_costs, int64_t stages) {
  const auto layers = static_cast<int64_t>(layer_costs.size());
  equal_partition(layers, stages);  // called for its refusal of too many stages
  // For the first n layers on s stages, best[s][n] is the smallest possible largest sum, and cut[s][n] is the first
  // layer of the last stage.
  const auto columns = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<double>> best(static_cast<size_t>(stages) + 1,
                                        std::vector<double>(columns, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int64_t>> cut(best.size(), std::vector<int64_t>(columns, 0));
  best[0][0] = 0;
  for (size_t s = 1; s < best.size(); ++s)
    for (size_t n = s; n < columns; ++n) {
      double sum = 0;
      for (size_t first = n; first-- > s - 1;) {
        sum += layer_costs[first];
        const double slowest = std::max(sum, best[s - 1][first]);
        if (slowest < best[s][n]) {
          best[s][n] = slowest;
          cut[s][n] = static_cast<int64_t>(first);
        }
      }
    }
  std::vector<LayerRange> ranges(static_cast<size_t>(stages));
  int64_t end = layers;
  for (auto s = static_cast<size_t>(stages); s > 0; --s) {
    const int64_t first = cut[s][static_cast<size_t>(end)];
    ranges[s - 1] = {first, end - first};
    end = first;
  }
  return ranges;
}

std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<int64_t>& counts,
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
  return explicit_partition(layers, counts);
}

std::vector<LayerRange> pieces_of(const std::vector<LayerRange>& cut, int64_t stages, int64_t stage) {
  std::vector<LayerRange> pieces;
  for (int64_t at = stage; at < std::ssize(cut); at += stages) pieces.push_back(cut[static_cast<size_t>(at)]);
  return pieces;
}

std::string layers_text(const std::vector<LayerRange>& pieces) {
  std::string text;
  for (const LayerRange& piece : pieces)
    text += fmt::format("{}{}-{}", text.empty() ? "" : ",", piece.first, piece.end() - 1);
  return text;
}

std::vector<LayerRange> explicit_partition(int64_t layers, const std::vector<int64_t>& counts) {
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (int64_t count : counts) {
    if (count < 1 || count > layers - first) break;
    ranges.push_back({first, count});
    first += count;
  }
  if (first != layers || ranges.size() != counts.size())
    throw Error(ExitCode::kUsage,
                fmt::format("--layers {}: expected counts of at least 1 that add up to the model's {} layers",
                            fmt::join(counts, ","), layers));
  return ranges;
}

}  // namespace lfm2
