// How much more memory this process may take on its host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lfm2 {

// Bytes that could be used now, page cache included, within the limits of this process's control groups (those of a
// container or a Slurm job); 0 where the system does not say.
uint64_t available_host_memory();

// The smallest number of bytes that the control groups named in `membership` (/proc/self/cgroup) leave; nothing where
// none has a limit. `mount` is where control groups are mounted (/sys/fs/cgroup).
std::optional<uint64_t> control_group_headroom(const std::filesystem::path& membership,
                                               const std::filesystem::path& mount);

}  // namespace lfm2
