// The limit of open files, against which every connection counts.
#pragma once

#include <cstdint>

namespace lfm2::serve {

// Raises this process's limit, if necessary and permitted, so that `wanted` more files can be open. It is not raised
// further, because some libraries loop over all possible descriptors. Returns how many more files can be open.
int64_t raise_open_files(int64_t wanted);

}  // namespace lfm2::serve
