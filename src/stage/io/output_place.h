// The place where an output is to be written, before there is anything to write.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lfm2 {

// Whether a file can be made there: Error(kCantCreate) now rather than after the job. Makes a file without a name, so
// that nothing is left whatever ends this process meanwhile.
void check_output_place(const std::filesystem::path& path);

// What the file system and the limits of this process say of the place. Error(kCantCreate) as above.
struct OutputPlace {
  bool has_locks = true;               // false: two runs that write one output are not noticed
  uint64_t free_bytes = 0;             // for this user
  uint64_t files = 0, free_files = 0;  // inodes, which some file systems do not count: then both are 0
  uint64_t largest_file_bytes = 0;     // of this process; the largest number: no limit
};
OutputPlace find_output_place(const std::filesystem::path& path);

}  // namespace lfm2
