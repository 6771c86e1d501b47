// Reads the limits of control groups from their files.
#include "base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

bool names(const std::string& controllers, std::string_view controller) {
  std::istringstream words(controllers);
  for (std::string word; std::getline(words, word, ',');)
    if (word == controller) return true;
  return false;
}

// Microseconds; nothing if the file contains "max" or -1, or does not exist.
std::optional<double> quota(const ControlGroup& group) {
  double time = 0, period = 0;
  std::ifstream first(group.folder / (group.version2 ? "cpu.max" : "cpu.cfs_quota_us"));
  if (!(first >> time)) return std::nullopt;
  if (group.version2)
    first >> period;
  else
    std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  if (time <= 0 || period <= 0) return std::nullopt;
  return time / period;
}

}  // namespace

std::vector<ControlGroup> control_groups(const fs::path& membership, const fs::path& mount,
                                         std::string_view controller) {
  std::vector<ControlGroup> groups;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // such as "4:memory:/job" or "0::/job"
    std::istringstream fields(line);
    std::string id, controllers, place;
    if (!std::getline(fields, id, ':') || !std::getline(fields, controllers, ':') || !std::getline(fields, place))
      continue;
    const bool version2 = controllers.empty();
    if (!version2 && !names(controllers, controller)) continue;
    fs::path top = version2 ? mount : mount / controller;
    // Where controllers share a mount, the name of a single controller is a link that some systems leave out.
    if (std::error_code error; !version2 && !fs::exists(top, error)) top = mount / controllers;
    // In a container, the named group may be one of the host that is not visible here. Then only the top group is
    // found.
    for (fs::path group = fs::path(place).relative_path();; group = group.parent_path()) {
      groups.push_back({top / group, version2});
      if (group.empty()) break;
    }
  }
  return groups;
}

std::optional<double> processor_quota(const fs::path& membership, const fs::path& mount) {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups(membership, mount, "cpu"))
    if (const auto found = quota(group)) least = std::min(*found, least.value_or(*found));
  return least;
}

}  // namespace lfm2
