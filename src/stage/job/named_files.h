// Checks that each file that a job names, or makes beside one, is a separate file.
#pragma once

#include <filesystem>

#include "stage/job/options.h"

namespace lfm2 {

// The file into which the watchdog writes the last stamps: it is beside the output, or in the working directory where
// there is none. A run on several hosts appends a point and the host's name.
std::filesystem::path stamps_file(const Options& options);

// Error(kUsage) where a file that is written is also another file of the job, under whatever names or links, or would
// be taken for one of the shards. Looks at names and at existing files, and opens or makes none. Where hosts have file
// systems of their own, a link is only noticed on a host that has both files.
void check_files(const Options& options);

}  // namespace lfm2
