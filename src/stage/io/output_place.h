// Checks the place of an output before there is anything to write.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lfm2 {

// Error(kCantCreate) if no file can be created there, so that the job does not fail at its end. Creates a file without
// a name, which vanishes even if this process is killed.
void check_output_place(const std::filesystem::path& path);

// The facts about the place from the file system and this process's limits. Error(kCantCreate) as above.
struct OutputPlace {
  bool has_locks = true;               // false: two runs that write one output are not detected
  uint64_t free_bytes = 0;             // for this user
  uint64_t files = 0, free_files = 0;  // inodes; both are 0 if the file system does not count them
  uint64_t largest_file_bytes = 0;     // of this process; the largest number: no limit
};
OutputPlace find_output_place(const std::filesystem::path& path);

}  // namespace lfm2
