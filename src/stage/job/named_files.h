// Checks that each file that a job names, or makes beside one, is a separate file.
#pragma once

#include <filesystem>

#include "stage/job/options.h"

namespace lfm2 {

// The file into which the watchdog writes the last stamps: beside the output, or in the working directory if there is
// no output. A run on several hosts appends a point and the host's name.
std::filesystem::path stamps_file(const Options& options);

// Error(kUsage) if a file to write is also another file of the job, by name or link, or would count as one of the
// shards. Compares names and existing files, and opens or creates none. If hosts have separate file systems, a link is
// detected only on a host that has both files.
void check_files(const Options& options);

}  // namespace lfm2
