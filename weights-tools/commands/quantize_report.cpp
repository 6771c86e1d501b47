#include "weights-tools/commands/quantize_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace lfm2 {

namespace {

std::string kind_of(const TensorSpec& weight) {
  std::string kind;
  std::string_view rest = std::string_view(weight.name).substr(layer_prefix(weight.layer).size());
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (part == "weight" || part.find_first_not_of("0123456789") == std::string_view::npos) continue;
    kind += (kind.empty() ? "" : ".") + std::string(part);
  }
  return kind;
}

void print_line(std::string_view name, std::string_view shape, const Fp8Error& error) {
  fmt::print("{:<50} {:>14} {:>12.5f} {:>14.6g}\n", name, shape, error.relative_rms(), error.largest_error);
}

}  // namespace

void QuantizeReport::add(const TensorSpec& weight, const Fp8Error& error) {
  weights_.push_back({weight.layer, weight.name, dims_text(weight.dims), error});
  Kind& kind = kinds_[kind_of(weight)];
  ++kind.weights;
  kind.error.add(error);
}

void QuantizeReport::print() const {
  std::vector<Weight> weights = weights_;
  std::stable_sort(weights.begin(), weights.end(), [](const Weight& a, const Weight& b) { return a.layer < b.layer; });
  fmt::print("{:<50} {:>14} {:>12} {:>14}\n", "weight", "shape", "relative RMS", "largest error");
  for (const Weight& weight : weights) print_line(weight.name, weight.shape, weight.error);
  fmt::print("\n{:<50} {:>14} {:>12} {:>14}\n", "kind", "weights", "relative RMS", "largest error");
  Kind all;
  for (const auto& [name, kind] : kinds_) {
    print_line(name, fmt::format("{}", kind.weights), kind.error);
    all.weights += kind.weights;
    all.error.add(kind.error);
  }
  print_line("all", fmt::format("{}", all.weights), all.error);
}

}  // namespace lfm2
