// The control groups of this process (versions 1 and 2), which a container, a pod or a Slurm job sets up.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2 {

struct ControlGroup {
  std::filesystem::path folder;
  bool version2 = false;
};

// The groups that `membership` (/proc/self/cgroup) names for `controller` (such as "memory"), each followed by its
// ancestors. Control groups are mounted at `mount` (/sys/fs/cgroup). A container may hide some of them.
std::vector<ControlGroup> control_groups(const std::filesystem::path& membership, const std::filesystem::path& mount,
                                         std::string_view controller);

// The CPU time that the control groups allow, in processors: 0.5 is half a processor. Nothing if no group has a limit.
std::optional<double> processor_quota(const std::filesystem::path& membership, const std::filesystem::path& mount);

}  // namespace lfm2
