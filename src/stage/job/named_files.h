// The files that a job names, and those that it makes beside them: each must be a file of its own.
#pragma once

#include <filesystem>

#include "stage/job/options.h"

namespace lfm2 {

// Where the watchdog leaves the last stamps: beside the output, else in the working directory. A run on several hosts
// adds a point and the host's name.
std::filesystem::path stamps_file(const Options& options);

// Error(kUsage) where a file that is written is also another one of the job, by whatever names or links, or would lie
// among the shards as one of them. Looks at names, and at what is there; opens and makes nothing. Hosts may have file
// systems of their own: links are seen where both files are.
void check_files(const Options& options);

}  // namespace lfm2
