// The limit of open files, which every connection counts against.
#pragma once

#include <cstdint>

namespace lfm2::serve {

// Raises this process's limit as far as it may. Returns how many more files and connections can be open from now on.
int64_t raise_open_files();

}  // namespace lfm2::serve
