// Memory of this host.
#pragma once

#include <cstdint>

namespace lfm2 {

// What could be used now, page cache included; 0 where the system does not say.
uint64_t available_host_memory();

}  // namespace lfm2
