// Parsing of options that several commands share.
#include "weights-tools/commands/stage_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace lfm2 {

namespace {

constexpr int64_t kDefaultStages = 4;

struct Unit {
  std::string_view text;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"", 1.0},
                                          {"B", 1.0},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12},
                                          {"KIB", 0x1p10},
                                          {"MIB", 0x1p20},
                                          {"GIB", 0x1p30},
                                          {"TIB", 0x1p40}}};

}  // namespace

std::optional<DType> wanted_dtype(const std::string& text) {
  if (text == "keep") return std::nullopt;
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype) throw Error(ExitCode::kUsage, fmt::format("--dtype is \"{}\", expected keep, fp32, bf16 or fp16", text));
  return dtype;
}

std::vector<LayerRange> choose_stages(int64_t layers, const std::optional<int64_t>& stages,
                                      const std::vector<int64_t>& counts) {
  if (!counts.empty()) return explicit_partition(layers, counts);
  if (stages && (*stages < 1 || *stages > layers))
    throw Error(ExitCode::kUsage,
                fmt::format("--stages is {}, expected 1 to {}: every stage needs a layer", *stages, layers));
  return equal_partition(layers, stages.value_or(std::min(kDefaultStages, layers)));
}

uint64_t parse_bytes(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(static_cast<const char*>(end), text.data() + text.size());
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  const auto known = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.text == unit; });
  const double bytes = known == kUnits.end() ? 0.0 : number * known->bytes;
  if (error != std::errc() || !std::isfinite(bytes) || bytes < 1 || bytes > 0x1p60)
    throw Error(ExitCode::kUsage,
                fmt::format("\"{}\" is no amount of memory, expected for example 80GB or 512MiB", text));
  return static_cast<uint64_t>(bytes);
}

}  // namespace lfm2
