#include "stage/io/inputs/sample_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_file.h"
#include "base/integers.h"
#include "openai/request_fields.h"

namespace lfm2 {

namespace {

[[noreturn]] void refuse_id(const std::string& where, size_t place, int64_t id, const InputLimits& limits) {
  throw Error(ExitCode::kData, fmt::format("{}: token {} is {}, expected 0 to {}", where, place, id, limits.vocab - 1));
}

void check_sample(const Samples& samples, const InputLimits& limits, const std::string& where) {
  const auto first = static_cast<size_t>(samples.offsets[samples.count() - 1]);
  check_length(static_cast<int64_t>(samples.ids.size() - first), limits, where);
  for (size_t i = first; i < samples.ids.size(); ++i)
    if (samples.ids[i] < 0 || samples.ids[i] >= limits.vocab) refuse_id(where, i - first, samples.ids[i], limits);
}

}  // namespace

void check_length(int64_t length, const InputLimits& limits, const std::string& where) {
  if (length < 1 || length > limits.max_positions)
    throw Error(ExitCode::kData, fmt::format("{}: {} tokens, expected 1 to {}", where, length,
                                             max_length_text(limits.max_positions, limits.scores)));
}

bool enough(const Samples& samples, const InputLimits& limits) {
  return limits.max_samples > 0 && samples.count() >= limits.max_samples;
}

uint64_t samples_to_read(uint64_t count, const Samples& samples, const InputLimits& limits) {
  return limits.max_samples > 0 ? std::min(count, static_cast<uint64_t>(limits.max_samples - samples.count())) : count;
}

[[noreturn]] void refuse_empty(const std::string& name, size_t files) {
  const std::string more = files > 1 ? fmt::format(" and {} more files", files - 1) : "";
  throw Error(ExitCode::kData, fmt::format("{}{}: no samples, expected at least 1", name, more));
}

void check_total(uint64_t tokens, const std::string& where) {
  if (tokens > TokenIds::kMaxIds)
    throw Error(ExitCode::kData, fmt::format("{}: more than 2^31 tokens in one job", where));
}

void check_more(uint64_t tokens, const std::string& where, Samples& samples) {
  check_total(checked_add(samples.ids.size(), tokens, where), where);
  samples.ids.reserve(samples.ids.size() + tokens);
}

void add_ids(std::span<const int64_t> ids, const InputLimits& limits, const std::string& where, Samples& samples) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limits.vocab) refuse_id(where, i, ids[i], limits);
    samples.ids.push_back(static_cast<int32_t>(ids[i]));
  }
}

void finish_sample(Samples& samples, const InputLimits& limits, const std::string& where) {
  check_total(samples.ids.size(), where);
  samples.offsets.push_back(static_cast<int64_t>(samples.ids.size()));
  check_sample(samples, limits, where);
}

}  // namespace lfm2
