// How much memory this process may still take on its host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lfm2 {

// What could be used now, page cache included, within the limits of this process's control groups (a container's, a
// Slurm job's); 0 where the system does not say.
uint64_t available_host_memory();

// What the control groups named in `membership` (/proc/self/cgroup) leave, the tightest of them; nothing where none has
// a limit. `mount` is where they are seen (/sys/fs/cgroup).
std::optional<uint64_t> control_group_headroom(const std::filesystem::path& membership,
                                               const std::filesystem::path& mount);

}  // namespace lfm2
