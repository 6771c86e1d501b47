// The control groups, versions 1 and 2, of this process: those of a container, a pod or a Slurm job.
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

// The groups that `membership` (/proc/self/cgroup) names for `controller` ("memory"), each with all that it lies in.
// `mount` is where control groups are mounted (/sys/fs/cgroup). Some may not be visible, as a container's.
std::vector<ControlGroup> control_groups(const std::filesystem::path& membership, const std::filesystem::path& mount,
                                         std::string_view controller);

// The processors' time that the control groups leave, in processors: 0.5 is half of one. Nothing where none has a
// limit.
std::optional<double> processor_quota(const std::filesystem::path& membership, const std::filesystem::path& mount);

}  // namespace lfm2
