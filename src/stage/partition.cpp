// Cutting a stack of layers into stages.
#include "stage/partition.h"

#include <fmt/ranges.h>

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
