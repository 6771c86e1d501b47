// Reads the samples of an .h5: input_ids, padded or packed, with masks, lengths and names as Hugging Face's tokenizers
// write them.
#pragma once

#include <filesystem>
#include <functional>

#include "stage/io/inputs/input_file.h"

namespace lfm2 {

// Adds the samples of the file, as read_samples() does.
void read_h5(const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse,
             Samples& samples);

}  // namespace lfm2
