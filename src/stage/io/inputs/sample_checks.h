// The only place that knows what a valid sample is: the readers of integers and of lines add samples through it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stage/io/inputs/input_file.h"

namespace lfm2 {

constexpr uint64_t kPieceIds = uint64_t{1} << 20;  // the integers of a file may be twice as wide as ids

bool enough(const Samples& samples, const InputLimits& limits);
// The number of samples to read from a file that has `count` of them, after those that were read before.
uint64_t samples_to_read(uint64_t count, const Samples& samples, const InputLimits& limits);
[[noreturn]] void refuse_empty(const std::string& name, size_t files);
// Error(kData) for a sample that has no tokens or more than the limits allow.
void check_length(int64_t length, const InputLimits& limits, const std::string& where);
// Error(kData) for more tokens than one job may have.
void check_total(uint64_t tokens, const std::string& where);
// Checks and reserves room for `tokens` more ids.
void check_more(uint64_t tokens, const std::string& where, Samples& samples);
// Ids that may be wider than those of samples.
void add_ids(std::span<const int64_t> ids, const InputLimits& limits, const std::string& where, Samples& samples);
// The ids that were added since the last sample are the next sample. Error(kData) if it is not valid.
void finish_sample(Samples& samples, const InputLimits& limits, const std::string& where);

}  // namespace lfm2
