// The limit of open files, which every connection counts against.
#pragma once

#include <cstdint>

namespace lfm2::serve {

// Raises this process's limit, where it may and needs to, to `wanted` more files and connections: not further, as some
// libraries look at every number that a file can have. Returns how many more can be open from now on.
int64_t raise_open_files(int64_t wanted);

}  // namespace lfm2::serve
