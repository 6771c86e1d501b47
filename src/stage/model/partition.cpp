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

std::vector<LayerRange> given_partition(int64_t layers, int64_t stages, const std::vector<int64_t>& counts) {
  if (counts.empty()) return equal_partition(layers, stages);
  if (static_cast<int64_t>(counts.size()) != stages)
    throw Error(ExitCode::kUsage,
                fmt::format("--layers names {} stages, expected one for each of the {} ranks", counts.size(), stages));
  return explicit_partition(layers, counts);
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
